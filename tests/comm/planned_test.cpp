// Collectives that follow the trees of a machine's plan, on as many lanes as it has: the machine is a model's file. And schedules of
// many lanes that are set, on one host and on several.
#include "crew.h"

#include <tutti/tutti.h>

#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <vector>

namespace {

using crew::fine;
using crew::Member;

constexpr std::size_t kCounts[] = {1, 257, 70001};

/// Ints that depend on rank and place.
int value(int rank, std::size_t i) { return rank * 1000003 + static_cast<int>(i) * 7 + 1; }
int sum(int ranks, std::size_t i) {
  unsigned total = 0;
  for (int r = 0; r < ranks; ++r) total += static_cast<unsigned>(value(r, i));
  return static_cast<int>(total);
}

class Ints {
 public:
  Ints(bool shared, std::size_t count) : shared_(shared), count_(count) {
    if (!shared) {
      data_ = new int[count];
    } else if (ncclMemAlloc(reinterpret_cast<void**>(&data_), count * sizeof(int)) != ncclSuccess) {
      abort();
    }
    std::fill(data_, data_ + count, -77);
  }
  ~Ints() {
    if (shared_) {
      ncclMemFree(data_);
    } else {
      delete[] data_;
    }
  }
  Ints(const Ints&) = delete;
  Ints& operator=(const Ints&) = delete;
  int* get() const { return data_; }
  void fill(std::size_t from, std::size_t count, int rank) const {
    for (std::size_t i = 0; i < count; ++i) data_[from + i] = value(rank, i);
  }
  template <class Wanted>
  std::string check(const char* what, std::size_t from, std::size_t count, const Wanted& wanted) const {
    for (std::size_t i = 0; i < count_; ++i) {
      const bool inside = from <= i && i < from + count;
      if (!inside || data_[i] == wanted(i - from)) continue;
      return std::string(what) + " of " + std::to_string(count) + ": element " + std::to_string(i) + " is " +
             std::to_string(data_[i]) + ", should be " + std::to_string(wanted(i - from));
    }
    return "";
  }

 private:
  bool shared_;
  std::size_t count_;
  int* data_ = nullptr;
};

std::string all_reduce(const Member& me, ncclComm_t comm, std::size_t n, bool shared, bool in_place) {
  const Ints in(shared, n), out(shared, n);
  const Ints& from = in_place ? out : in;
  from.fill(0, n, me.rank);
  CREW_TRY(fine(ncclAllReduce(from.get(), out.get(), n, ncclInt, ncclSum, comm, nullptr), "ncclAllReduce"));
  return out.check("ncclAllReduce", 0, n, [&](std::size_t i) { return sum(me.ranks, i); });
}

std::string all_gather(const Member& me, ncclComm_t comm, std::size_t n, bool shared, bool in_place) {
  const std::size_t mine = n * static_cast<std::size_t>(me.rank);
  const Ints in(shared, n), out(shared, n * static_cast<std::size_t>(me.ranks));
  (in_place ? out : in).fill(in_place ? mine : 0, n, me.rank);
  const int* const from = in_place ? out.get() + mine : in.get();
  CREW_TRY(fine(ncclAllGather(from, out.get(), n, ncclInt, comm, nullptr), "ncclAllGather"));
  return out.check("ncclAllGather", 0, n * static_cast<std::size_t>(me.ranks),
                   [&](std::size_t i) { return value(static_cast<int>(i / n), i % n); });
}

std::string reduce_scatter(const Member& me, ncclComm_t comm, std::size_t n, bool shared, bool in_place) {
  const std::size_t mine = n * static_cast<std::size_t>(me.rank);
  const Ints in(shared, n * static_cast<std::size_t>(me.ranks)), out(shared, n);
  in.fill(0, n * static_cast<std::size_t>(me.ranks), me.rank);
  const Ints& results = in_place ? in : out;
  const std::size_t at = in_place ? mine : 0;
  CREW_TRY(
      fine(ncclReduceScatter(in.get(), results.get() + at, n, ncclInt, ncclSum, comm, nullptr), "ncclReduceScatter"));
  return results.check("ncclReduceScatter", at, n, [&](std::size_t i) { return sum(me.ranks, mine + i); });
}

/// What runs on one lane, and on that of sends and receives, between calls on many.
std::string others(const Member& me, ncclComm_t comm, std::size_t n) {
  const Ints out(false, n), in(false, n);
  out.fill(0, n, me.rank);
  const int next = (me.rank + 1) % me.ranks, previous = (me.rank + me.ranks - 1) % me.ranks;
  ncclGroupStart();
  ncclSend(out.get(), n, ncclInt, next, comm, nullptr);
  ncclRecv(in.get(), n, ncclInt, previous, comm, nullptr);
  CREW_TRY(fine(ncclGroupEnd(), "ncclGroupEnd"));
  CREW_TRY(in.check("ncclRecv", 0, n, [&](std::size_t i) { return value(previous, i); }));
  CREW_TRY(fine(ncclBroadcast(out.get(), in.get(), n, ncclInt, 1, comm, nullptr), "ncclBroadcast"));
  return in.check("ncclBroadcast", 0, n, [&](std::size_t i) { return value(1, i); });
}

std::string everything(const Member& me, ncclComm_t comm) {
  for (const std::size_t n : kCounts) {
    for (const bool shared : {false, true}) {
      for (const bool in_place : {false, true}) {
        CREW_TRY(all_reduce(me, comm, n, shared, in_place));
        CREW_TRY(all_gather(me, comm, n / 8 + 1, shared, in_place));
        CREW_TRY(reduce_scatter(me, comm, n / 8 + 1, shared, in_place));
      }
    }
    CREW_TRY(others(me, comm, n));
  }
  return "";
}

std::string explained(ncclComm_t comm, tuttiCollective_t collective) {
  std::size_t needed = 0;
  if (tuttiExplain(comm, collective, 70001, ncclInt, ncclSum, 0, nullptr, 0, &needed) != ncclSuccess)
    return ncclGetLastError(comm);
  std::string text(needed, '\0');
  static_cast<void>(tuttiExplain(comm, collective, 70001, ncclInt, ncclSum, 0, text.data(), text.size(), nullptr));
  return text;
}

struct Runs {
  tuttiCollective_t collective;
  std::string what;  ///< of the explanation
};

/// Ranks of one host whose machine is the file's, and that run nothing but its trees where there are some.
void run_on(const std::string& file, int ranks, const std::string& algorithm, const std::vector<Runs>& wanted) {
  INFO(file);
  crew::check(crew::run(
      ranks,
      [&](const Member& me) -> std::string {
        setenv("NCCL_TOPO_FILE", file.c_str(), 1);
        setenv("TUTTI_SLOT_BYTES", "4096", 1);  // several rounds
        setenv("NCCL_ALGO", algorithm.c_str(), 1);
        setenv("TUTTI_TOPOLOGY_LIBRARY", TUTTI_PLUG_IN, 1);
        ncclComm_t comm = nullptr;
        CREW_TRY(fine(ncclCommInitRank(&comm, me.ranks, me.ids[0], me.rank), "ncclCommInitRank"));
        for (const Runs& runs : wanted) {
          const std::string text = explained(comm, runs.collective);
          if (text.find("\nschedule " + runs.what) == std::string::npos) return "not " + runs.what + ": " + text;
        }
        CREW_TRY(everything(me, comm));
        return fine(ncclCommDestroy(comm), "ncclCommDestroy");
      },
      60, 1));
}

/// Every lane a chain of sums to the last rank, and of results back.
std::string chains(int ranks, int lanes) {
  std::string text = "schedule chains all_reduce ranks " + std::to_string(ranks) + " units 1 lanes " +
                     std::to_string(lanes) + " input 1 output 1 scratch 0\n";
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string before = std::to_string(rank - 1), after = std::to_string(rank + 1);
    for (int lane = 0; lane < lanes; ++lane) {
      text += "rank " + std::to_string(rank) + " lane " + std::to_string(lane) + "\n  ";
      if (rank > 0) text += "recv " + before + (rank > 1 ? " partial + " : " + ");
      text += "in[0.0] -> ";
      if (rank + 1 == ranks) {
        text += "out[0.0], send " + before + " finish\n";
        continue;
      }
      text += "send " + after + (rank > 0 ? " partial" : "") + "\n  recv " + after + " -> out[0.0]" +
              (rank > 0 ? ", send " + before : "") + "\n";
    }
  }
  return text;
}

std::string set_and_run(const Member& me, int lanes) {
  ncclComm_t comm = nullptr;
  CREW_TRY(fine(ncclCommInitRank(&comm, me.ranks, me.ids[0], me.rank), "ncclCommInitRank"));
  CREW_TRY(others(me, comm, 70001));
  CREW_TRY(fine(tuttiCommSetSchedule(comm, chains(me.ranks, lanes).c_str(), nullptr), "tuttiCommSetSchedule"));
  for (const std::size_t n : kCounts) {
    for (const bool in_place : {false, true}) CREW_TRY(all_reduce(me, comm, n, false, in_place));
    CREW_TRY(others(me, comm, n));
  }
  CREW_TRY(crew::refused(tuttiCommSetSchedule(comm, chains(me.ranks, 33).c_str(), nullptr), ncclInvalidUsage,
                         {"the schedule has 33 lanes; communicators have channels for 32"}, comm));
  return fine(ncclCommDestroy(comm), "ncclCommDestroy");
}

}  // namespace

TEST_CASE("collectives are right on all lanes of a machine's trees", "[planned]") {
  const std::string models = TUTTI_MODELS;
  run_on(models + "/mi250x.topo", 8, "packed_trees",
         {{tuttiAllReduce, "packed_trees all_reduce ranks 8 units 24 lanes 10"},
          {tuttiAllGather, "packed_trees all_gather ranks 8 units 40 lanes 5"},
          {tuttiReduceScatter, "packed_trees reduce_scatter ranks 8 units 40 lanes 5"}});
  run_on(models + "/dgx-1v.topo", 8, "packed_trees",
         {{tuttiAllReduce, "packed_trees all_reduce ranks 8 units 32 lanes 24"}});
}

TEST_CASE("a schedule of many lanes runs on one host and over several", "[planned]") {
  for (const int lanes : {3, 32}) {
    INFO(lanes << " lanes");
    crew::check(crew::run(
        3, [lanes](const Member& me) { return set_and_run(me, lanes); }, 60, 1));
    crew::check(crew::run(
        3,
        [lanes](const Member& me) {
          setenv("NCCL_HOSTID", me.rank < 2 ? "host-a" : "host-b", 1);
          return set_and_run(me, lanes);
        },
        60, 1));
  }
}
