// The library's own threads lack memory once: the process lives on, and nobody waits until time is over.
#include "failing_new.h"

#include <tutti/launch.h>
#include <tutti/tutti.h>

#include <catch2/catch.hpp>

#include <cstdio>
#include <cstdlib>
#include <string>

#include <signal.h>
#include <unistd.h>

namespace tutti::test {
namespace {

constexpr int kRanks = 2;

/// What the ranks of a launch do, `poor` with the k-th allocation of such threads failing.
struct Job {
  const char* thread = "";
  long k = 0;
  int poor = 1;
  bool over_hosts = false;
  bool dies = false;  ///< the other rank, without a goodbye, when both have made their calls
};

void lack_memory(const char* thread, long k) {
  name_that_fails = thread;
  until_failure_by_name = k;
}

/// Sums until it fails: 0 where none does, 1 where one does, 2 for a wrong sum.
int use(ncclComm_t comm, int times) {
  for (int call = 0; call < times; ++call) {
    int one = 1;
    if (ncclAllReduce(&one, &one, 1, ncclInt, ncclSum, comm, nullptr) != ncclSuccess) return 1;
    if (one != kRanks) return 2;
    usleep(1000);
  }
  return 0;
}

int complain(const tuttiLaunchInfo_t& info, const char* what) {
  std::fprintf(stderr, "rank %d: %s: %s\n", info.rank, what, ncclGetLastError(nullptr));
  return 1;
}

int run_rank(const tuttiLaunchInfo_t* info, const ncclUniqueId* id, void* context) {
  const Job& job = *static_cast<const Job*>(context);
  if (job.over_hosts) setenv("NCCL_HOSTID", info->rank == 0 ? "a" : "b", 1);
  if (info->rank == job.poor) lack_memory(job.thread, job.k);
  ncclComm_t comm = nullptr;
  const ncclResult_t made = ncclCommInitRank(&comm, kRanks, *id, info->rank);
  bool waited = std::string(ncclGetLastError(nullptr)).find("TUTTI_TIMEOUT_S") != std::string::npos;
  if (made != ncclSuccess) return waited ? complain(*info, "ncclCommInitRank") : 0;
  const int used = use(comm, 5);
  if (used == 2) return complain(*info, "a wrong sum");
  if (job.dies && used == 0) {
    if (info->rank != job.poor) _exit(0);
    if (use(comm, 1) == 0) return complain(*info, "the other one is dead, and a call went well");
  }
  const std::string reason = ncclGetLastError(nullptr);
  waited = reason.find("TUTTI_TIMEOUT_S") != std::string::npos;
  if (waited) return complain(*info, "waited until time was over");
  const ncclResult_t ended = used == 0 && !job.dies ? ncclCommDestroy(comm) : ncclCommAbort(comm);
  return ended == ncclSuccess ? 0 : complain(*info, "the end");
}

void check_each(Job job, long last) {
  for (job.k = 1; job.k <= last; ++job.k) {
    CAPTURE(job.thread, job.k, job.over_hosts, job.dies);
    tuttiLaunchOutcome_t outcome{};
    REQUIRE(tuttiLaunchLocal(kRanks, run_rank, &job, &outcome) == ncclSuccess);
    CHECK(outcome.exit_code == 0);
    CHECK(outcome.signal == 0);
  }
}

}  // namespace

TEST_CASE("the thread that watches over other hosts' ranks lacks memory once") {
  const bool dies = GENERATE(false, true);
  Job job{.thread = "tutti-watch", .over_hosts = true, .dies = dies};
  // Names count that begin so: the watchdog's as well, whose own the next case is.
  check_each(job, 25);
}

TEST_CASE("the thread that watches over this host's processes lacks memory once") {
  const bool dies = GENERATE(false, true);
  check_each({.thread = "tutti-watchdog", .dies = dies}, 15);
}

/// It is the launching process's, whose counter the ranks inherit but do not have such threads.
TEST_CASE("the thread of the bootstrap's root lacks memory once") {
  const bool over_hosts = GENERATE(false, true);
  for (long k = 1; k <= 60; ++k) {
    lack_memory("tutti-root", k);
    Job job{.thread = "nobody", .k = 0, .over_hosts = over_hosts};
    CAPTURE(k, over_hosts);
    tuttiLaunchOutcome_t outcome{};
    REQUIRE(tuttiLaunchLocal(kRanks, run_rank, &job, &outcome) == ncclSuccess);
    CHECK(outcome.exit_code == 0);
  }
  until_failure_by_name = 0;
}

}  // namespace tutti::test
