/* conformance: a program that knows nothing but nccl.h tries a library's whole behaviour on host memory.
 *
 *   conformance [RANKS] [--quick] [--ids-first] [--seed N]
 *
 * The parent forks RANKS (1 to 16, default 4) ranks and makes the ids; it is no rank itself. Exit code 0: all checks
 * held.
 *
 * --ids-first: the ids before the ranks, so that the ranks are forked by a process with the library's threads in it. Not
 * under a sanitizer: GCC 12's do not take their allocators' locks before a fork, and a child that inherits a locked one
 * waits for ever. */
#include "harness.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
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
  if (!expect_success(&me, ncclCommInitRank(&me.comm, ranks, ids[0], rank), "ncclCommInitRank") || !arenas_make(&me))
    return 1;
  test_queries(&me);
  test_misuse(&me);
  test_collectives(&me);
  test_groups(&me);
  test_point_to_point(&me);
  test_splits(&me);
  test_configurations(&me, ids + 1);
  test_rooted(&me, ids + 1 + CONFIGURATION_IDS);
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

/* The ids, where the ranks find them. */
typedef struct Ids {
  int made; /* 1: they are there, -1: they never will be */
  ncclUniqueId all[1 + CONFIGURATION_IDS + ROOTED_IDS];
} Ids;

static int make_ids(Ids* ids) {
  int i;
  for (i = 0; i < 1 + CONFIGURATION_IDS + ROOTED_IDS; ++i) {
    const ncclResult_t result = ncclGetUniqueId(&ids->all[i]);
    if (result == ncclSuccess) continue;
    fprintf(stderr, "ncclGetUniqueId: %s: %s\n", ncclGetErrorString(result), ncclGetLastError(NULL));
    __atomic_store_n(&ids->made, -1, __ATOMIC_RELEASE);
    return 0;
  }
  __atomic_store_n(&ids->made, 1, __ATOMIC_RELEASE);
  return 1;
}

static int begin_rank(int rank, int ranks, uint32_t seed, int quick, const Ids* ids) {
  int made;
  /* A rank ends with the parent, and never waits for ever. */
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  alarm(kSecondsMax);
  while ((made = __atomic_load_n(&ids->made, __ATOMIC_ACQUIRE)) == 0) usleep(200);
  return made == 1 ? rank_main(rank, ranks, seed, quick, ids->all) : 1;
}

int main(int argc, char** argv) {
  pid_t children[kRanksMax];
  Ids* ids;
  int ranks = 4, quick = 0, ids_first = 0, i;
  uint32_t seed = 1;
  for (i = 1; i < argc; ++i) {
    if (strcmp(argv[i], "--quick") == 0) {
      quick = 1;
    } else if (strcmp(argv[i], "--ids-first") == 0) {
      ids_first = 1;
    } else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
      seed = (uint32_t)strtoul(argv[++i], NULL, 10);
    } else {
      ranks = atoi(argv[i]);
    }
  }
  if (ranks < 1 || ranks > kRanksMax) {
    fprintf(stderr, "usage: conformance [RANKS, 1 to %d] [--quick] [--ids-first] [--seed N]\n", kRanksMax);
    return 2;
  }
  ids = mmap(NULL, sizeof(Ids), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (ids == MAP_FAILED) {
    perror("mmap");
    return 1;
  }
  if (ids_first && !make_ids(ids)) return 1;
  fflush(NULL);
  for (i = 0; i < ranks; ++i) {
    children[i] = fork();
    if (children[i] == 0) _exit(begin_rank(i, ranks, seed, quick, ids));
    if (children[i] < 0) {
      perror("fork");
      return 1;
    }
  }
  if (!ids_first && !make_ids(ids)) return 1;
  return wait_all(ranks, children);
}
