// Among many hosts of one rank or two, where announce lines go by other hosts (first_routes() in carriers.h): calls come out right whoever is
// late, and who does not come, dies, is stopped, gives up or calls something else is named as among few.
#include "crew.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

namespace {

using crew::fine;
using crew::Member;
using crew::refused;

/// Ranks, and how many of them each host has.
struct Shape {
  int ranks;
  const char* per_host;
};
/// Each host sends to those 1, 2, 4 ... ahead of it; pairs of hosts exchange; on a host of two one rank takes what the other one passes on.
constexpr Shape kAhead{18, "1"};
constexpr Shape kPairs{32, "1"};
constexpr Shape kOfTwo{25, "1,2"};

/// Passes on others' lines, and what it passes on is passed on by others again.
constexpr int kCulprit = 9;

std::vector<crew::Ending> run(const Shape& shape, const crew::Body& body, int id_count = 1) {
  INFO(shape.ranks << " ranks, " << shape.per_host << " on a host");
  setenv("TEST_RANKS_PER_HOST", shape.per_host, 1);
  std::vector<crew::Ending> endings = crew::run(shape.ranks, body, 60, id_count);
  unsetenv("TEST_RANKS_PER_HOST");
  return endings;
}

std::string name(int rank) { return "rank " + std::to_string(rank); }

ncclResult_t small_sum(ncclComm_t comm) {
  int value = 1;
  return ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, comm, nullptr);
}

/// The same call on all ranks, with what lies in the lines or beside them.
std::string mixed_call(int rank, int ranks, std::mt19937& same, ncclComm_t comm) {
  const std::size_t count = same() % 2 == 0 ? 100 : 1 + same() % 8;
  const auto root = static_cast<int>(same() % static_cast<unsigned>(ranks));
  const auto base = static_cast<int>(same() % 1000);
  const unsigned kind = same() % 3;
  const std::vector<int> in(count, base + rank);
  std::vector<int> out(count, -1), wanted(count, base * ranks + ranks * (ranks - 1) / 2);
  if (kind == 0) {
    CREW_TRY(fine(ncclAllReduce(in.data(), out.data(), count, ncclInt, ncclSum, comm, nullptr), "ncclAllReduce"));
  } else if (kind == 1) {
    CREW_TRY(fine(ncclBroadcast(in.data(), out.data(), count, ncclInt, root, comm, nullptr), "ncclBroadcast"));
    wanted.assign(count, base + root);
  } else {
    out.assign(static_cast<std::size_t>(ranks), -1);
    wanted.clear();
    for (int r = 0; r < ranks; ++r) wanted.push_back(base + r);
    CREW_TRY(fine(ncclAllGather(in.data(), out.data(), 1, ncclInt, comm, nullptr), "ncclAllGather"));
  }
  return out == wanted ? "" : "kind " + std::to_string(kind) + " of " + std::to_string(count) + " came out wrong";
}

std::string mixed_calls(int rank, int ranks, int calls, unsigned seed, ncclComm_t comm) {
  std::mt19937 same(seed);
  std::mt19937 own(seed + 1 + static_cast<unsigned>(rank));
  for (int call = 0; call < calls; ++call) {
    // Long enough for the others to send on what they have.
    if (own() % 64 == 0) usleep(own() % 5000);
    if (const std::string wrong = mixed_call(rank, ranks, same, comm); !wrong.empty())
      return "call " + std::to_string(call) + ": " + wrong;
  }
  return "";
}

/// Calls until one fails; it has to, with these words.
std::string fail_with(ncclComm_t comm, const std::vector<std::string>& words) {
  ncclResult_t result = ncclSuccess;
  for (const double began = crew::now_s(); result == ncclSuccess && crew::now_s() - began < 30;)
    result = small_sum(comm);
  return refused(result, ncclRemoteError, words, comm);
}

}  // namespace

TEST_CASE("lines that other hosts pass on come to all, whoever is late and leaves at once", "[many]") {
  const unsigned seed = std::random_device()();
  INFO("seed " << seed);
  for (const Shape& shape : {kAhead, kPairs, kOfTwo}) {
    crew::check(run(shape, [seed](const Member& m) -> std::string {
      ncclComm_t comm = nullptr, child = nullptr;
      CREW_TRY(init(m, &comm));
      CREW_TRY(mixed_calls(m.rank, m.ranks, 100, seed, comm));
      // A child of so many hosts that it does the same, and one of two ranks.
      const int first = m.ranks - 2;
      CREW_TRY(fine(ncclCommSplit(comm, m.rank < first ? 0 : 1, m.rank, &child, nullptr), "ncclCommSplit"));
      const bool is_second = m.rank >= first;
      CREW_TRY(mixed_calls(is_second ? m.rank - first : m.rank, is_second ? 2 : first, 20, seed, child));
      CREW_TRY(fine(ncclCommDestroy(child), "ncclCommDestroy of the child"));
      return fine(ncclCommDestroy(comm), "ncclCommDestroy");
    }));
  }
}

TEST_CASE("who does not come is named, though others wait for what they are to pass on", "[many]") {
  for (const Shape& shape : {kAhead, kPairs, kOfTwo}) {
    crew::check(run(shape, [](const Member& m) -> std::string {
      setenv("TUTTI_TIMEOUT_S", "5", 1);
      ncclComm_t comm = nullptr;
      CREW_TRY(init(m, &comm));
      CREW_TRY(crew::usable(comm));
      if (m.rank == kCulprit) {
        ncclResult_t state = ncclSuccess;
        while (state == ncclSuccess) CREW_TRY(fine(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError"));
      } else {
        CREW_TRY(refused(small_sum(comm), ncclRemoteError, {"s for " + name(kCulprit) + " (TUTTI_TIMEOUT_S)"}, comm));
      }
      return fine(ncclCommAbort(comm), "ncclCommAbort");
    }));
  }
}

namespace {

struct Shared {
  std::atomic<int> ready{0};   ///< ranks that are through with the calls before
  std::atomic<int> failed{0};  ///< and that know of the failure
};

/// A process beside this one, which ends it once the other ranks know of the failure, though it is stopped.
void be_ended_once_known(const Shared* shared, int others) {
  const pid_t self = getpid();
  if (fork() != 0) return;
  for (int ms = 0; shared->failed != others && getppid() == self && ms < 40000; ++ms) usleep(1000);
  if (getppid() == self) kill(self, SIGKILL);
  _exit(0);
}

}  // namespace

TEST_CASE("a rank that dies, is stopped or gives up is named, though it passed on others' lines", "[many]") {
  enum class End { kDies, kStops, kAborts };
  for (const Shape& shape : {kAhead, kOfTwo}) {
    for (const End end : {End::kDies, End::kStops, End::kAborts}) {
      INFO((end == End::kDies ? "dies" : end == End::kStops ? "is stopped" : "gives up"));
      auto* const shared = new (crew::shared_page()) Shared;
      const auto endings = run(shape, [end, shared](const Member& m) -> std::string {
        if (m.rank == kCulprit && end == End::kStops) be_ended_once_known(shared, m.ranks - 1);
        setenv("TUTTI_HEARTBEAT_TIMEOUT_S", "5", 1);
        ncclComm_t comm = nullptr;
        CREW_TRY(init(m, &comm));
        CREW_TRY(crew::usable(comm));
        ++shared->ready;
        if (m.rank == kCulprit) {
          while (shared->ready != m.ranks) usleep(1000);
          if (end == End::kAborts) return fine(ncclCommAbort(comm), "ncclCommAbort");
          raise(end == End::kStops ? SIGSTOP : SIGKILL);
        }
        const std::string what = end == End::kAborts ? " has left" : " (";
        CREW_TRY(fail_with(comm, {name(kCulprit) + what}));
        ++shared->failed;
        // The others go on, and are on as many hosts.
        ncclComm_t rest = nullptr;
        int excluded = kCulprit;
        CREW_TRY(fine(ncclCommShrink(comm, &excluded, 1, &rest, nullptr, NCCL_SHRINK_ABORT), "ncclCommShrink"));
        CREW_TRY(crew::usable(rest));
        CREW_TRY(fine(ncclCommDestroy(rest), "ncclCommDestroy of those that are left"));
        return fine(ncclCommAbort(comm), "ncclCommAbort");
      });
      crew::check(endings, end == End::kAborts ? std::vector<int>{} : std::vector<int>{kCulprit});
    }
  }
}

TEST_CASE("a rank that dies while what ranks say of themselves is passed on by others is named", "[many]") {
  for (const long us : {0, 30000, 60000, 120000}) {
    INFO("after " << us << " us");
    const auto endings = run(kAhead, [us](const Member& m) -> std::string {
      if (m.rank == kCulprit) {
        std::thread([us] {
          usleep(static_cast<useconds_t>(1000000 + us));
          raise(SIGKILL);
        }).detach();
      }
      if (m.rank == kCulprit + 1) usleep(1000000);  // none is through before
      ncclComm_t comm = nullptr;
      const ncclResult_t made = ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank);
      if (made != ncclSuccess) return refused(made, ncclRemoteError, {name(kCulprit)});
      CREW_TRY(fail_with(comm, {name(kCulprit)}));
      return fine(ncclCommAbort(comm), "ncclCommAbort");
    });
    crew::check(endings, {kCulprit});
  }
}

TEST_CASE("calls that differ are told to all, though others pass them on", "[many]") {
  for (const Shape& shape : {kAhead, kOfTwo}) {
    crew::check(run(shape, [](const Member& m) -> std::string {
      ncclComm_t comm = nullptr;
      CREW_TRY(init(m, &comm));
      CREW_TRY(crew::usable(comm));
      for (const std::size_t count : {std::size_t{2}, std::size_t{100}, std::size_t{100000}}) {
        std::vector<int> in(count + 1, 1), out(count + 1, -1);
        const std::size_t mine = m.rank == kCulprit ? count + 1 : count;
        CREW_TRY(refused(ncclAllReduce(in.data(), out.data(), mine, ncclInt, ncclSum, comm, nullptr), ncclInvalidUsage,
                         {"nothing was done", " on " + name(kCulprit), name(0) + ", " + name(1)}, comm));
        if (out != std::vector<int>(count + 1, -1)) return "output was written";
        CREW_TRY(crew::usable(comm));
      }
      return fine(ncclCommDestroy(comm), "ncclCommDestroy");
    }));
  }
}
