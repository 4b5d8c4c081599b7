/* conformance: a program that knows nothing but nccl.h tries a library's whole behaviour on host memory.
 *
 *   conformance [RANKS] [--quick] [--seed N]
 *
 * The parent makes the ids and forks RANKS (1 to 16, default 4) ranks; it is no rank itself. Exit code 0: all checks
 * held. */
#include "harness.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kRanksMax = 16, kSecondsMax = 600 };

static void test_queries(Rank* me) {
  int version = 0, rank = -1, ranks = -1, device = -1, code;
  ncclResult_t state = ncclInternalError;
  expect_success(me, ncclGetVersion(&version), "ncclGetVersion");
  expect(me, version == NCCL_VERSION_CODE, "ncclGetVersion says %d", version);
  expect_success(me, ncclCommUserRank(me->comm, &rank), "ncclCommUserRank");
  expect_success(me, ncclCommCount(me->comm, &ranks), "ncclCommCount");
  expect_success(me, ncclCommCuDevice(me->comm, &device), "ncclCommCuDevice");
  expect_success(me, ncclCommGetAsyncError(me->comm, &state), "ncclCommGetAsyncError");
  expect(me, rank == me->rank && ranks == me->ranks, "the communicator says rank %d of %d", rank, ranks);
  expect(me, device >= 0, "ncclCommCuDevice says %d", device);
  expect(me, state == ncclSuccess, "ncclCommGetAsyncError says %d", (int)state);
  for (code = -1; code <= ncclNumResults; ++code) {
    expect(me, strlen(ncclGetErrorString((ncclResult_t)code)) > 3, "no text for result %d", code);
  }
}

static int rank_main(int rank, int ranks, uint32_t seed, int quick, const ncclUniqueId* ids) {
  Rank me;
  memset(&me, 0, sizeof(me));
  me.rank = rank;
  me.ranks = ranks;
  me.seed = seed;
  me.quick = quick;
  /* A rank ends with the parent, and never waits for ever. */
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  alarm(kSecondsMax);
  if (!expect_success(&me, ncclCommInitRank(&me.comm, ranks, ids[0], rank), "ncclCommInitRank") || !arenas_make(&me))
    return 1;
  test_queries(&me);
  test_misuse(&me);
  test_collectives(&me);
  test_groups(&me);
  test_point_to_point(&me);
  test_splits(&me);
  test_configurations(&me, ids + 1);
  expect_usable(&me, me.comm, "at the end");
  arenas_free(&me);
  expect_success(&me, ncclCommFinalize(me.comm), "ncclCommFinalize");
  expect_success(&me, ncclCommDestroy(me.comm), "ncclCommDestroy");
  expect(&me, ncclCommUserRank(me.comm, &rank) == ncclInvalidArgument, "a destroyed communicator was accepted");
  if (rank == 0 || me.failures > 0)
    printf("rank %d of %d: %ld checks, %ld failures (seed %u)\n", rank, ranks, me.checks, me.failures, seed);
  fflush(stdout);
  return me.failures > 0;
}

static int wait_all(int ranks, const pid_t* children) {
  int failed = 0, left = ranks, status = 0, rank;
  while (left > 0) {
    const pid_t ended = wait(&status);
    if (ended < 0) return 1;
    --left;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    failed = 1;
    for (rank = 0; rank < ranks; ++rank) {
      if (children[rank] != ended || !WIFSIGNALED(status)) continue;
      fprintf(stderr, "rank %d of %d: ended by signal %d (%s)\n", rank, ranks, WTERMSIG(status),
              strsignal(WTERMSIG(status)));
    }
  }
  return failed;
}

int main(int argc, char** argv) {
  ncclUniqueId ids[1 + CONFIGURATION_IDS];
  pid_t children[kRanksMax];
  int ranks = 4, quick = 0, i;
  uint32_t seed = 1;
  for (i = 1; i < argc; ++i) {
    if (strcmp(argv[i], "--quick") == 0) {
      quick = 1;
    } else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
      seed = (uint32_t)strtoul(argv[++i], NULL, 10);
    } else {
      ranks = atoi(argv[i]);
    }
  }
  if (ranks < 1 || ranks > kRanksMax) {
    fprintf(stderr, "usage: conformance [RANKS, 1 to %d] [--quick] [--seed N]\n", kRanksMax);
    return 2;
  }
  for (i = 0; i < 1 + CONFIGURATION_IDS; ++i) {
    const ncclResult_t result = ncclGetUniqueId(&ids[i]);
    if (result == ncclSuccess) continue;
    fprintf(stderr, "ncclGetUniqueId: %s: %s\n", ncclGetErrorString(result), ncclGetLastError(NULL));
    return 1;
  }
#if defined(__SANITIZE_ADDRESS__)
  /* GCC 12's AddressSanitizer does not take its allocator's locks before a fork: a child would inherit a locked one from
   * a library thread that is just starting, and wait for ever. */
  usleep(300000);
#endif
  fflush(NULL);
  for (i = 0; i < ranks; ++i) {
    children[i] = fork();
    if (children[i] == 0) _exit(rank_main(i, ranks, seed, quick, ids));
    if (children[i] < 0) {
      perror("fork");
      return 1;
    }
  }
  return wait_all(ranks, children);
}
