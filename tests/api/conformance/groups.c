/* Groups: several calls at once, nested, empty, simulated; one thread that holds several ranks. */
#include "harness.h"

#include <string.h>

enum { kCount = 301 };

typedef struct {
  int32_t sum_in[kCount], sum_out[kCount];
  int32_t broadcast[kCount];
  int32_t scatter_in[16 * kCount], scatter_out[kCount];
  int32_t gather_in[kCount], gather_out[16 * kCount];
} Calls;

static int32_t value(uint32_t seed, int rank, int i) {
  return (int32_t)(mixed(seed, (uint32_t)rank, (uint32_t)i) % 1000);
}

static void fill(Calls* c, const Rank* me, uint32_t seed) {
  int i;
  memset(c, 0xc3, sizeof(*c));
  for (i = 0; i < kCount; ++i) {
    c->sum_in[i] = value(seed, me->rank, i);
    c->gather_in[i] = value(seed + 3, me->rank, i);
    if (me->rank == 0) c->broadcast[i] = value(seed + 1, 0, i);
  }
  for (i = 0; i < me->ranks * kCount; ++i) c->scatter_in[i] = value(seed + 2, me->rank, i);
}

static void enqueue(Calls* c, Rank* me) {
  expect_success(me, ncclAllReduce(c->sum_in, c->sum_out, kCount, ncclInt32, ncclSum, me->comm, NULL),
                 "AllReduce in a group");
  expect_success(me, ncclBroadcast(c->broadcast, c->broadcast, kCount, ncclInt32, 0, me->comm, NULL),
                 "Broadcast in a group");
  expect_success(me, ncclReduceScatter(c->scatter_in, c->scatter_out, kCount, ncclInt32, ncclSum, me->comm, NULL),
                 "ReduceScatter in a group");
  expect_success(me, ncclAllGather(c->gather_in, c->gather_out, kCount, ncclInt32, me->comm, NULL),
                 "AllGather in a group");
}

static void check(Calls* c, Rank* me, uint32_t seed, const char* what) {
  int wrong = 0;
  int i, r;
  for (i = 0; i < kCount; ++i) {
    int32_t sum = 0, block = 0;
    for (r = 0; r < me->ranks; ++r) {
      sum += value(seed, r, i);
      block += value(seed + 2, r, me->rank * kCount + i);
      wrong += c->gather_out[r * kCount + i] != value(seed + 3, r, i);
    }
    wrong += c->sum_out[i] != sum;
    wrong += c->scatter_out[i] != block;
    wrong += c->broadcast[i] != value(seed + 1, 0, i);
  }
  expect(me, wrong == 0, "%s: %d wrong elements", what, wrong);
}

static Calls first, second;

static void several_calls(Rank* me) {
  const uint32_t seed = me->seed += 10;
  fill(&first, me, seed);
  fill(&second, me, seed + 5);
  expect_success(me, ncclGroupStart(), "ncclGroupStart");
  enqueue(&first, me);
  enqueue(&second, me);
  expect_success(me, ncclGroupEnd(), "ncclGroupEnd");
  check(&first, me, seed, "first half of a group");
  check(&second, me, seed + 5, "second half of a group");
}

static void nested(Rank* me) {
  const uint32_t seed = me->seed += 10;
  fill(&first, me, seed);
  fill(&second, me, seed + 5);
  expect_success(me, ncclGroupStart(), "ncclGroupStart");
  expect_success(me, ncclGroupStart(), "ncclGroupStart");
  enqueue(&first, me);
  expect_success(me, ncclGroupEnd(), "inner ncclGroupEnd");
  expect(me, buffer_is_poison((const unsigned char*)first.sum_out, sizeof(first.sum_out)),
         "an inner group's end ran its calls");
  expect_success(me, ncclGroupStart(), "ncclGroupStart");
  expect_success(me, ncclGroupStart(), "ncclGroupStart");
  expect_success(me, ncclGroupEnd(), "ncclGroupEnd of an empty inner group");
  enqueue(&second, me);
  expect_success(me, ncclGroupEnd(), "inner ncclGroupEnd");
  expect_success(me, ncclGroupEnd(), "outer ncclGroupEnd");
  check(&first, me, seed, "first inner group");
  check(&second, me, seed + 5, "second inner group");
  expect_success(me, ncclGroupStart(), "ncclGroupStart");
  expect_success(me, ncclGroupEnd(), "ncclGroupEnd of an empty group");
}

static void simulated(Rank* me) {
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  fill(&first, me, me->seed += 10);
  expect_success(me, ncclGroupStart(), "ncclGroupStart");
  enqueue(&first, me);
  expect_success(me, ncclGroupSimulateEnd(&info), "ncclGroupSimulateEnd");
  expect(me, info.estimatedTime >= 0, "ncclGroupSimulateEnd estimates %g us", (double)info.estimatedTime);
  expect(me, buffer_is_poison((const unsigned char*)first.sum_out, sizeof(first.sum_out)),
         "ncclGroupSimulateEnd ran the group");
  expect_usable(me, me->comm, "after ncclGroupSimulateEnd");
}

/* Three ranks in this thread, beside the others of this process's communicator. */
static void several_ranks(Rank* me) {
  enum { kHere = 3 };
  static const int devices[kHere] = {0, 0, 0};
  ncclComm_t comms[kHere];
  int64_t in[kHere][17], out[kHere][17];
  int r, i;
  if (!expect_success(me, ncclCommInitAll(comms, kHere, devices), "ncclCommInitAll")) return;
  for (r = 0; r < kHere; ++r) {
    int rank = -1, count = -1;
    expect_success(me, ncclCommUserRank(comms[r], &rank), "ncclCommUserRank");
    expect_success(me, ncclCommCount(comms[r], &count), "ncclCommCount");
    expect(me, rank == r && count == kHere, "ncclCommInitAll: communicator %d is rank %d of %d", r, rank, count);
    for (i = 0; i < 17; ++i) in[r][i] = value(me->seed, r, i);
  }
  memset(out, 0xc3, sizeof(out));
  expect_success(me, ncclGroupStart(), "ncclGroupStart");
  for (r = 0; r < kHere; ++r) {
    expect_success(me, ncclAllReduce(in[r], out[r], 17, ncclInt64, ncclSum, comms[r], NULL),
                   "AllReduce of several ranks");
  }
  expect_success(me, ncclGroupEnd(), "ncclGroupEnd of several ranks");
  for (r = 0; r < kHere; ++r) {
    int wrong = 0;
    for (i = 0; i < 17; ++i) wrong += out[r][i] != in[0][i] + in[1][i] + in[2][i];
    expect(me, wrong == 0, "rank %d of several in one thread: %d wrong elements", r, wrong);
  }
  expect_success(me, ncclGroupStart(), "ncclGroupStart");
  for (r = 0; r < kHere; ++r) expect_success(me, ncclCommDestroy(comms[r]), "ncclCommDestroy of several ranks");
  expect_success(me, ncclGroupEnd(), "ncclGroupEnd");
}

void test_groups(Rank* me) {
  several_calls(me);
  nested(me);
  simulated(me);
  several_ranks(me);
}
