// ncclCommShrink and ncclCommRevoke: communicators without ranks that are no longer wanted, or no longer there.
#include "crew.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <numeric>
#include <thread>

#include <pthread.h>
#include <unistd.h>

namespace {

using crew::fine;
using crew::Member;
using crew::refused;

bool holds(const std::vector<int>& ranks, int rank) { return std::ranges::find(ranks, rank) != ranks.end(); }

ncclResult_t shrink(ncclComm_t comm, std::vector<int> excluded, ncclComm_t* child, int flags = NCCL_SHRINK_DEFAULT) {
  return ncclCommShrink(comm, excluded.data(), static_cast<int>(excluded.size()), child, nullptr, flags);
}

/// The child has these ranks of the parent, in order, and each says who it was.
std::string check_child(ncclComm_t child, const std::vector<int>& members, int old_rank) {
  int count = 0, rank = 0;
  CREW_TRY(fine(ncclCommCount(child, &count), "ncclCommCount"));
  CREW_TRY(fine(ncclCommUserRank(child, &rank), "ncclCommUserRank"));
  if (count != static_cast<int>(members.size()) || members[static_cast<std::size_t>(rank)] != old_rank)
    return "rank " + std::to_string(rank) + " of " + std::to_string(count) + " in the child";
  std::vector<int> all(members.size(), -1);
  CREW_TRY(fine(ncclAllGather(&old_rank, all.data(), 1, ncclInt, child, nullptr), "ncclAllGather"));
  if (all != members) return "the child's ranks are others";
  return crew::usable(child);
}

std::vector<int> without(int ranks, const std::vector<int>& excluded) {
  std::vector<int> members;
  for (int r = 0; r < ranks; ++r) {
    if (!holds(excluded, r)) members.push_back(r);
  }
  return members;
}

/// The ranks that stay: a child that works.
std::string shrink_and_use(ncclComm_t comm, const Member& m, const std::vector<int>& excluded, int flags,
                           bool stays = true) {
  if (!stays) return "";
  ncclComm_t child = nullptr;
  CREW_TRY(fine(shrink(comm, excluded, &child, flags), "ncclCommShrink"));
  CREW_TRY(check_child(child, without(m.ranks, excluded), m.rank));
  return fine(ncclCommDestroy(child), "ncclCommDestroy of the child");
}

}  // namespace

TEST_CASE("ranks leave others out, again and again, and the parent stays usable") {
  const std::vector<std::vector<int>> lists = {{1}, {0}, {3, 0}, {0, 1, 3}, {1}, {1}, {2, 3}};
  crew::check(crew::run(4, [&](const Member& m) -> std::string {
    const auto before = crew::Belongings::count();
    ncclComm_t comm = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
    for (const std::vector<int>& excluded : lists) {
      if (!holds(excluded, m.rank)) CREW_TRY(shrink_and_use(comm, m, excluded, NCCL_SHRINK_DEFAULT));
    }
    CREW_TRY(crew::usable(comm));
    CREW_TRY(fine(ncclCommDestroy(comm), "ncclCommDestroy"));
    return crew::left_behind(before);
  }));
}

TEST_CASE("survivors of a killed rank go on without it") {
  for (const int flags : {NCCL_SHRINK_DEFAULT, NCCL_SHRINK_ABORT}) {
    for (const int victim : {0, 2}) {
      CAPTURE(flags, victim);
      crew::check(crew::run(4,
                            [&](const Member& m) -> std::string {
                              ncclComm_t comm = nullptr;
                              CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
                              std::vector<float> values(100000);
                              if (m.rank == victim) kill(getpid(), SIGKILL);
                              const ncclResult_t result = ncclAllReduce(values.data(), values.data(), values.size(),
                                                                        ncclFloat, ncclSum, comm, nullptr);
                              CREW_TRY(refused(result, ncclRemoteError, {"rank " + std::to_string(victim)}, comm));
                              CREW_TRY(shrink_and_use(comm, m, {victim}, flags));
                              return fine(ncclCommDestroy(comm), "ncclCommDestroy");
                            }),
                  {victim});
    }
  }
}

TEST_CASE("of many ranks a few are killed, and the others go on") {
  const std::vector<int> victims = {0, 7, 19};
  crew::check(crew::run(20,
                        [&](const Member& m) -> std::string {
                          ncclComm_t comm = nullptr;
                          CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
                          CREW_TRY(shrink_and_use(comm, m, {5}, NCCL_SHRINK_DEFAULT, m.rank != 5));
                          if (holds(victims, m.rank)) kill(getpid(), SIGKILL);
                          ncclResult_t state = ncclSuccess;
                          while (state == ncclSuccess) CREW_TRY(fine(ncclCommGetAsyncError(comm, &state), "the state"));
                          ncclComm_t child = nullptr;
                          // Not all know at once that all of them have died.
                          CREW_TRY(refused(shrink(comm, {0, 7}, &child), ncclRemoteError, {"rank 19 has ended"}, comm));
                          CREW_TRY(shrink_and_use(comm, m, victims, NCCL_SHRINK_ABORT));
                          return fine(ncclCommDestroy(comm), "ncclCommDestroy");
                        }),
              victims);
}

TEST_CASE("survivors that deaths have cut apart from each other go on together") {
  // Over hosts none of these watches another one, nor does anybody between them live.
  const std::vector<int> survivors = {0, 3, 10, 13};
  const std::vector<int> victims = without(20, survivors);
  crew::check(crew::run(20,
                        [&](const Member& m) -> std::string {
                          ncclComm_t comm = nullptr;
                          CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
                          if (holds(victims, m.rank)) kill(getpid(), SIGKILL);
                          ncclResult_t state = ncclSuccess;
                          while (state == ncclSuccess) CREW_TRY(fine(ncclCommGetAsyncError(comm, &state), "the state"));
                          std::vector<int> some = victims;
                          std::erase(some, 9);
                          ncclComm_t child = nullptr;
                          CREW_TRY(refused(shrink(comm, some, &child), ncclRemoteError,
                                           {"rank 9 ", "is not among the ranks to leave out"}, comm));
                          CREW_TRY(shrink_and_use(comm, m, victims, NCCL_SHRINK_DEFAULT));
                          return fine(ncclCommDestroy(comm), "ncclCommDestroy");
                        }),
              victims);
}

TEST_CASE("an abort shrinks away a rank that hangs, and ends its call too") {
  crew::check(crew::run(3, [](const Member& m) -> std::string {
    ncclComm_t comm = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
    int value = 1;
    if (m.rank == 1) {
      // The other two never make this call.
      const ncclResult_t result = ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, comm, nullptr);
      CREW_TRY(refused(result, ncclRemoteError, {"ncclCommShrink", "NCCL_SHRINK_ABORT"}, comm));
    } else {
      CREW_TRY(shrink_and_use(comm, m, {1}, NCCL_SHRINK_ABORT));
      const ncclResult_t result = ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, comm, nullptr);
      CREW_TRY(refused(result, ncclRemoteError, {"NCCL_SHRINK_ABORT"}, comm));
    }
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
}

TEST_CASE("lists that differ are told to both, and the parent stays usable") {
  crew::check(crew::run(4, [](const Member& m) -> std::string {
    ncclComm_t comm = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
    ncclComm_t child = nullptr;
    if (m.rank == 0)
      CREW_TRY(refused(shrink(comm, {2}, &child), ncclInvalidUsage, {"rank 0 leaves out 2", "rank 1 leaves out 2, 3"},
                       comm));
    if (m.rank == 1) {
      CREW_TRY(refused(shrink(comm, {3, 2}, &child), ncclInvalidUsage,
                       {"rank 0 leaves out 2", "rank 1 leaves out 2, 3"}, comm));
    }
    if (child) return "a communicator was made";
    CREW_TRY(crew::usable(comm));
    if (m.rank < 2) CREW_TRY(shrink_and_use(comm, m, {2, 3}, NCCL_SHRINK_DEFAULT));
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
}

TEST_CASE("lists that differ are told to all callers, whoever waits for whom, and retries meet") {
  crew::check(crew::run(4, [](const Member& m) -> std::string {
    ncclComm_t comm = nullptr, child = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
    for (int round = 0; round < 3; ++round) {
      // Ranks 0 and 2 want each other, 1 and 3 too, and each pair wants one of the other, which does not want both.
      CREW_TRY(refused(shrink(comm, {m.rank % 2 == 0 ? 3 : 2}, &child), ncclInvalidUsage,
                       {"leaves out 2", "leaves out 3", "pass the same ranks on every rank that stays"}, comm));
      if (child) return "a communicator was made";
      if (m.rank != 2) CREW_TRY(shrink_and_use(comm, m, {2}, NCCL_SHRINK_DEFAULT));
    }
    CREW_TRY(crew::usable(comm));
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
}

TEST_CASE("who comes to a shrink that the others have given up is told that their lists differed") {
  crew::check(crew::run(4, [](const Member& m) -> std::string {
    ncclComm_t comm = nullptr, child = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
    if (m.rank == 2) sleep(2);
    if (m.rank != 3) {
      const ncclResult_t result = m.rank == 1 ? shrink(comm, {2, 3}, &child) : shrink(comm, {3}, &child);
      CREW_TRY(refused(result, ncclInvalidUsage, {"rank 0 leaves out 3", "rank 1 leaves out 2, 3"}, comm));
    }
    CREW_TRY(crew::usable(comm));
    CREW_TRY(shrink_and_use(comm, m, {3}, NCCL_SHRINK_DEFAULT, m.rank != 3));
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
}

TEST_CASE("a rank that should stay but has died, left or given up is named") {
  crew::check(crew::run(4,
                        [](const Member& m) -> std::string {
                          ncclComm_t comm = nullptr, child = nullptr;
                          CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
                          if (m.rank == 3) kill(getpid(), SIGKILL);
                          if (m.rank == 2) return fine(ncclCommDestroy(comm), "ncclCommDestroy");
                          CREW_TRY(refused(shrink(comm, {2}, &child), ncclRemoteError, {"rank 3 has ended"}, comm));
                          CREW_TRY(refused(shrink(comm, {3}, &child), ncclRemoteError, {"rank 2 has left"}, comm));
                          CREW_TRY(shrink_and_use(comm, m, {2, 3}, NCCL_SHRINK_DEFAULT));
                          return fine(ncclCommDestroy(comm), "ncclCommDestroy");
                        }),
              {3});
}

TEST_CASE("ranks that learn of a second death at different times end up together") {
  crew::check(crew::run(4,
                        [](const Member& m) -> std::string {
                          ncclComm_t comm = nullptr, child = nullptr;
                          CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
                          if (m.rank == 3) kill(getpid(), SIGKILL);
                          if (m.rank == 2) {
                            usleep(100000);
                            kill(getpid(), SIGKILL);
                          }
                          // Rank 1 knows of rank 3 only, at first.
                          if (m.rank == 1)
                            CREW_TRY(refused(shrink(comm, {3}, &child), ncclRemoteError, {"rank 2 has ended"}, comm));
                          CREW_TRY(shrink_and_use(comm, m, {2, 3}, NCCL_SHRINK_ABORT));
                          return fine(ncclCommDestroy(comm), "ncclCommDestroy");
                        }),
              {2, 3});
}

TEST_CASE("whoever dies while others shrink is named by its number in the parent") {
  auto* const returned = static_cast<std::atomic<int>*>(crew::shared_page());
  for (int delay_us = 0; delay_us < 20000; delay_us += 800) {
    CAPTURE(delay_us);
    *returned = 0;
    crew::check(crew::run(4,
                          [&](const Member& m) -> std::string {
                            ncclComm_t comm = nullptr, child = nullptr;
                            CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
                            if (m.rank == 0) return fine(ncclCommDestroy(comm), "ncclCommDestroy");
                            std::thread death;
                            if (m.rank == 3) {
                              death = std::thread([&] {
                                usleep(static_cast<useconds_t>(delay_us));
                                kill(getpid(), SIGKILL);
                              });
                            }
                            const ncclResult_t result = shrink(comm, {0}, &child);
                            if (m.rank == 3) death.join();
                            const std::string reason = result == ncclSuccess ? "" : ncclGetLastError(comm);
                            // Nobody is to hear that the other one has left, or that it has ended.
                            for (++*returned; *returned < 2;) usleep(100);
                            // In the child rank 3 is rank 2.
                            const bool good = reason.empty() || reason.find("rank 3 has ended") != std::string::npos ||
                                              reason.find("gave up; its own error") != std::string::npos;
                            return good ? "" : reason;
                          }),
                {3});
  }
}

TEST_CASE("an abort of the parent ends a shrink whose other ranks never come") {
  crew::check(crew::run(3, [](const Member& m) -> std::string {
    ncclComm_t comm = nullptr, child = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
    if (m.rank != 0) return fine(ncclCommDestroy(comm), "ncclCommDestroy");
    // Rank 1 stays in the list; whichever comes first, its leaving or the abort, ends the wait.
    std::thread other([comm] {
      usleep(50000);
      ncclCommAbort(comm);
    });
    const ncclResult_t result = shrink(comm, {2}, &child);
    other.join();
    return result == ncclRemoteError || result == ncclInvalidUsage
               ? ""
               : "ncclCommShrink returned " + std::to_string(result);
  }));
}

TEST_CASE("threads of one process shrink in a group, with and without blocking") {
  for (const int blocking : {1, 0}) {
    CAPTURE(blocking);
    std::vector<ncclComm_t> parents(4), children(4, nullptr);
    REQUIRE(ncclCommInitAll(parents.data(), 4, nullptr) == ncclSuccess);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = blocking;
    int excluded = 2;
    REQUIRE(ncclGroupStart() == ncclSuccess);
    for (int r = 0; r < 4; ++r) {
      if (r != excluded)
        REQUIRE(ncclCommShrink(parents[r], &excluded, 1, &children[r], &config, NCCL_SHRINK_DEFAULT) == ncclSuccess);
    }
    const ncclResult_t ended = ncclGroupEnd();
    REQUIRE(ended == ncclSuccess);  // the parents block
    std::vector<int> values(4, 1);
    for (int r = 0; r < 4; ++r) {
      ncclResult_t state = ncclInProgress;
      while (children[r] && state == ncclInProgress) REQUIRE(ncclCommGetAsyncError(children[r], &state) == ncclSuccess);
      if (children[r]) REQUIRE(state == ncclSuccess);
    }
    REQUIRE(children[2] == nullptr);
    REQUIRE(ncclGroupStart() == ncclSuccess);
    for (int r = 0; r < 4; ++r) {
      if (children[r])
        REQUIRE(ncclAllReduce(&values[r], &values[r], 1, ncclInt, ncclSum, children[r], nullptr) == ncclSuccess);
    }
    const ncclResult_t summed = ncclGroupEnd();
    REQUIRE((summed == ncclSuccess || summed == ncclInProgress));
    for (int r = 0; r < 4; ++r) {
      if (children[r]) REQUIRE(ncclCommFinalize(children[r]) == ncclSuccess);
      if (children[r]) REQUIRE(ncclCommDestroy(children[r]) == ncclSuccess);
      REQUIRE(ncclCommDestroy(parents[r]) == ncclSuccess);
    }
    CHECK(values == std::vector<int>{3, 3, 1, 3});
  }
}

TEST_CASE("bad arguments of a shrink are refused, with the value") {
  std::vector<ncclComm_t> comms(3);
  REQUIRE(ncclCommInitAll(comms.data(), 3, nullptr) == ncclSuccess);
  ncclComm_t child = reinterpret_cast<ncclComm_t>(1);
  const auto check = [&](std::vector<int> list, int count, const std::string& part) {
    CHECK(ncclCommShrink(comms[1], list.data(), count, &child, nullptr, 0) == ncclInvalidArgument);
    CHECK_THAT(ncclGetLastError(nullptr), Catch::Contains(part));
    CHECK(child == nullptr);
  };
  check({0}, 0, "excludeRanksCount is 0");
  check({0}, -1, "excludeRanksCount is -1");
  check({0, 2, 1}, 3, "excludeRanksCount is 3");
  check({3}, 1, "excludeRanksList[0] is 3");
  check({0, -1}, 2, "excludeRanksList[1] is -1");
  check({1}, 1, "the rank that calls");
  check({2, 2}, 2, "rank 2 is in excludeRanksList twice");
  CHECK(ncclCommShrink(comms[1], nullptr, 1, &child, nullptr, 0) == ncclInvalidArgument);
  CHECK_THAT(ncclGetLastError(nullptr),
             Catch::Contains("excludeRanksList is NULL, but excludeRanksCount is 1; pass the address of"));
  int excluded = 0;
  CHECK(ncclCommShrink(comms[1], &excluded, 1, nullptr, nullptr, 0) == ncclInvalidArgument);
  CHECK(ncclCommShrink(nullptr, &excluded, 1, &child, nullptr, 0) == ncclInvalidArgument);
  CHECK(ncclCommShrink(comms[1], &excluded, 1, &child, nullptr, 2) == ncclInvalidArgument);
  CHECK_THAT(ncclGetLastError(nullptr), Catch::Contains("shrinkFlags is 2"));
  ncclComm_t lone = nullptr;
  REQUIRE(ncclCommInitAll(&lone, 1, nullptr) == ncclSuccess);
  CHECK(ncclCommShrink(lone, &excluded, 1, &child, nullptr, 0) == ncclInvalidArgument);
  CHECK_THAT(ncclGetLastError(nullptr), Catch::Contains("a communicator of one rank has no other to leave out"));
  REQUIRE(ncclCommDestroy(lone) == ncclSuccess);
  for (ncclComm_t comm : comms) REQUIRE(ncclCommDestroy(comm) == ncclSuccess);
}

TEST_CASE("a revoked communicator ends everybody's calls, and can be shrunk") {
  crew::check(crew::run(3, [](const Member& m) -> std::string {
    ncclComm_t comm = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
    int value = 1;
    if (m.rank == 0) {
      usleep(20000);
      CREW_TRY(refused(ncclCommRevoke(comm, 3), ncclInvalidArgument, {"revokeFlags is 3"}, comm));
      CREW_TRY(fine(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT), "ncclCommRevoke"));
      CREW_TRY(fine(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT), "a second ncclCommRevoke"));
    }
    const ncclResult_t result = ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, comm, nullptr);
    ncclResult_t state = ncclInProgress;
    CREW_TRY(fine(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError"));
    if (m.rank == 0) {
      CREW_TRY(refused(result, ncclInvalidUsage, {"the communicator was revoked", "ncclCommShrink"}, comm));
      ncclComm_t child = nullptr;
      CREW_TRY(refused(ncclCommSplit(comm, 0, 0, &child, nullptr), ncclInvalidUsage, {"was revoked"}, comm));
      CREW_TRY(refused(ncclCommFinalize(comm), ncclInvalidUsage, {"was revoked"}, comm));
    } else {
      CREW_TRY(refused(result, ncclRemoteError, {"rank 0 called ncclCommRevoke"}, comm));
    }
    if (state != (m.rank == 0 ? ncclSuccess : ncclRemoteError))
      return "ncclCommGetAsyncError says " + std::to_string(state);
    if (m.rank != 2) CREW_TRY(shrink_and_use(comm, m, {2}, NCCL_SHRINK_DEFAULT));
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
}

TEST_CASE("who revokes a communicator does not wait for a shrink of it that waits for others") {
  auto* const revoked = static_cast<std::atomic<int>*>(crew::shared_page());
  crew::check(crew::run(3, [&](const Member& m) -> std::string {
    ncclComm_t comm = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
    std::string problem;
    std::thread other([&] {
      if (m.rank != 0) return;
      usleep(50000);
      problem = fine(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT), "ncclCommRevoke");
      ncclResult_t state = ncclInternalError;
      if (problem.empty()) problem = fine(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError");
      if (problem.empty() && state != ncclSuccess) problem = "the state is " + std::to_string(state);
      *revoked = 1;
    });
    for (int i = 0; m.rank == 1 && *revoked == 0 && i < 500; ++i) usleep(10000);
    if (m.rank == 1 && *revoked == 0) problem = "the other rank's ncclCommRevoke waits";
    const std::string shrunk = m.rank == 2 ? "" : shrink_and_use(comm, m, {2}, NCCL_SHRINK_DEFAULT);
    other.join();
    CREW_TRY(problem);
    CREW_TRY(shrunk);
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
}

TEST_CASE("whose call a revocation ends may destroy the communicator at once") {
  crew::check(crew::run(1, [](const Member&) -> std::string {
    constexpr int kRounds = 20;
    static std::atomic<int> held;  // the thread that revokes: 1 while a signal's handler keeps it
    signal(SIGUSR1, [](int) {
      held = 1;
      usleep(50000);
      held = 2;
    });
    int early = 0;
    for (int i = 0; i < kRounds; ++i) {
      ncclComm_t comms[2] = {};
      CREW_TRY(fine(ncclCommInitAll(comms, 2, nullptr), "ncclCommInitAll"));
      std::atomic<bool> over = false;
      held = 0;
      std::thread other([&] {
        usleep(10000);
        ncclCommRevoke(comms[0], NCCL_REVOKE_DEFAULT);
        over = true;
        while (held != 2) usleep(100);
      });
      int value = 1;
      const ncclResult_t summed = ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, comms[0], nullptr);
      pthread_kill(other.native_handle(), SIGUSR1);
      while (held == 0) usleep(100);
      const bool is_inside = !over;
      const ncclResult_t destroyed = ncclCommDestroy(comms[0]);
      early += is_inside && held != 2;  // once or twice it may have been on its way out
      other.join();
      CREW_TRY(fine(destroyed, "ncclCommDestroy"));
      if (summed == ncclSuccess) return "the call was made";
      CREW_TRY(fine(ncclCommDestroy(comms[1]), "ncclCommDestroy"));
    }
    return early > 2 ? "destroyed " + std::to_string(early) + " times while it was revoked" : "";
  }));
}
