/* Every collective, type and operation, in and out of place, over counts, roots, alignments and kinds of memory. */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum {
  kAllReduce,
  kReduce,
  kBroadcast,
  kBcast,
  kReduceScatter,
  kAllGather,
  kAlltoAll,
  kGather,
  kScatter,
  kKinds
} Kind;

static const char* const kKindNames[kKinds] = {"AllReduce", "Reduce",   "Broadcast", "Bcast",  "ReduceScatter",
                                               "AllGather", "AlltoAll", "Gather",    "Scatter"};

typedef struct {
  Kind kind;
  Sample sample;
  size_t count;
  int root;
  int in_place;
  size_t shift;
  Memory memory;
  ncclRedOp_t op; /* what is passed to NCCL */
} Case;

static int reduces(Kind kind) { return kind == kAllReduce || kind == kReduce || kind == kReduceScatter; }

static size_t send_blocks(const Case* c, int at_root) {
  const size_t ranks = (size_t)c->sample.ranks;
  if (c->kind == kReduceScatter || c->kind == kAlltoAll) return ranks;
  if (c->kind == kScatter) return at_root ? ranks : 0;
  if (c->kind == kBroadcast || c->kind == kBcast) return at_root ? 1 : 0;
  return 1;
}

static size_t receive_blocks(const Case* c, int at_root) {
  const size_t ranks = (size_t)c->sample.ranks;
  if (c->kind == kAllGather || c->kind == kAlltoAll) return ranks;
  if (c->kind == kGather) return at_root ? ranks : 0;
  if (c->kind == kReduce) return at_root ? 1 : 0;
  return 1;
}

/* Rank's element `position`: a number where it is reduced, else any bits. */
static void put_input(const Case* c, int rank, size_t position, unsigned char* to) {
  const size_t bytes = type_size(c->sample.type);
  size_t k;
  if (reduces(c->kind)) {
    store_input(&c->sample, rank, position, to);
    return;
  }
  for (k = 0; k < bytes; ++k)
    to[k] = (unsigned char)mixed(c->sample.seed, (uint32_t)rank, (uint32_t)(position * bytes + k));
}

static void put_expected(const Case* c, int rank, size_t block, size_t i, unsigned char* to) {
  const size_t mine = (size_t)rank * c->count + i;
  switch (c->kind) {
    case kAllReduce:
    case kReduce: store_expected(&c->sample, i, to); break;
    case kReduceScatter: store_expected(&c->sample, mine, to); break;
    case kBroadcast:
    case kBcast: put_input(c, c->root, i, to); break;
    case kScatter: put_input(c, c->root, mine, to); break;
    case kAlltoAll: put_input(c, (int)block, mine, to); break;
    default: put_input(c, (int)block, i, to); break;
  }
}

static ncclResult_t call(const Case* c, ncclComm_t comm, const void* send, void* receive) {
  const ncclDataType_t type = c->sample.type;
  switch (c->kind) {
    case kAllReduce: return ncclAllReduce(send, receive, c->count, type, c->op, comm, NULL);
    case kReduce: return ncclReduce(send, receive, c->count, type, c->op, c->root, comm, NULL);
    case kBroadcast: return ncclBroadcast(send, receive, c->count, type, c->root, comm, NULL);
    case kBcast: return ncclBcast(receive, c->count, type, c->root, comm, NULL);
    case kReduceScatter: return ncclReduceScatter(send, receive, c->count, type, c->op, comm, NULL);
    case kAllGather: return ncclAllGather(send, receive, c->count, type, comm, NULL);
    case kAlltoAll: return ncclAlltoAll(send, receive, c->count, type, comm, NULL);
    case kGather: return ncclGather(send, receive, c->count, type, c->root, comm, NULL);
    default: return ncclScatter(send, receive, c->count, type, c->root, comm, NULL);
  }
}

/* Where this rank's input lies and its output goes. In place one buffer holds both. */
typedef struct {
  Buffer send, receive;
  unsigned char* input;
  unsigned char* output;
  int shared; /* input lies in the receive buffer, or the output in the send buffer */
} Place;

static Place place_of(const Rank* me, const Case* c) {
  const int at_root = me->rank == c->root;
  const size_t block = c->count * type_size(c->sample.type);
  const size_t in = send_blocks(c, at_root) * block, out = receive_blocks(c, at_root) * block;
  Place p;
  p.shared = (c->in_place || c->kind == kBcast) && in > 0 && out > 0;
  p.send = buffer_cut(me->send_arena[c->memory], in, c->shift);
  p.receive = buffer_cut(me->receive_arena[c->memory], out, c->shift);
  p.input = p.send.data;
  p.output = p.receive.data;
  if (!p.shared) return p;
  if (in > out) {
    p.output = p.send.data + (size_t)me->rank * block;
  } else {
    p.input = p.receive.data + (out > in ? (size_t)me->rank * block : 0);
  }
  return p;
}

static void run(Rank* me, Case c) {
  const int at_root = me->rank == c.root;
  const size_t bytes = type_size(c.sample.type);
  const size_t in = send_blocks(&c, at_root) * c.count, out = receive_blocks(&c, at_root) * c.count;
  char what[160];
  Place p;
  unsigned char *inputs, *wanted;
  size_t i;
  c.sample.seed = ++me->seed;
  c.sample.ranks = me->ranks;
  snprintf(what, sizeof(what), "%s %s %s count %zu root %d%s%s shift %zu", kKindNames[c.kind], type_name(c.sample.type),
           reduces(c.kind) ? op_name(c.sample.op) : "", c.count, c.root, c.in_place ? " in place" : "",
           c.memory == kShared ? " shared" : "", c.shift);
  p = place_of(me, &c);
  inputs = malloc(in * bytes + 1);
  wanted = malloc(out * bytes + 1);
  if (!inputs || !wanted) exit(2);
  for (i = 0; i < in; ++i) put_input(&c, me->rank, i, inputs + i * bytes);
  for (i = 0; i < out; ++i) put_expected(&c, me->rank, i / c.count, i % c.count, wanted + i * bytes);
  memcpy(p.input, inputs, in * bytes);
  if (expect_success(me, call(&c, me->comm, p.input, p.output), what)) {
    expect_bits(me, p.output, wanted, out, bytes, what);
    if (!p.shared) expect(me, memcmp(p.input, inputs, in * bytes) == 0, "%s: the input was changed", what);
    expect(me, buffer_guards_intact(&p.send) && buffer_guards_intact(&p.receive),
           "%s: bytes outside the buffers were changed", what);
  }
  free(inputs);
  free(wanted);
}

/* A PreMulSum with this rank's factor; kept for as many calls as needed. */
static ncclRedOp_t nccl_op(Rank* me, Op op, ncclDataType_t type) {
  unsigned char scalar[8];
  ncclRedOp_t made = ncclSum;
  if (op != kScaledSum) return (ncclRedOp_t)op;
  store_integer(type, scale_of(me->rank), scalar);
  expect_success(me, ncclRedOpCreatePreMulSum(&made, scalar, type, ncclScalarHostImmediate, me->comm),
                 "ncclRedOpCreatePreMulSum");
  /* The scalar was read during the call. */
  memset(scalar, 0x7b, sizeof(scalar));
  return made;
}

static void sweep_reductions(Rank* me, ncclDataType_t type, Op op) {
  static const size_t counts[] = {0, 1, 7, 1009};
  const ncclRedOp_t made = nccl_op(me, op, type);
  Case c = {kAllReduce, {type, op, me->ranks, 0}, 0, 0, 0, 0, kPrivate, made};
  size_t i;
  int place;
  for (i = 0; i < sizeof(counts) / sizeof(counts[0]); ++i) {
    for (place = 0; place < 2; ++place) {
      c.count = counts[i];
      c.in_place = place;
      c.shift = (i + (size_t)place) % 3;
      c.memory = (i + (size_t)op) % 2 ? kShared : kPrivate;
      c.root = (int)(me->seed % (uint32_t)me->ranks);
      c.kind = kAllReduce;
      run(me, c);
      if (me->quick && op != kSum && op != kScaledSum) continue;
      c.kind = kReduce;
      run(me, c);
      c.kind = kReduceScatter;
      run(me, c);
    }
  }
  if (op == kScaledSum) expect_success(me, ncclRedOpDestroy(made, me->comm), "ncclRedOpDestroy");
}

static void sweep_copies(Rank* me, Kind kind, ncclDataType_t type) {
  static const size_t counts[] = {0, 1, 3, 509, 1009};
  Case c = {kind, {type, kSum, me->ranks, 0}, 0, 0, 0, 0, kPrivate, ncclSum};
  size_t i;
  for (i = 0; i < sizeof(counts) / sizeof(counts[0]); ++i) {
    for (c.in_place = 0; c.in_place < 2; ++c.in_place) {
      c.count = counts[i];
      c.shift = i % 2;
      c.memory = (i + (size_t)c.in_place) % 2 ? kShared : kPrivate;
      c.root = (int)(me->seed % (uint32_t)me->ranks);
      run(me, c);
    }
  }
}

static void every_root(Rank* me) {
  static const Kind kinds[] = {kReduce, kBroadcast, kBcast, kGather, kScatter};
  size_t k;
  int root;
  for (k = 0; k < sizeof(kinds) / sizeof(kinds[0]); ++k) {
    for (root = 0; root < me->ranks; ++root) {
      const Case c = {kinds[k], {ncclFloat, kSum, me->ranks, 0}, 129,    root, root % 2,
                      0,        root % 3 ? kShared : kPrivate,   ncclSum};
      run(me, c);
    }
  }
}

/* Sizes that need many chunks, in each kind of memory and each place. */
static void large(Rank* me) {
  static const ncclDataType_t types[] = {ncclFloat, ncclBfloat16, ncclInt8};
  size_t t;
  int kind, variant;
  for (t = 0; t < 3; ++t) {
    for (kind = 0; kind < kKinds; ++kind) {
      const int whole = kind == kAllReduce || kind == kReduce || kind == kBroadcast || kind == kBcast;
      const size_t count = whole ? 262147 : 262147 / (size_t)me->ranks + 5;
      for (variant = 0; variant < 4; ++variant) {
        const Case c = {(Kind)kind,           {types[t], kSum, me->ranks, 0},   count,  me->ranks - 1, variant & 1,
                        variant == 3 ? 1 : 0, variant & 2 ? kShared : kPrivate, ncclSum};
        if (me->quick && (t > 0 || variant > 1)) continue;
        run(me, c);
      }
    }
  }
}

void test_collectives(Rank* me) {
  static const Kind copies[] = {kBroadcast, kBcast, kAllGather, kAlltoAll, kGather, kScatter};
  size_t k;
  int type, op;
  for (type = 0; type < ncclNumTypes; ++type) {
    for (op = 0; op < kOps; ++op) sweep_reductions(me, (ncclDataType_t)type, (Op)op);
    for (k = 0; k < sizeof(copies) / sizeof(copies[0]); ++k) sweep_copies(me, copies[k], (ncclDataType_t)type);
  }
  every_root(me);
  large(me);
}
