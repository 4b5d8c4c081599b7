// Forked children of ranks: no ranks of what they inherit, whatever they do with it, while their own communicators work.
#include "crew.h"

#include <tutti/launch.h>
#include <tutti/tutti.h>

#include <catch2/catch.hpp>

#include <cstdio>
#include <functional>

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

using crew::fine;
using crew::Member;
using crew::refused;

/// Runs `body` in a child, which ends as programs do. "" or that something is wrong, after stderr has said what.
std::string in_child(const std::function<std::string()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    const std::string wrong = body();
    if (!wrong.empty()) fprintf(stderr, "inherited_test: in the child: %s\n", wrong.c_str());
    exit(wrong.empty() ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0 ? "" : "the child's status is " + std::to_string(status);
}

/// Of a call with the communicator of the process that has forked this one.
std::string not_ours(ncclResult_t result) {
  return refused(result, ncclInvalidUsage,
                 {"belongs to process " + std::to_string(getppid()),
                  "this process (" + std::to_string(getpid()) + ") was forked; make a new communicator after fork"});
}

std::string init_and_use(const Member& m, ncclComm_t* comm) {
  CREW_TRY(init(m, comm));
  // Calls that are like the one before go a shorter way.
  for (int i = 0; i < 3; ++i) CREW_TRY(crew::usable(*comm));
  return "";
}

std::string sum(ncclComm_t comm, float expected) {
  float one = 1, total = 0;
  CREW_TRY(fine(ncclAllReduce(&one, &total, 1, ncclFloat, ncclSum, comm, nullptr), "ncclAllReduce"));
  return total == expected ? "" : "the sum is " + std::to_string(total);
}

std::string stale(ncclComm_t comm) {
  return refused(ncclCommDestroy(comm), ncclInvalidArgument, {"no communicator of this process"});
}

/// A communicator of the child itself.
std::string make_own() {
  ncclUniqueId id;
  ncclComm_t own = nullptr;
  CREW_TRY(fine(ncclGetUniqueId(&id), "ncclGetUniqueId"));
  CREW_TRY(fine(ncclCommInitRank(&own, 1, id, 0), "ncclCommInitRank"));
  CREW_TRY(sum(own, 1));
  return fine(ncclCommDestroy(own), "ncclCommDestroy");
}

}  // namespace

TEST_CASE("a child's calls with its parent's communicator are refused, and disturb nobody", "[forks]") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    ncclComm_t comm = nullptr, other = nullptr;
    cudaStream_t stream = nullptr;
    void* registration = nullptr;
    float values[4] = {};
    CREW_TRY(init_and_use(m, &comm));
    CREW_TRY(fine(tuttiStreamCreate(&stream), "tuttiStreamCreate"));
    CREW_TRY(fine(ncclCommRegister(comm, values, sizeof(values), &registration), "ncclCommRegister"));
    CREW_TRY(sum(comm, 2));
    CREW_TRY(in_child([&]() -> std::string {
      int number = 0;
      ncclResult_t state;
      ncclRedOp_t op;
      const auto call = [&](cudaStream_t on) { return ncclAllReduce(values, values, 1, ncclFloat, ncclSum, comm, on); };
      CREW_TRY(not_ours(call(nullptr)));
      CREW_TRY(not_ours(call(stream)));
      CREW_TRY(not_ours(ncclSend(values, 1, ncclFloat, 1 - m.rank, comm, nullptr)));
      CREW_TRY(fine(ncclGroupStart(), "ncclGroupStart"));
      CREW_TRY(not_ours(call(nullptr)));
      CREW_TRY(not_ours(ncclGroupEnd()));
      CREW_TRY(not_ours(ncclCommSplit(comm, 0, 0, &other, nullptr)));
      CREW_TRY(not_ours(ncclCommShrink(comm, &number, 1, &other, nullptr, NCCL_SHRINK_ABORT)));
      CREW_TRY(not_ours(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT)));
      CREW_TRY(not_ours(ncclCommGetAsyncError(comm, &state)));
      CREW_TRY(not_ours(ncclCommCount(comm, &number)));
      CREW_TRY(not_ours(ncclRedOpCreatePreMulSum(&op, values, ncclFloat, ncclScalarHostImmediate, comm)));
      CREW_TRY(not_ours(ncclCommDeregister(comm, registration)));
      CREW_TRY(not_ours(tuttiCommReport(comm, nullptr, 0, nullptr)));
      if (std::string(ncclGetLastError(comm)).find("tuttiCommReport: comm") != 0) return ncclGetLastError(comm);
      return make_own();
    }));
    CREW_TRY(crew::usable(comm));
    CREW_TRY(fine(ncclCommDeregister(comm, registration), "ncclCommDeregister"));
    CREW_TRY(fine(tuttiStreamDestroy(stream), "tuttiStreamDestroy"));
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
}

TEST_CASE("a child that ends what it has inherited ends nothing of its parent's", "[forks]") {
  for (const auto end : {ncclCommDestroy, ncclCommAbort, ncclCommFinalize}) {
    crew::check(crew::run(2, [end](const Member& m) -> std::string {
      ncclComm_t comm = nullptr;
      CREW_TRY(init_and_use(m, &comm));
      const auto end_and_make = [&]() -> std::string {
        CREW_TRY(fine(end(comm), "the end"));
        if (end != ncclCommFinalize) CREW_TRY(stale(comm));
        return make_own();
      };
      CREW_TRY(in_child([&]() -> std::string {
        CREW_TRY(in_child(end_and_make));
        return end_and_make();
      }));
      CREW_TRY(crew::usable(comm));
      ncclResult_t state = ncclInternalError;
      CREW_TRY(fine(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError"));
      CREW_TRY(fine(state, "the state"));
      return fine(ncclCommDestroy(comm), "ncclCommDestroy");
    }));
  }
}

TEST_CASE("a child need not wait for calls that were under way on its parent's streams", "[forks]") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    ncclComm_t comm = nullptr;
    cudaStream_t stream = nullptr;
    float one = 1, total = 0;
    CREW_TRY(init_and_use(m, &comm));
    CREW_TRY(fine(tuttiStreamCreate(&stream), "tuttiStreamCreate"));
    if (m.rank == 0) {
      CREW_TRY(fine(ncclAllReduce(&one, &total, 1, ncclFloat, ncclSum, comm, stream), "ncclAllReduce"));
      CREW_TRY(in_child([&]() -> std::string {
        CREW_TRY(refused(tuttiStreamSynchronize(stream), ncclInvalidUsage, {"make a new stream after fork"}));
        return fine(ncclCommDestroy(comm), "ncclCommDestroy");
      }));
      CREW_TRY(in_child([&] { return fine(ncclCommAbort(comm), "ncclCommAbort"); }));
      CREW_TRY(fine(tuttiStreamSynchronize(stream), "tuttiStreamSynchronize"));
      if (total != 2) return "the sum is " + std::to_string(total);
    } else {
      usleep(100000);
      CREW_TRY(sum(comm, 2));
    }
    CREW_TRY(fine(tuttiStreamDestroy(stream), "tuttiStreamDestroy"));
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
}

TEST_CASE("a group that was open at a fork does nothing in the child", "[forks]") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    ncclComm_t comm = nullptr, child = nullptr;
    float one = 1, total = 0;
    CREW_TRY(init_and_use(m, &comm));
    CREW_TRY(fine(ncclGroupStart(), "ncclGroupStart"));
    CREW_TRY(fine(ncclAllReduce(&one, &total, 1, ncclFloat, ncclSum, comm, nullptr), "ncclAllReduce"));
    CREW_TRY(in_child([] { return not_ours(ncclGroupEnd()); }));
    CREW_TRY(fine(ncclGroupEnd(), "ncclGroupEnd"));
    if (total != 2) return "the sum is " + std::to_string(total);
    // A split without a color gives no communicator that could be known by its handle.
    CREW_TRY(fine(ncclGroupStart(), "ncclGroupStart"));
    CREW_TRY(fine(ncclCommSplit(comm, m.rank == 0 ? 0 : NCCL_SPLIT_NOCOLOR, 0, &child, nullptr), "ncclCommSplit"));
    CREW_TRY(in_child([]() -> std::string {
      CREW_TRY(refused(ncclGroupEnd(), ncclInvalidUsage,
                       {"process " + std::to_string(getppid()), "open a group and make them after fork"}));
      return make_own();
    }));
    CREW_TRY(fine(ncclGroupEnd(), "ncclGroupEnd"));
    if (child) CREW_TRY(fine(ncclCommDestroy(child), "ncclCommDestroy of the child"));
    CREW_TRY(crew::usable(comm));
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
}

TEST_CASE("children of ranks are ranks of communicators of their own", "[forks]") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    ncclComm_t comm = nullptr;
    CREW_TRY(init_and_use(m, &comm));
    CREW_TRY(in_child([&]() -> std::string {
      ncclComm_t own = nullptr;
      CREW_TRY(fine(ncclCommInitRank(&own, 2, m.ids[1], m.rank), "ncclCommInitRank"));
      CREW_TRY(crew::usable(own));
      CREW_TRY(fine(ncclCommDestroy(comm), "ncclCommDestroy of the parent's"));
      CREW_TRY(sum(own, 2));
      return fine(ncclCommDestroy(own), "ncclCommDestroy");
    }));
    CREW_TRY(crew::usable(comm));
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
}

TEST_CASE(
    "local ranks are forked before the library has a thread, which might hold a lock that they would find taken") {
  crew::check(crew::run(1, [](const Member&) -> std::string {
    static int forks = 0, threads = 0;
    pthread_atfork([] { ++forks, threads += crew::Belongings::count().threads; }, nullptr, nullptr);
    const auto body = [](const tuttiLaunchInfo_t* me, const ncclUniqueId* id, void*) {
      ncclComm_t comm = nullptr;
      if (ncclCommInitRank(&comm, me->size, *id, me->rank) != ncclSuccess) return 2;
      return ncclCommDestroy(comm) == ncclSuccess ? 0 : 3;
    };
    tuttiLaunchOutcome_t outcome{};
    CREW_TRY(fine(tuttiLaunchLocal(3, body, nullptr, &outcome), "tuttiLaunchLocal"));
    if (outcome.exit_code != 0) return "exit code " + std::to_string(outcome.exit_code);
    return forks == 3 && threads == 3 ? ""
                                      : std::to_string(threads) + " threads at " + std::to_string(forks) + " forks";
  }));
}
