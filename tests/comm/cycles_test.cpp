// Communicators made and destroyed again and again: descriptors, threads and memory stay as they are. And what a communicator of one
// rank takes: nothing of the kind.
#include "crew.h"

#include <catch2/catch.hpp>

#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace {

using crew::Belongings;
using crew::fine;
using crew::Member;
using crew::resident_kb;

constexpr int kRanks = 3;
constexpr int kWarmUp = 10;
constexpr int kCycles = 200;
constexpr long kGrowthMaxKb = 1024;  // 5 KB a cycle: less than a communicator
constexpr std::size_t kCount = 20000;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kMemoryCounts = false;  // freed memory is kept for a while
#else
constexpr bool kMemoryCounts = true;
#endif

enum class What { kNothing, kCalls, kSplits };

/// All ranks' sums and their neighbours' values.
std::string calls(int rank, ncclComm_t comm, int cycle) {
  std::vector<float> in(kCount), sum(kCount, -77), last(kCount, -77);
  const auto value = [cycle](int r, std::size_t i) {
    return static_cast<float>((static_cast<std::size_t>(r) * 31 + static_cast<std::size_t>(cycle) * 5 + i * 7) % 101);
  };
  for (std::size_t i = 0; i < kCount; ++i) in[i] = value(rank, i);
  CREW_TRY(fine(ncclAllReduce(in.data(), sum.data(), kCount, ncclFloat, ncclSum, comm, nullptr), "sum"));
  ncclGroupStart();
  ncclSend(in.data(), kCount, ncclFloat, (rank + 1) % kRanks, comm, nullptr);
  ncclRecv(last.data(), kCount, ncclFloat, (rank + kRanks - 1) % kRanks, comm, nullptr);
  CREW_TRY(fine(ncclGroupEnd(), "send and receive"));
  for (std::size_t i = 0; i < kCount; ++i) {
    float total = 0;
    for (int r = 0; r < kRanks; ++r) total += value(r, i);
    if (sum[i] != total || last[i] != value((rank + kRanks - 1) % kRanks, i)) {
      return "cycle " + std::to_string(cycle) + ": element " + std::to_string(i) + " is wrong";
    }
  }
  return "";
}

/// One by rank 0's id, which goes round by `outer`.
std::string init_cycle(int rank, ncclComm_t outer, What what, int cycle) {
  ncclUniqueId id{};
  if (rank == 0) CREW_TRY(fine(ncclGetUniqueId(&id), "id"));
  CREW_TRY(fine(ncclBroadcast(&id, &id, sizeof id, ncclUint8, 0, outer, nullptr), "the id"));
  ncclComm_t comm = nullptr;
  CREW_TRY(fine(ncclCommInitRank(&comm, kRanks, id, rank), "init"));
  if (what == What::kCalls) CREW_TRY(calls(rank, comm, cycle));
  return fine(ncclCommDestroy(comm), "destroy");
}

/// All together, the first apart from the others, or each alone.
std::string split_cycle(int rank, ncclComm_t outer, int cycle) {
  const int color = cycle % 3 == 0 ? 0 : cycle % 3 == 1 ? (rank == 0 ? 0 : 1) : rank;
  ncclComm_t child = nullptr;
  CREW_TRY(fine(ncclCommSplit(outer, color, -rank, &child, nullptr), "split"));
  int size = 0, place = -1;
  ncclCommCount(child, &size);
  ncclCommUserRank(child, &place);
  const int wanted = cycle % 3 == 0 ? kRanks : cycle % 3 == 1 && rank != 0 ? kRanks - 1 : 1;
  if (size != wanted || place != (wanted == 1 ? 0 : kRanks - 1 - rank)) {
    return "cycle " + std::to_string(cycle) + ": rank " + std::to_string(place) + " of " + std::to_string(size);
  }
  CREW_TRY(crew::usable(child));
  return fine(ncclCommDestroy(child), "destroy");
}

std::string cycles(int rank, ncclComm_t outer, What what, int count) {
  for (int cycle = 0; cycle < count; ++cycle) {
    CREW_TRY(what == What::kSplits ? split_cycle(rank, outer, cycle) : init_cycle(rank, outer, what, cycle));
  }
  // Nobody is still busy with the last.
  int one = 1;
  return fine(ncclAllReduce(&one, &one, 1, ncclInt, ncclSum, outer, nullptr), "the end");
}

std::string left_after(const Belongings& before, long before_kb) {
  CREW_TRY(crew::left_behind(before));
  const long grown = resident_kb() - before_kb;
  if (kMemoryCounts && grown > kGrowthMaxKb) return std::to_string(grown) + " KB more than before";
  return "";
}

/// What is there once threads that end by themselves have ended: the same 20 times.
Belongings settled() {
  Belongings last = Belongings::count();
  for (int same = 0, tries = 0; same < 20 && tries < 1000; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    const Belongings now = Belongings::count();
    same = now.descriptors == last.descriptors && now.threads == last.threads ? same + 1 : 0;
    last = now;
  }
  return last;
}

/// `run` makes so many cycles on all ranks of this process.
template <class Run>
std::string stays_flat(const Run& run) {
  CREW_TRY(run(kWarmUp));
  const Belongings before = settled();
  const long before_kb = resident_kb();
  CREW_TRY(run(kCycles));
  return left_after(before, before_kb);
}

bool has_segment() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:tutti-control") != std::string::npos) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("200 communicators leave nothing behind: processes") {
  for (const What what : {What::kNothing, What::kCalls, What::kSplits}) {
    INFO("kind " << static_cast<int>(what));
    crew::check(crew::run(kRanks, [what](const Member& m) -> std::string {
      ncclComm_t outer = nullptr;
      CREW_TRY(fine(ncclCommInitRank(&outer, m.ranks, m.ids[0], m.rank), "init"));
      CREW_TRY(stays_flat([&](int count) { return cycles(m.rank, outer, what, count); }));
      return fine(ncclCommDestroy(outer), "destroy");
    }));
  }
}

TEST_CASE("200 communicators leave nothing behind: threads") {
  for (const What what : {What::kNothing, What::kCalls, What::kSplits}) {
    INFO("kind " << static_cast<int>(what));
    crew::check(crew::run(1, [what](const Member&) -> std::string {
      std::vector<ncclComm_t> outer(kRanks);
      CREW_TRY(fine(ncclCommInitAll(outer.data(), kRanks, nullptr), "init"));
      CREW_TRY(stays_flat([&](int count) -> std::string {
        std::vector<std::string> wrong(kRanks);
        std::vector<std::thread> threads;
        for (int r = 0; r < kRanks; ++r) threads.emplace_back([&, r] { wrong[r] = cycles(r, outer[r], what, count); });
        for (std::thread& thread : threads) thread.join();
        for (const std::string& text : wrong) CREW_TRY(text);
        return "";
      }));
      for (ncclComm_t comm : outer) CREW_TRY(fine(ncclCommDestroy(comm), "destroy"));
      return "";
    }));
  }
}

TEST_CASE("200 communicators leave nothing behind: one thread for all ranks") {
  crew::check(crew::run(1, [](const Member&) -> std::string {
    return stays_flat([](int count) -> std::string {
      for (int cycle = 0; cycle < count; ++cycle) {
        std::vector<ncclComm_t> comms(kRanks);
        CREW_TRY(fine(ncclCommInitAll(comms.data(), kRanks, nullptr), "init"));
        for (ncclComm_t comm : comms) CREW_TRY(fine(ncclCommDestroy(comm), "destroy"));
      }
      return "";
    });
  }));
}

TEST_CASE("a communicator of one rank has no thread, no descriptor and no segment") {
  crew::check(crew::run(1, [](const Member& m) -> std::string {
    const Belongings before = Belongings::count();
    ncclComm_t comm = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&comm, 1, m.ids[0], 0), "init"));
    CREW_TRY(crew::usable(comm));
    CREW_TRY(crew::left_behind(before));
    if (has_segment()) return "it has a segment";
    CREW_TRY(fine(ncclCommDestroy(comm), "destroy"));
    return crew::left_behind(before);
  }));
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    ncclComm_t outer = nullptr, own = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&outer, m.ranks, m.ids[0], m.rank), "init"));
    if (!has_segment()) return "two ranks have no segment: this test sees nothing";
    const Belongings before = settled();
    CREW_TRY(fine(ncclCommSplit(outer, m.rank, 0, &own, nullptr), "split"));
    CREW_TRY(Belongings::count().grown_since(before));  // not even for a while
    CREW_TRY(crew::usable(own));
    CREW_TRY(fine(ncclCommDestroy(outer), "destroy"));
    if (has_segment()) return "it has a segment";
    CREW_TRY(crew::usable(own));
    return fine(ncclCommDestroy(own), "destroy");
  }));
}
