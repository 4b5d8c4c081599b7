// Ranks that leave with nothing under way: by ncclCommAbort, or because their program ends. Others may go on with their own work, and hear
// of it when they make a call that needs them. As programs for other libraries end.
#include "crew.h"
#include "far_calls.h"

#include <tutti/launch.h>

#include <catch2/catch.hpp>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include <pthread.h>
#include <unistd.h>

namespace {

using crew::fine;
using crew::Member;
using crew::refused;

enum class End { kAborts, kExits };
constexpr int kLeaver = 1;
constexpr std::size_t kShort = 1000;

std::string init_and_use(const Member& m, ncclComm_t* comm) {
  CREW_TRY(init(m, comm));
  return crew::usable(*comm);
}

/// For so long, as programs watch their communicators.
std::string stays_well(ncclComm_t comm, double seconds) {
  for (const double start = crew::now_s(); crew::now_s() - start < seconds; usleep(1000)) {
    ncclResult_t error = ncclSuccess;
    CREW_TRY(fine(ncclCommGetAsyncError(comm, &error), "ncclCommGetAsyncError"));
    CREW_TRY(fine(error, "the asynchronous error"));
  }
  return "";
}

/// Between the two that are left.
std::string exchange(const Member& m, ncclComm_t comm) {
  const int peer = 2 - m.rank;
  std::vector<int> mine(kShort, m.rank);
  std::vector<int> its(kShort, -1);
  CREW_TRY(fine(ncclGroupStart(), "ncclGroupStart"));
  CREW_TRY(fine(ncclSend(mine.data(), kShort, ncclInt, peer, comm, nullptr), "ncclSend"));
  CREW_TRY(fine(ncclRecv(its.data(), kShort, ncclInt, peer, comm, nullptr), "ncclRecv"));
  CREW_TRY(fine(ncclGroupEnd(), "ncclGroupEnd"));
  return its == std::vector<int>(kShort, peer) ? "" : "it sent something else";
}

std::string leave(End end, ncclComm_t comm) {
  if (end == End::kExits) exit(0);
  return fine(ncclCommAbort(comm), "ncclCommAbort");
}

ncclComm_t open_at_exit = nullptr;
int open_sum = 0;

/// After the library has seen the program end: what has left is destroyed, and makes no calls.
void destroy_at_exit() {
  const std::string call =
      refused(ncclAllReduce(&open_at_exit, &open_at_exit, 0, ncclInt, ncclSum, open_at_exit, nullptr), ncclInvalidUsage,
              {"the program of rank", "has ended"});
  const bool right = call.empty() && ncclCommDestroy(open_at_exit) == ncclSuccess;
  _exit(right ? 0 : 5);
}

/// Calls that need what the library keeps for a thread: a group's, one that is refused, the reason. What is freed is written over.
std::string calls_late(ncclComm_t comm) {
  static auto& others = *new std::vector<std::vector<char>>;
  for (int i = 0; i < 20; ++i) {
    int sent = i, received = -1, sum = -1;
    CREW_TRY(fine(ncclGroupStart(), "ncclGroupStart"));
    CREW_TRY(fine(ncclSend(&sent, 1, ncclInt, 0, comm, nullptr), "ncclSend"));
    CREW_TRY(fine(ncclRecv(&received, 1, ncclInt, 0, comm, nullptr), "ncclRecv"));
    CREW_TRY(fine(ncclAllReduce(&sent, &sum, 1, ncclInt, ncclSum, comm, nullptr), "ncclAllReduce"));
    CREW_TRY(fine(ncclGroupEnd(), "ncclGroupEnd"));
    if (received != i || sum != i) return "wrong data";
    CREW_TRY(refused(ncclBroadcast(&sum, &sum, 1, ncclInt, 7, comm, nullptr), ncclInvalidArgument, {"root is 7"}));
    for (std::size_t bytes = 16; bytes < 2048; bytes += 16) others.emplace_back(bytes, 'x');
  }
  return "";
}

/// What the thread was told before it ended, which is in force still; then more calls, and the group that was open.
void call_at_exit() {
  const bool told = std::string(ncclGetLastError(nullptr)) == "ncclGroupEnd without ncclGroupStart";
  std::string wrong = told ? fine(ncclGroupEnd(), "ncclGroupEnd") : "the last error is forgotten";
  if (wrong.empty()) wrong = open_sum == 3 ? calls_late(open_at_exit) : "the group that was open did not run";
  if (!wrong.empty()) fprintf(stderr, "leaving_test: at exit: %s\n", wrong.c_str());
  _exit(wrong.empty() ? 0 : 5);
}

std::string wrong_at_key = "the key's destructor was not called";
void call_at_key(void*) { wrong_at_key = calls_late(open_at_exit); }

}  // namespace

TEST_CASE("who has nothing under way leaves in peace, and is missed by calls only", "[leaving]") {
  for (const int ranks_per_host : {3, 1}) {
    for (const End end : {End::kAborts, End::kExits}) {
      INFO(ranks_per_host << " ranks for a host, " << (end == End::kAborts ? "ncclCommAbort" : "the end of a program"));
      far_calls::set_hosts_of(ranks_per_host);
      crew::check(crew::run(3, [end](const Member& m) -> std::string {
        ncclComm_t comm = nullptr;
        CREW_TRY(init_and_use(m, &comm));
        if (m.rank == kLeaver) return leave(end, comm);
        CREW_TRY(stays_well(comm, 0.3));
        CREW_TRY(exchange(m, comm));
        const double start = crew::now_s();
        float value = 1;
        CREW_TRY(refused(ncclAllReduce(&value, &value, 1, ncclFloat, ncclSum, comm, nullptr), ncclRemoteError,
                         {"rank 1 has left the communicator"}, comm));
        if (crew::now_s() - start > 1) return "took " + std::to_string(crew::now_s() - start) + " s";
        return fine(ncclCommAbort(comm), "ncclCommAbort");
      }));
      far_calls::unset_hosts();
    }
  }
}

TEST_CASE("a body of tuttiLaunchLocal that returns without destroying has left in peace", "[leaving]") {
  tuttiLaunchOutcome_t outcome{};
  const auto body = [](const tuttiLaunchInfo_t* me, const ncclUniqueId* id, void*) {
    ncclComm_t comm = nullptr;
    std::string wrong = init_and_use({me->rank, me->size, id}, &comm);
    if (me->rank == kLeaver && wrong.empty()) return 0;
    if (wrong.empty()) wrong = stays_well(comm, 0.3);
    float value = 1;
    if (wrong.empty())
      wrong = refused(ncclAllReduce(&value, &value, 1, ncclFloat, ncclSum, comm, nullptr), ncclRemoteError,
                      {"rank 1 has left the communicator"}, comm);
    if (!wrong.empty()) fprintf(stderr, "leaving_test: %s\n", wrong.c_str());
    return wrong.empty() ? 0 : 5;
  };
  REQUIRE(tuttiLaunchLocal(2, body, nullptr, &outcome) == ncclSuccess);
  CHECK(outcome.exit_code == 0);
}

TEST_CASE("what was sent before a program ended is received", "[leaving]") {
  for (const int ranks_per_host : {2, 1}) {
    far_calls::set_hosts_of(ranks_per_host);
    crew::check(crew::run(2, [](const Member& m) -> std::string {
      ncclComm_t comm = nullptr;
      CREW_TRY(init_and_use(m, &comm));
      std::vector<int> data(kShort, 7 - m.rank);
      if (m.rank == 0) {
        CREW_TRY(fine(ncclSend(data.data(), kShort, ncclInt, 1, comm, nullptr), "ncclSend"));
        exit(0);
      }
      usleep(200000);
      CREW_TRY(fine(ncclRecv(data.data(), kShort, ncclInt, 0, comm, nullptr), "ncclRecv"));
      if (data != std::vector<int>(kShort, 7)) return "it sent something else";
      return fine(ncclCommDestroy(comm), "ncclCommDestroy");
    }));
    far_calls::unset_hosts();
  }
}

TEST_CASE("a program that ends inside a call has not left in peace", "[leaving]") {
  for (const int ranks_per_host : {2, 1}) {
    far_calls::set_hosts_of(ranks_per_host);
    crew::check(crew::run(2, [](const Member& m) -> std::string {
      ncclComm_t comm = nullptr;
      CREW_TRY(init_and_use(m, &comm));
      static float value = 1;
      if (m.rank == 0) {
        std::thread([comm] { ncclAllReduce(&value, &value, 1, ncclFloat, ncclSum, comm, nullptr); }).detach();
        usleep(100000);
        exit(0);
      }
      ncclResult_t error = ncclSuccess;
      for (const double start = crew::now_s(); error == ncclSuccess && crew::now_s() - start < 5; usleep(1000))
        CREW_TRY(fine(ncclCommGetAsyncError(comm, &error), "ncclCommGetAsyncError"));
      CREW_TRY(refused(error, ncclRemoteError, {"rank 0", "ended without leaving"}, comm));
      return fine(ncclCommAbort(comm), "ncclCommAbort");
    }));
    far_calls::unset_hosts();
  }
}

TEST_CASE("a communicator that is destroyed when the program has ended", "[leaving]") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    atexit(destroy_at_exit);
    CREW_TRY(init_and_use(m, &open_at_exit));
    exit(0);
  }));
}

TEST_CASE("exit handlers make calls as if nothing had ended", "[leaving]") {
  crew::check(crew::run(1, [](const Member& m) -> std::string {
    CREW_TRY(init_and_use(m, &open_at_exit));
    atexit(call_at_exit);
    CREW_TRY(calls_late(open_at_exit));
    static int three = 3;
    (void)ncclGroupEnd();
    CREW_TRY(fine(ncclGroupStart(), "ncclGroupStart"));
    CREW_TRY(fine(ncclAllReduce(&three, &open_sum, 1, ncclInt, ncclSum, open_at_exit, nullptr), "ncclAllReduce"));
    exit(0);
  }));
}

TEST_CASE("a thread makes calls when its own objects are gone", "[leaving]") {
  for (const bool before_the_library : {true, false}) {
    crew::check(crew::run(1, [before_the_library](const Member& m) -> std::string {
      pthread_key_t key{};
      if (before_the_library) pthread_key_create(&key, call_at_key);
      CREW_TRY(init_and_use(m, &open_at_exit));
      if (!before_the_library) pthread_key_create(&key, call_at_key);
      std::thread([key] {
        (void)calls_late(open_at_exit);
        pthread_setspecific(key, &open_at_exit);
      }).join();
      CREW_TRY(wrong_at_key);
      return fine(ncclCommDestroy(open_at_exit), "ncclCommDestroy");
    }));
  }
}
