/* Splits: colors, keys, no color, splits of splits, with a configuration. */
#include "harness.h"

static void expect_place(Rank* me, ncclComm_t comm, int rank, int ranks, const char* what) {
  int real_rank = -1, real_ranks = -1;
  expect_success(me, ncclCommUserRank(comm, &real_rank), what);
  expect_success(me, ncclCommCount(comm, &real_ranks), what);
  expect(me, real_rank == rank && real_ranks == ranks, "%s: rank %d of %d, should be rank %d of %d", what, real_rank,
         real_ranks, rank, ranks);
}

/* The child gathers its members' parent ranks: who is in it, in which order. */
static void expect_members(Rank* me, ncclComm_t child, int first, int step, int count, const char* what) {
  int32_t mine = me->rank, all[64];
  int i, wrong = 0;
  if (!expect_success(me, ncclAllGather(&mine, all, 1, ncclInt32, child, NULL), what)) return;
  for (i = 0; i < count; ++i) wrong += all[i] != first + i * step;
  expect(me, wrong == 0, "%s: %d members in wrong places", what, wrong);
}

static void by_parity(Rank* me) {
  ncclComm_t child = NULL, grandchild = NULL;
  const int color = me->rank % 2;
  const int count = (me->ranks + 1 - color) / 2;
  const int last = color + 2 * (count - 1);
  /* Keys fall: the order turns around. */
  if (!expect_success(me, ncclCommSplit(me->comm, color, -me->rank, &child, NULL), "ncclCommSplit by parity")) return;
  expect_place(me, child, (last - me->rank) / 2, count, "split by parity");
  expect_members(me, child, last, -2, count, "split by parity");
  expect_usable(me, child, "a split's child");
  if (expect_success(me, ncclCommSplit(child, 5, 0, &grandchild, NULL), "ncclCommSplit of a child")) {
    expect_place(me, grandchild, (last - me->rank) / 2, count, "split of a split with equal keys");
    expect_usable(me, grandchild, "a split's grandchild");
    expect_success(me, ncclCommDestroy(grandchild), "ncclCommDestroy of a grandchild");
  }
  expect_usable(me, me->comm, "the parent of a split");
  expect_success(me, ncclCommFinalize(child), "ncclCommFinalize of a child");
  expect_success(me, ncclCommDestroy(child), "ncclCommDestroy of a child");
}

static void without_rank_zero(Rank* me) {
  ncclComm_t child = (ncclComm_t)(uintptr_t)16;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.splitShare = 1;
  config.commName = "without rank 0";
  if (!expect_success(me, ncclCommSplit(me->comm, me->rank == 0 ? NCCL_SPLIT_NOCOLOR : 3, 0, &child, &config),
                      "ncclCommSplit with NCCL_SPLIT_NOCOLOR"))
    return;
  if (me->rank == 0) {
    expect(me, child == NULL, "NCCL_SPLIT_NOCOLOR gave a communicator");
    return;
  }
  expect_place(me, child, me->rank - 1, me->ranks - 1, "split without rank 0");
  expect_members(me, child, 1, 1, me->ranks - 1, "split without rank 0");
  expect_success(me, ncclCommDestroy(child), "ncclCommDestroy");
}

void test_splits(Rank* me) {
  by_parity(me);
  without_rank_zero(me);
  expect_usable(me, me->comm, "after the splits");
}
