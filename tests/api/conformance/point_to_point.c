/* Send and receive: to oneself, around a ring, all to all with different counts, several in a row, beside collectives.
 * */
#include "harness.h"

#include <string.h>

enum { kWords = 2000, kRanksMax = 64 };

static uint16_t sent[kRanksMax * kWords / 8], received[kRanksMax * kWords / 8];

static uint16_t word(uint32_t seed, int from, int to, int i) {
  return (uint16_t)mixed(seed, (uint32_t)(from * 100 + to), (uint32_t)i);
}

static void check(Rank* me, const uint16_t* data, int count, uint32_t seed, int from, const char* what) {
  int wrong = 0, i;
  for (i = 0; i < count; ++i) wrong += data[i] != word(seed, from, me->rank, i);
  expect(me, wrong == 0, "%s from rank %d: %d of %d elements wrong", what, from, wrong, count);
}

static void fill(Rank* me, uint16_t* data, int count, uint32_t seed, int to) {
  int i;
  for (i = 0; i < count; ++i) data[i] = word(seed, me->rank, to, i);
}

static void pair(Rank* me, int to, int from, int count, const char* what) {
  const uint32_t seed = ++me->seed;
  fill(me, sent, count, seed, to);
  memset(received, 0xc3, sizeof(received));
  expect_success(me, ncclGroupStart(), what);
  expect_success(me, ncclSend(sent, (size_t)count, ncclFloat16, to, me->comm, NULL), what);
  expect_success(me, ncclRecv(received, (size_t)count, ncclFloat16, from, me->comm, NULL), what);
  expect_success(me, ncclGroupEnd(), what);
  check(me, received, count, seed, from, what);
}

/* Different for every pair, 0 for some. */
static int count_of(int from, int to) { return (from * 3 + to * 5) % 7 * 31; }

static void all_to_all(Rank* me) {
  const uint32_t seed = ++me->seed;
  const int block = 6 * 31;
  int peer;
  memset(received, 0xc3, sizeof(received));
  expect_success(me, ncclGroupStart(), "all to all");
  for (peer = 0; peer < me->ranks; ++peer) {
    fill(me, sent + peer * block, count_of(me->rank, peer), seed, peer);
    expect_success(me,
                   ncclSend(sent + peer * block, (size_t)count_of(me->rank, peer), ncclBfloat16, peer, me->comm, NULL),
                   "all to all: ncclSend");
    expect_success(
        me, ncclRecv(received + peer * block, (size_t)count_of(peer, me->rank), ncclBfloat16, peer, me->comm, NULL),
        "all to all: ncclRecv");
  }
  expect_success(me, ncclGroupEnd(), "all to all: ncclGroupEnd");
  for (peer = 0; peer < me->ranks; ++peer) {
    const int count = count_of(peer, me->rank);
    check(me, received + peer * block, count, seed, peer, "all to all");
    expect(me, buffer_is_poison((const unsigned char*)(received + peer * block + count), (size_t)(block - count) * 2),
           "all to all: bytes after the message were changed");
  }
}

/* Without a group: even ranks send first. Several messages keep their order. */
static void in_a_row(Rank* me) {
  const uint32_t seed = me->seed += 4;
  const int partner = me->rank ^ 1;
  int turn, k;
  if (partner >= me->ranks) return;
  for (turn = 0; turn < 2; ++turn) {
    for (k = 0; k < 3; ++k) {
      if ((me->rank & 1) == turn) {
        fill(me, sent, 100 + k, seed + (uint32_t)k, partner);
        expect_success(me, ncclSend(sent, (size_t)(100 + k), ncclHalf, partner, me->comm, NULL),
                       "ncclSend without a group");
      } else {
        expect_success(me, ncclRecv(received, (size_t)(100 + k), ncclHalf, partner, me->comm, NULL),
                       "ncclRecv without a group");
        check(me, received, 100 + k, seed + (uint32_t)k, partner, "in a row");
      }
    }
  }
}

static void beside_a_collective(Rank* me) {
  const uint32_t seed = ++me->seed;
  const int next = (me->rank + 1) % me->ranks, previous = (me->rank + me->ranks - 1) % me->ranks;
  int32_t total = me->rank;
  fill(me, sent, 77, seed, next);
  expect_success(me, ncclGroupStart(), "ncclGroupStart");
  expect_success(me, ncclSend(sent, 77, ncclHalf, next, me->comm, NULL), "ncclSend beside a collective");
  expect_success(me, ncclAllReduce(&total, &total, 1, ncclInt32, ncclSum, me->comm, NULL), "AllReduce beside ncclSend");
  expect_success(me, ncclRecv(received, 77, ncclHalf, previous, me->comm, NULL), "ncclRecv beside a collective");
  expect_success(me, ncclGroupEnd(), "ncclGroupEnd");
  check(me, received, 77, seed, previous, "beside a collective");
  expect(me, total == me->ranks * (me->ranks - 1) / 2, "AllReduce beside send and receive: %d", (int)total);
}

void test_point_to_point(Rank* me) {
  static const int counts[] = {0, 1, 7, kWords};
  size_t i;
  for (i = 0; i < sizeof(counts) / sizeof(counts[0]); ++i) {
    pair(me, me->rank, me->rank, counts[i], "to oneself");
    pair(me, (me->rank + 1) % me->ranks, (me->rank + me->ranks - 1) % me->ranks, counts[i], "around a ring");
    pair(me, me->ranks - 1 - me->rank, me->ranks - 1 - me->rank, counts[i], "exchange with the opposite rank");
  }
  all_to_all(me);
  in_a_row(me);
  beside_a_collective(me);
}
