/* Other ways to make communicators: non-blocking, older configurations, several ids; and wrong ones. */
#include "harness.h"

#include <string.h>

static void non_blocking(Rank* me, ncclUniqueId id) {
  ncclComm_t comm = NULL;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  int64_t total = me->rank + 1;
  ncclResult_t result;
  config.blocking = 0;
  result = ncclCommInitRankConfig(&comm, me->ranks, id, me->rank, &config);
  expect(me, result == ncclSuccess || result == ncclInProgress, "non-blocking init: %s", ncclGetErrorString(result));
  expect(me, comm != NULL, "non-blocking init gave no communicator");
  if (!comm || !expect_success(me, settle(comm), "settling after non-blocking init")) return;
  result = ncclAllReduce(&total, &total, 1, ncclInt64, ncclSum, comm, NULL);
  expect(me, result == ncclSuccess || result == ncclInProgress, "non-blocking AllReduce: %s",
         ncclGetErrorString(result));
  expect_success(me, settle(comm), "settling after AllReduce");
  expect(me, total == (int64_t)me->ranks * (me->ranks + 1) / 2, "non-blocking AllReduce: %lld", (long long)total);
  result = ncclCommFinalize(comm);
  expect(me, result == ncclSuccess || result == ncclInProgress, "non-blocking finalize: %s",
         ncclGetErrorString(result));
  expect_success(me, settle(comm), "settling after finalize");
  expect_success(me, ncclCommDestroy(comm), "ncclCommDestroy of a non-blocking communicator");
}

/* A program built with NCCL 2.14's header: its struct ends after `blocking`, and says so. */
static void old_configuration(Rank* me, ncclUniqueId id) {
  ncclComm_t comm = NULL;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.version = 21403;
  config.size = 24;
  config.blocking = 1;
  /* Not this struct's own any more; must not be read. */
  memset((char*)&config + 24, 0x7f, sizeof(config) - 24);
  if (!expect_success(me, ncclCommInitRankConfig(&comm, me->ranks, id, me->rank, &config),
                      "init with an old configuration"))
    return;
  expect_usable(me, comm, "a communicator with an old configuration");
  expect_success(me, ncclCommDestroy(comm), "ncclCommDestroy");
}

static void several_ids(Rank* me, const ncclUniqueId* ids) {
  ncclComm_t comm = NULL;
  ncclUniqueId two[2];
  const int count = me->ranks > 1 ? 2 : 1;
  memcpy(two, ids, sizeof(two));
  if (!expect_success(me, ncclCommInitRankScalable(&comm, me->ranks, me->rank, count, two, NULL),
                      "ncclCommInitRankScalable"))
    return;
  expect_usable(me, comm, "a communicator from several ids");
  expect_success(me, ncclCommDestroy(comm), "ncclCommDestroy");
}

static void wrong_creations(Rank* me, ncclUniqueId id) {
  ncclComm_t comm = NULL;
  ncclConfig_t config;
  ncclUniqueId empty;
  memset(&empty, 0, sizeof(empty));
  expect(me, ncclCommInitRank(&comm, 0, id, 0) == ncclInvalidArgument, "nranks 0 was accepted");
  expect(me, ncclCommInitRank(&comm, 2, id, 2) == ncclInvalidArgument, "rank = nranks was accepted");
  expect(me, ncclCommInitRank(&comm, 2, id, -1) == ncclInvalidArgument, "rank -1 was accepted");
  expect(me, ncclCommInitRank(NULL, 1, id, 0) == ncclInvalidArgument, "comm NULL was accepted");
  expect(me, ncclCommInitRank(&comm, 1, empty, 0) == ncclInvalidArgument, "an empty id was accepted");
  memset(&config, 0, sizeof(config));
  expect(me, ncclCommInitRankConfig(&comm, 1, id, 0, &config) == ncclInvalidArgument,
         "an uninitialised config was accepted");
  expect(me, comm == NULL, "a failed init left a communicator");
  expect_success(me, ncclCommDestroy(NULL), "ncclCommDestroy(NULL)");
  expect_success(me, ncclCommAbort(NULL), "ncclCommAbort(NULL)");
}

void test_configurations(Rank* me, const ncclUniqueId* ids) {
  non_blocking(me, ids[0]);
  old_configuration(me, ids[1]);
  several_ids(me, ids + 2);
  wrong_creations(me, ids[0]);
}
