/* Short rooted calls in a row, which ranks may run ahead in: roots by turns and one root for long, sums between, a late root, a late
 * other rank, and a communicator that is destroyed right after the last call. */
#include "harness.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { kCallsInARow = 60, kBytesMax = 8192 };

typedef enum { kBroadcast, kReduce, kGather, kScatter, kAllReduce, kKinds } Kind;

typedef struct {
  Kind kind;
  int root;
  size_t count; /* bytes of a block */
  unsigned char* in;
  unsigned char* out;
} Call;

static unsigned char input(const Rank* me, int rank, int call, size_t i) {
  return (unsigned char)mixed(me->seed + (uint32_t)call, (uint32_t)rank, (uint32_t)i);
}

static Call choose(const Rank* me, int number, int all_change) {
  static const size_t counts[] = {0, 1, 8, 512, 513, kBytesMax};
  Call call;
  memset(&call, 0, sizeof(call));
  call.kind = all_change ? (Kind)(number * 3 % kKinds) : number % 20 == 19 ? kAllReduce : (Kind)(me->seed % kAllReduce);
  call.root = all_change ? number % me->ranks : 0;
  call.count = counts[(size_t)number % (sizeof(counts) / sizeof(counts[0]))];
  return call;
}

static size_t output_bytes(const Rank* me, const Call* call) {
  const int at_root = me->rank == call->root;
  if (call->kind == kGather) return at_root ? call->count * (size_t)me->ranks : 0;
  return call->kind != kReduce || at_root ? call->count : 0;
}

static unsigned char expected(const Rank* me, const Call* call, int number, size_t i) {
  unsigned sum = 0;
  int rank;
  switch (call->kind) {
    case kBroadcast: return input(me, call->root, number, i);
    case kGather: return input(me, (int)(i / call->count), number, i % call->count);
    case kScatter: return input(me, call->root, number, (size_t)me->rank * call->count + i);
    default: break;
  }
  for (rank = 0; rank < me->ranks; ++rank) sum += input(me, rank, number, i);
  return (unsigned char)sum;
}

static ncclResult_t make(const Call* call, ncclComm_t comm) {
  const ncclDataType_t type = ncclUint8;
  switch (call->kind) {
    case kBroadcast: return ncclBroadcast(call->in, call->out, call->count, type, call->root, comm, NULL);
    case kReduce: return ncclReduce(call->in, call->out, call->count, type, ncclSum, call->root, comm, NULL);
    case kGather: return ncclGather(call->in, call->out, call->count, type, call->root, comm, NULL);
    case kScatter: return ncclScatter(call->in, call->out, call->count, type, call->root, comm, NULL);
    default: return ncclAllReduce(call->in, call->out, call->count, type, ncclSum, comm, NULL);
  }
}

/* All calls first, then all results: nothing but the calls holds a rank back. */
static void row(Rank* me, ncclComm_t comm, int all_change, int late) {
  Call calls[kCallsInARow];
  int n;
  size_t i;
  me->seed += kCallsInARow;
  for (n = 0; n < kCallsInARow; ++n) {
    size_t bytes;
    calls[n] = choose(me, n, all_change);
    bytes = calls[n].count * (size_t)(calls[n].kind == kScatter ? me->ranks : 1);
    calls[n].in = malloc(bytes + 1);
    calls[n].out = malloc(calls[n].count * (size_t)me->ranks + 1);
    if (!calls[n].in || !calls[n].out) exit(2);
    memset(calls[n].out, 0xa5, calls[n].count * (size_t)me->ranks + 1);
    for (i = 0; i < bytes; ++i) calls[n].in[i] = input(me, me->rank, n, i);
  }
  for (n = 0; n < kCallsInARow; ++n) {
    if (me->rank == late && n % 25 == 5) usleep(3000);
    if (!expect_success(me, make(&calls[n], comm), "a short rooted call")) break;
    memset(calls[n].in, 0x3c, calls[n].count); /* the caller's again */
  }
  for (n = 0; n < kCallsInARow; ++n) {
    const size_t bytes = output_bytes(me, &calls[n]);
    size_t wrong = bytes;
    for (i = bytes; i-- > 0;)
      if (calls[n].out[i] != expected(me, &calls[n], n, i)) wrong = i;
    expect(me, wrong == bytes && calls[n].out[bytes] == 0xa5,
           "rooted call %d (kind %d, root %d, %zu bytes) is wrong at %zu", n, (int)calls[n].kind, calls[n].root,
           calls[n].count, wrong);
    free(calls[n].in);
    free(calls[n].out);
  }
}

void test_rooted(Rank* me, const ncclUniqueId* id) {
  ncclComm_t comm = NULL;
  int all_change, kind;
  for (kind = 0; kind < kAllReduce; ++kind) {
    row(me, me->comm, 0, kind % 2 == 0 ? 0 : me->ranks - 1);
    row(me, me->comm, 0, kind % 2 == 0 ? me->ranks - 1 : 0);
    ++me->seed; /* another kind, as kCallsInARow is a multiple of four */
  }
  for (all_change = 0; all_change < 2; ++all_change) row(me, me->comm, all_change, -1);
  row(me, me->comm, 1, me->ranks - 1);
  if (!expect_success(me, ncclCommInitRank(&comm, me->ranks, *id, me->rank), "ncclCommInitRank")) return;
  row(me, comm, 0, me->ranks - 1);
  expect_success(me, ncclCommDestroy(comm), "ncclCommDestroy right after rooted calls");
}
