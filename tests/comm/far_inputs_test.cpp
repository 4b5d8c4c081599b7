// Hosts of one rank each, whose inputs travel with the lines that open a call: as they are, added up on the way, or
// added up by one of them, where hosts share cores. Values and bits, whoever is late, whatever else is called
// between, what crosses, and calls that differ.
#include "crew.h"

#include <sched.h>
#include <tutti/tutti.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

using crew::fine;
using crew::Member;

/// The longest input that travels so, in elements; longer ones go through slots.
constexpr std::size_t kLongest = (std::size_t{256} << 10) / sizeof(int);
constexpr std::size_t kCounts[] = {1, 128, 129, 1000, 4096, 16384, 40000, kLongest - 1, kLongest, kLongest + 1};

std::string first_wrong(const std::vector<int>& found, const std::vector<int>& wanted, const std::string& what) {
  const auto [at, expected] = std::mismatch(found.begin(), found.end(), wanted.begin());
  if (at == found.end()) return "";
  return what + " of " + std::to_string(found.size()) + ": element " + std::to_string(at - found.begin()) + " is " +
         std::to_string(*at) + ", not " + std::to_string(*expected);
}

std::vector<int> numbers(std::size_t count, int base, int rank) {
  std::vector<int> all(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = base + (rank + 1) * static_cast<int>(i % 1000);
  return all;
}

/// Of all ranks' numbers.
std::vector<int> sum(std::size_t count, int base, int ranks) {
  std::vector<int> all(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = ranks * base + ranks * (ranks + 1) / 2 * static_cast<int>(i % 1000);
  return all;
}

std::vector<int> times(int factor, std::vector<int> all) {
  for (int& one : all) one *= factor;
  return all;
}

/// The usual prices for all: which inputs travel so does not depend on what is measured.
void set_hosts_of_one() {
  setenv("TEST_RANKS_PER_HOST", "1", 1);
  setenv("TUTTI_CALIBRATE", "0", 1);
}
void unset_hosts() {
  unsetenv("TEST_RANKS_PER_HOST");
  unsetenv("TUTTI_CALIBRATE");
}

/// All ranks on one core, so that lines go by a hub, rank 0. On any machine: else how many cores it has decides.
/// Of those that are usable, in order.
std::string stay_on_core(int number) {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return "sched_getaffinity";
  int core = 0;
  while (!CPU_ISSET(core, &set) || number-- != 0) ++core;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  return sched_setaffinity(0, sizeof set, &set) == 0 ? "" : "sched_setaffinity";
}
std::string share_a_core() { return stay_on_core(0); }

int usable_cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

std::string all_reduce(const Member& m, std::size_t count, int base, bool in_place, ncclComm_t comm) {
  const std::vector<int> wanted = sum(count, base, m.ranks);
  std::vector<int> in = numbers(count, base, m.rank);
  std::vector<int> out(in_place ? 0 : count, -1);
  std::vector<int>& found = in_place ? in : out;
  CREW_TRY(fine(ncclAllReduce(in.data(), found.data(), count, ncclInt, ncclSum, comm, nullptr), "ncclAllReduce"));
  return first_wrong(found, wanted, in_place ? "all-reduce in place" : "all-reduce");
}

std::string all_gather(const Member& m, std::size_t count, int base, bool in_place, ncclComm_t comm) {
  std::vector<int> wanted;
  for (int rank = 0; rank < m.ranks; ++rank) {
    const std::vector<int> its = numbers(count, base, rank);
    wanted.insert(wanted.end(), its.begin(), its.end());
  }
  const std::vector<int> in = numbers(count, base, m.rank);
  std::vector<int> out(wanted.size(), -1);
  int* const own = out.data() + static_cast<std::size_t>(m.rank) * count;
  if (in_place) std::copy(in.begin(), in.end(), own);
  CREW_TRY(fine(ncclAllGather(in_place ? own : in.data(), out.data(), count, ncclInt, comm, nullptr), "ncclAllGather"));
  return first_wrong(out, wanted, in_place ? "all-gather in place" : "all-gather");
}

/// A rank may be ahead of the other one by it.
std::string broadcast(const Member& m, std::size_t count, int base, int root, ncclComm_t comm) {
  std::vector<int> buffer = numbers(count, base, m.rank);
  CREW_TRY(fine(ncclBroadcast(buffer.data(), buffer.data(), count, ncclInt, root, comm, nullptr), "ncclBroadcast"));
  return first_wrong(buffer, numbers(count, base, root), "broadcast");
}

/// Sums of sums: the first call's output is the second one's input, and the third one's.
std::string group(const Member& m, std::size_t count, int base, ncclComm_t comm) {
  std::vector<int> buffer = numbers(count, base, m.rank);
  std::vector<int> last(count, -1);
  CREW_TRY(fine(ncclGroupStart(), "ncclGroupStart"));
  for (int call = 0; call < 2; ++call)
    CREW_TRY(fine(ncclAllReduce(buffer.data(), buffer.data(), count, ncclInt, ncclSum, comm, nullptr), "in a group"));
  CREW_TRY(fine(ncclAllReduce(buffer.data(), last.data(), count, ncclInt, ncclSum, comm, nullptr), "in a group"));
  CREW_TRY(fine(ncclGroupEnd(), "ncclGroupEnd"));
  const std::vector<int> twice = times(m.ranks, sum(count, base, m.ranks));
  CREW_TRY(first_wrong(buffer, twice, "in a group, all-reduce"));
  return first_wrong(last, times(m.ranks, twice), "the last in a group, all-reduce");
}

std::string average(const Member& m, std::size_t count, ncclComm_t comm) {
  const auto ranks = static_cast<float>(m.ranks);
  std::vector<float> values(count, ranks * static_cast<float>(m.rank));
  CREW_TRY(fine(ncclAllReduce(values.data(), values.data(), count, ncclFloat, ncclAvg, comm, nullptr), "ncclAvg"));
  const float wanted = ranks * (ranks - 1) / 2;
  const bool right = std::ranges::all_of(values, [=](float value) { return value == wanted; });
  return right ? "" : "the average is not " + std::to_string(wanted) + " everywhere";
}

/// `same`: alike on both ranks.
std::string any_call(const Member& m, std::mt19937& same, ncclComm_t comm) {
  const std::size_t count = kCounts[same() % std::size(kCounts)];
  const auto base = static_cast<int>(same() % 1000);
  const bool in_place = same() % 2 == 0;
  switch (same() % 6) {
    case 0:
    case 1: return all_reduce(m, count, base, in_place, comm);
    case 2: return all_gather(m, count, base, in_place, comm);
    case 3: return broadcast(m, std::min<std::size_t>(count, 1000), base, in_place ? 0 : m.ranks - 1, comm);
    case 4: return group(m, count, base, comm);
    default: return average(m, count, comm);
  }
}

}  // namespace

TEST_CASE("inputs that travel with the lines of hosts arrive whole, whoever is late", "[hosts]") {
  set_hosts_of_one();
  const unsigned seed = std::random_device()();
  INFO("seed " << seed);
  struct Case {
    int ranks;
    const char* sockets;
    int calls;
    bool one_core = false;
  };
  for (const Case& with : {Case{2, "1", 600},
                           {2, "3", 600},
                           {3, "1", 300},
                           {4, "1", 300},
                           {4, "3", 100},
                           {8, "1", 60},
                           {3, "1", 300, true},
                           {5, "3", 100, true}}) {
    INFO(with.ranks << " ranks, " << with.sockets << " sockets for a pair" << (with.one_core ? ", on one core" : ""));
    setenv("NCCL_NSOCKS_PERTHREAD", with.sockets, 1);
    crew::check(crew::run(with.ranks, [seed, with](const Member& m) -> std::string {
      if (with.one_core) CREW_TRY(share_a_core());
      ncclComm_t comm = nullptr;
      CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
      std::mt19937 same(seed);
      std::mt19937 own(seed + 1 + static_cast<unsigned>(m.rank));
      for (int call = 0; call < with.calls; ++call) {
        if (own() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 3000));
        const std::string wrong = any_call(m, same, comm);
        if (!wrong.empty()) return "call " + std::to_string(call) + ": " + wrong;
      }
      return fine(ncclCommDestroy(comm), "ncclCommDestroy");
    }));
  }
  unsetenv("NCCL_NSOCKS_PERTHREAD");
  unset_hosts();
}

namespace {

/// In an all-reduce so often, and nothing else.
std::string sends_its_input(const Member& m, int times, ncclComm_t comm) {
  const std::size_t count = kLongest / 4;
  std::uint64_t before = 0;
  std::uint64_t after = 0;
  CREW_TRY(fine(tuttiCommWireBytes(comm, &before), "tuttiCommWireBytes"));
  CREW_TRY(all_reduce(m, count, 1, false, comm));
  CREW_TRY(fine(tuttiCommWireBytes(comm, &after), "tuttiCommWireBytes"));
  const std::uint64_t bytes = static_cast<std::uint64_t>(times) * count * sizeof(int);
  if (after - before < bytes || after - before > bytes + bytes / 32)
    return std::to_string(bytes) + " bytes: " + std::to_string(after - before) + " crossed";
  return "";
}

}  // namespace

TEST_CASE(
    "an input leaves three hosts for each other one, four hosts for each of two doublings, hosts of one core for a hub",
    "[hosts]") {
  set_hosts_of_one();
  struct Case {
    int ranks;
    bool one_core;
  };
  for (const Case& with : {Case{3, false}, {4, false}, {3, true}, {5, true}}) {
    if (!with.one_core && usable_cores() < with.ranks) continue;
    INFO(with.ranks << " ranks" << (with.one_core ? ", on one core" : ""));
    crew::check(crew::run(with.ranks, [one_core = with.one_core](const Member& m) -> std::string {
      if (one_core) CREW_TRY(share_a_core());
      ncclComm_t comm = nullptr;
      CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
      CREW_TRY(sends_its_input(m, !one_core ? 2 : m.rank == 0 ? m.ranks - 1 : 1, comm));
      return fine(ncclCommDestroy(comm), "ncclCommDestroy");
    }));
  }
  unset_hosts();
}

namespace {

/// Whose sums depend on the order in which they are added up.
std::vector<float> fractions(std::size_t count, int rank) {
  std::mt19937 random(static_cast<unsigned>(rank) + 1);
  std::vector<float> all(count);
  for (float& one : all)
    one = std::ldexp(static_cast<float>(random() % 65536) - 32768.0F, static_cast<int>(random() % 40) - 20);
  return all;
}

std::vector<float> added_in_rank_order(std::size_t count, int ranks) {
  std::vector<float> all = fractions(count, 0);
  for (int rank = 1; rank < ranks; ++rank) {
    const std::vector<float> its = fractions(count, rank);
    std::ranges::transform(all, its, all.begin(), std::plus<>());
  }
  return all;
}

/// In rank order where that was asked for; else the same on all ranks.
std::string check_bits(const Member& m, bool in_rank_order, ncclComm_t comm) {
  const std::size_t count = kLongest / 4;
  const std::vector<float> in = fractions(count, m.rank);
  std::vector<float> out(count, -1);
  CREW_TRY(fine(ncclAllReduce(in.data(), out.data(), count, ncclFloat, ncclSum, comm, nullptr), "ncclAllReduce"));
  const bool same = std::memcmp(out.data(), added_in_rank_order(count, m.ranks).data(), count * sizeof(float)) == 0;
  if (in_rank_order && !same) return "the sums are not in rank order";
  std::vector<float> all(count * static_cast<std::size_t>(m.ranks));
  CREW_TRY(fine(ncclAllGather(out.data(), all.data(), count, ncclFloat, comm, nullptr), "ncclAllGather"));
  for (int rank = 0; rank < m.ranks; ++rank) {
    const float* const its = all.data() + static_cast<std::size_t>(rank) * count;
    if (std::memcmp(its, out.data(), count * sizeof(float)) != 0)
      return "rank " + std::to_string(rank) + " has other bits";
  }
  return "";
}

}  // namespace

TEST_CASE("sums that are added up on the way have the same bits on all ranks, in rank order where that is asked for",
          "[hosts]") {
  set_hosts_of_one();
  for (const int kind : {0, 1, 2}) {
    for (const int ranks : {3, 4, 8}) {
      const bool one_core = kind == 2;  // whose hub adds up in rank order in any case
      const bool in_rank_order = kind != 0;
      INFO(ranks << " ranks" << (in_rank_order ? ", in rank order" : "") << (one_core ? ", on one core" : ""));
      setenv("TUTTI_REPRODUCIBLE", kind == 1 ? "1" : "0", 1);
      crew::check(crew::run(ranks, [in_rank_order, one_core](const Member& m) -> std::string {
        if (one_core) CREW_TRY(share_a_core());
        ncclComm_t comm = nullptr;
        CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
        CREW_TRY(check_bits(m, in_rank_order, comm));
        return fine(ncclCommDestroy(comm), "ncclCommDestroy");
      }));
    }
  }
  unsetenv("TUTTI_REPRODUCIBLE");
  unset_hosts();
}

TEST_CASE("between two ranks on two hosts an input crosses once, with its line or through slots", "[hosts]") {
  set_hosts_of_one();
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    ncclComm_t comm = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
    for (const std::size_t count : {kLongest / 8, kLongest, 2 * kLongest}) {
      std::uint64_t before = 0;
      std::uint64_t after = 0;
      CREW_TRY(fine(tuttiCommWireBytes(comm, &before), "tuttiCommWireBytes"));
      CREW_TRY(all_reduce(m, count, 1, false, comm));
      CREW_TRY(fine(tuttiCommWireBytes(comm, &after), "tuttiCommWireBytes"));
      const std::uint64_t sent = after - before;
      const std::uint64_t bytes = count * sizeof(int);
      if (sent < bytes || sent > bytes + bytes / 32)
        return std::to_string(bytes) + " bytes: " + std::to_string(sent) + " crossed";
    }
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
  unset_hosts();
}

namespace {

/// Of one rank the count of a call is another one, now of such a call too, now of a short one. Who is late sends its line by itself.
std::string make_calls_that_differ(const Member& m, ncclComm_t comm) {
  std::mt19937 own(static_cast<unsigned>(m.rank));
  for (int round = 0; round < 20; ++round) {
    const bool odd = m.rank == (round + 1) % m.ranks;
    const std::size_t count = !odd ? 16384 : round % 3 == 0 ? 7 : 16385;
    std::vector<int> buffer(count, 3);
    if (own() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 4000));
    CREW_TRY(crew::refused(ncclAllReduce(buffer.data(), buffer.data(), count, ncclInt, ncclSum, comm, nullptr),
                           ncclInvalidUsage, {"differ", "count 16384", "count " + std::to_string(count)}, comm));
    if (std::ranges::any_of(buffer, [](int value) { return value != 3; })) return "a refused call wrote its output";
    for (int call = 0; call < round % 3; ++call) CREW_TRY(all_reduce(m, 16384, round, call == 0, comm));
  }
  return "";
}

/// One rank, late, sums what the others gather, of the same size.
std::string sum_what_others_gather(const Member& m, ncclComm_t comm) {
  constexpr std::size_t kCount = 16384;
  for (int round = 0; round < 3 * m.ranks; ++round) {
    std::vector<int> input(kCount, 3), output(kCount * static_cast<std::size_t>(m.ranks), 5);
    const bool odd = m.rank == round % m.ranks;
    if (odd) std::this_thread::sleep_for(std::chrono::milliseconds(3));
    const ncclResult_t result =
        odd ? ncclAllReduce(input.data(), output.data(), kCount, ncclInt, ncclSum, comm, nullptr)
            : ncclAllGather(input.data(), output.data(), kCount, ncclInt, comm, nullptr);
    CREW_TRY(crew::refused(result, ncclInvalidUsage, {"differ"}, comm));
    if (std::ranges::any_of(output, [](int value) { return value != 5; })) return "a refused call wrote its output";
    CREW_TRY(all_reduce(m, kCount, round, false, comm));
  }
  return "";
}

}  // namespace

TEST_CASE("inputs that came with the lines of calls that differ are nobody's", "[hosts]") {
  set_hosts_of_one();
  for (const int ranks : {2, 3, 4, -3, -4}) {
    const bool one_core = ranks < 0;
    INFO(std::abs(ranks) << " ranks" << (one_core ? ", on one core" : ""));
    crew::check(crew::run(std::abs(ranks), [one_core](const Member& m) -> std::string {
      if (one_core) CREW_TRY(share_a_core());
      ncclComm_t comm = nullptr;
      CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
      CREW_TRY(make_calls_that_differ(m, comm));
      CREW_TRY(sum_what_others_gather(m, comm));
      return fine(ncclCommDestroy(comm), "ncclCommDestroy");
    }));
  }
  unset_hosts();
}

TEST_CASE("the hub is the rank that has most of a core", "[hosts]") {
  if (usable_cores() < 2) return;
  set_hosts_of_one();
  crew::check(crew::run(3, [](const Member& m) -> std::string {
    CREW_TRY(stay_on_core(m.rank % 2));
    ncclComm_t comm = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
    CREW_TRY(sends_its_input(m, m.rank == 1 ? 2 : 1, comm));
    CREW_TRY(make_calls_that_differ(m, comm));
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
  unset_hosts();
}
