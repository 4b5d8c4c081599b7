/* Measures one cell: batches of back-to-back calls; a batch takes as long as its slowest rank; the median of the batches
 * over the calls in one. */
#include "compare_worker.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { kBatchNs = 1000000, kCallsMax = 1 << 20, kBatchesMin = 5, kLongBatchesMin = 3 };
static const uint64_t kLongBatchNs = 200000000;

static const char* const kCollectiveNames[] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast",
                                               "reduce",     "all_to_all", "sendrecv"};
static const char* const kTypeNames[] = {"float", "double", "int32", "half", "bfloat16"};
static const char* const kPagesNames[] = {"system", "small", "huge"};

static int index_of(const Rank* rank, const char* name, const char* const* names, int count) {
  for (int n = 0; n < count; ++n)
    if (strcmp(name, names[n]) == 0) return n;
  worker_fail(rank, "there is no \"%s\"", name);
}

typedef struct Request {
  Cell cell;
  int check;
  uint64_t budget_ns;
} Request;

static int has_parts(Collective collective) {
  return collective == kAllGather || collective == kReduceScatter || collective == kAllToAll;
}

static Request parse(Rank* rank, const char* line) {
  Request request = {0};
  Cell* cell = &request.cell;
  char collective[32], type[32], pages[32];
  size_t bytes = 0, budget_ms = 0;
  if (sscanf(line, "run %31s %31s %zu %d %31s %d %zu %31s", collective, type, &bytes, &cell->in_place, pages,
             &request.check, &budget_ms, cell->variant) != 8)
    worker_fail(rank, "unreadable command: %s", line);
  cell->rank = rank;
  cell->collective = (Collective)index_of(rank, collective, kCollectiveNames, kCollectiveCount);
  cell->type = (ElementType)index_of(rank, type, kTypeNames, kElementTypeCount);
  cell->pages = (Pages)index_of(rank, pages, kPagesNames, 3);
  const size_t elements = bytes / element_bytes(cell->type), ranks = (size_t)rank->ranks;
  cell->part = elements / ranks > 0 ? elements / ranks : 1;
  cell->count = has_parts(cell->collective) ? cell->part * ranks : elements > 0 ? elements : 1;
  request.budget_ns = (uint64_t)budget_ms * 1000000u;
  return request;
}

/* ---- Buffers ---- */

static unsigned char* private_pages(const Cell* cell, size_t bytes) {
  void* memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) worker_fail(cell->rank, "no memory for a buffer of %zu bytes", bytes);
  worker_advise(memory, bytes, cell->pages);
  return (unsigned char*)memory;
}

static void allocate_private(Cell* cell, size_t send_bytes, size_t receive_bytes) {
  cell->receive = private_pages(cell, receive_bytes);
  if (!cell->in_place) cell->send = private_pages(cell, send_bytes);
}

typedef struct Buffers {
  size_t send_bytes, receive_bytes;
  unsigned char *send, *receive; /* as allocated */
} Buffers;

static Buffers make_buffers(Cell* cell) {
  const size_t width = element_bytes(cell->type), all = cell->count * width, part = cell->part * width;
  Buffers buffers = {all, all, NULL, NULL};
  if (cell->collective == kAllGather) buffers.send_bytes = part;
  if (cell->collective == kReduceScatter) buffers.receive_bytes = part;
  if (cell->in_place) {
    buffers.send_bytes = 0;
    buffers.receive_bytes = all;
  }
  const Rank* rank = cell->rank;
  (rank->registered ? rank->peer->allocate : allocate_private)(cell, buffers.send_bytes, buffers.receive_bytes);
  buffers.send = cell->send;
  buffers.receive = cell->receive;
  if (cell->in_place) {
    unsigned char* whole = cell->receive;
    const size_t mine = (size_t)cell->rank->rank * part;
    cell->send = cell->collective == kAllGather ? whole + mine : whole;
    cell->receive = cell->collective == kReduceScatter ? whole + mine : whole;
  }
  return buffers;
}

static void free_buffers(Cell* cell, const Buffers* buffers) {
  const Rank* rank = cell->rank;
  cell->send = buffers->send;
  cell->receive = buffers->receive;
  if (rank->registered) {
    rank->peer->release(cell);
    return;
  }
  munmap(cell->receive, buffers->receive_bytes);
  if (!cell->in_place) munmap(cell->send, buffers->send_bytes);
}

/* ---- Time ---- */

static void time_batch(Cell* cell, uint64_t calls, uint64_t index) {
  Rank* rank = cell->rank;
  void (*const call)(Cell*) = rank->peer->call;
  worker_barrier(rank);
  const uint64_t start = worker_now_ns();
  for (uint64_t n = 0; n < calls; ++n) call(cell);
  rank->control->duration_ns[rank->rank][index] = worker_now_ns() - start;
}

static uint64_t slowest_rank_ns(const Rank* rank, uint64_t index) {
  uint64_t longest = 0;
  for (int n = 0; n < rank->ranks; ++n)
    if (rank->control->duration_ns[n][index] > longest) longest = rank->control->duration_ns[n][index];
  return longest;
}

/* Rank 0, after a batch of `calls` that took `took_ns`: how many calls the next has, and, if that is right, how many
 * batches there are (else 0). */
static void decide(Control* control, uint64_t calls, uint64_t took_ns, uint64_t budget_ns) {
  if (took_ns == 0) took_ns = 1;
  control->batches = 0;
  if (took_ns < kBatchNs / 2 && calls < kCallsMax) {
    uint64_t next = calls * kBatchNs / took_ns;
    if (next > calls * 16) next = calls * 16;
    control->calls = next > calls ? next : calls + 1;
    return;
  }
  control->calls = calls;
  const uint64_t least = took_ns > kLongBatchNs ? kLongBatchesMin : kBatchesMin;
  const uint64_t batches = budget_ns / took_ns;
  control->batches = batches < least ? least : batches > kBatchesMax ? kBatchesMax : batches;
}

static void calibrate(Cell* cell, uint64_t budget_ns) {
  Rank* rank = cell->rank;
  Control* control = rank->control;
  /* The first call may set things up. */
  time_batch(cell, 1, 0);
  for (uint64_t calls = 1;;) {
    /* The better of two: one that was disturbed would end the search too early. */
    time_batch(cell, calls, 0);
    time_batch(cell, calls, 1);
    worker_barrier(rank);
    if (rank->rank == 0) {
      const uint64_t first = slowest_rank_ns(rank, 0), second = slowest_rank_ns(rank, 1);
      decide(control, calls, first < second ? first : second, budget_ns);
    }
    worker_barrier(rank);
    calls = control->calls;
    if (control->batches > 0) return;
  }
}

static int ascending(const void* a, const void* b) {
  const uint64_t left = *(const uint64_t*)a, right = *(const uint64_t*)b;
  return left < right ? -1 : left > right;
}

static void report(const Rank* rank, const Request* request, FILE* reply) {
  const Control* control = rank->control;
  uint64_t batch_ns[kBatchesMax];
  for (uint64_t n = 0; n < control->batches; ++n) batch_ns[n] = slowest_rank_ns(rank, n);
  qsort(batch_ns, control->batches, sizeof batch_ns[0], ascending);
  const double per_call_us = 1e-3 / (double)control->calls;
  const uint64_t middle = control->batches / 2;
  const double median_ns =
      control->batches % 2 ? (double)batch_ns[middle] : ((double)batch_ns[middle - 1] + (double)batch_ns[middle]) / 2;
  fprintf(
      reply,
      "{\"us\": %.9g, \"fastest_us\": %.9g, \"slowest_us\": %.9g, \"batches\": %llu, \"calls\": %llu, \"bytes\": %zu",
      median_ns * per_call_us, (double)batch_ns[0] * per_call_us, (double)batch_ns[control->batches - 1] * per_call_us,
      (unsigned long long)control->batches, (unsigned long long)control->calls,
      request->cell.count * element_bytes(request->cell.type));
  if (request->check) fprintf(reply, ", \"wrong\": %llu", (unsigned long long)control->wrong);
  fputc('}', reply);
}

void measure_command(Rank* rank, const char* line, FILE* reply) {
  Request request = parse(rank, line);
  Cell* cell = &request.cell;
  const Buffers buffers = make_buffers(cell);
  if (rank->rank == 0) rank->control->wrong = 0;
  pattern_fill(cell);
  if (rank->peer->begin) rank->peer->begin(cell);
  worker_barrier(rank);
  if (request.check) {
    rank->peer->call(cell);
    const size_t wrong = pattern_wrong(cell);
    __atomic_add_fetch(&rank->control->wrong, wrong, __ATOMIC_RELAXED);
    /* Nobody writes again before everybody has looked. */
    worker_barrier(rank);
  }
  calibrate(cell, request.budget_ns);
  for (uint64_t n = 0; n < rank->control->batches; ++n) time_batch(cell, rank->control->calls, n);
  worker_barrier(rank);
  if (rank->peer->end) rank->peer->end(cell);
  free_buffers(cell, &buffers);
  if (rank->rank == 0) report(rank, &request, reply);
}
