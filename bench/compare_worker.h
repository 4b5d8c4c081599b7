/* compare_worker.h: what the workers of bench/compare share, so that every peer is started, pinned, timed and checked by
 * the same code. A worker is one program for one library: its ranks are forked here, are threads, or were started by a
 * launcher (mpirun). Rank 0 reads commands, a line each, from a FIFO, and answers each with a line of JSON in another:
 *
 *   run COLLECTIVE TYPE BYTES IN_PLACE PAGES CHECK BUDGET_MS VARIANT    measures one cell (compare_measure.c)
 *   probe, memory BYTES                                                 the floor's worker only (compare_probe.cpp)
 *
 * Between commands all ranks sleep, so that the workers of all peers can live side by side. A rank that fails prints
 * why and ends its process; whoever started the worker notices.
 */
#ifndef TUTTI_BENCH_COMPARE_WORKER_H
#define TUTTI_BENCH_COMPARE_WORKER_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { kRanksMax = 64, kBatchesMax = 64, kCommandBytes = 256, kSharedBytes = 512 };

typedef enum {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kReduce,
  kAllToAll,
  kSendReceive,
  kCollectiveCount
} Collective;

typedef enum { kFloat, kDouble, kInt32, kHalf, kBfloat16, kElementTypeCount } ElementType;
size_t element_bytes(ElementType type);

/* What the ranks of a worker share. Zeroed memory is its initial state. */
typedef struct Control {
  uint32_t command_number __attribute__((aligned(64))); /* ranks other than 0 sleep on it */
  char command[2][kCommandBytes];                       /* the line of command number n is command[n % 2] */
  uint32_t arrived __attribute__((aligned(64)));
  uint32_t generation __attribute__((aligned(64)));
  uint64_t calls __attribute__((aligned(64))); /* rank 0's decision about the next batches */
  uint64_t batches;
  uint64_t wrong;                     /* elements, of all ranks */
  unsigned char shared[kSharedBytes]; /* rank 0's word to the others before the first command: worker_share */
  uint64_t duration_ns[kRanksMax][kBatchesMax];
} Control;

struct Peer;

typedef struct Rank {
  int rank, ranks;
  int cores; /* that the ranks run on */
  int hosts; /* that the ranks are spread over, per_host on each; 1: this one */
  int per_host;
  const char* address; /* of the rank's host, for those that must be told */
  int registered;
  Control* control;
  const struct Peer* peer;
  void* context; /* the peer's own */
} Rank;

typedef enum { kPagesSystem, kPagesSmall, kPagesHuge } Pages;

/* One operation on one pair of buffers. Rank 0 is the root; send/receive goes to the next rank, from the previous. */
typedef struct Cell {
  Rank* rank;
  Collective collective;
  ElementType type;
  size_t count; /* elements in the larger of a rank's two buffers; a multiple of the ranks where they have parts */
  size_t part;  /* count / ranks */
  int in_place;
  Pages pages;
  char variant[32];
  unsigned char* send; /* in place, both are in one buffer */
  unsigned char* receive;
  void* context; /* the peer's own */
} Cell;

typedef struct Peer {
  int launched;                    /* the ranks were started by a launcher; `open` finds out who they are */
  void (*before_ranks)(int ranks); /* before they are forked; may be NULL */
  void (*open)(Rank* rank);        /* connects the ranks */
  void (*begin)(Cell* cell);       /* before the calls of a cell; may be NULL */
  void (*call)(Cell* cell);        /* one operation, from this rank's start to its end */
  void (*end)(Cell* cell);         /* may be NULL */
  /* Registered buffers; private ones are everybody's alike. In place there is one, `receive`. May be NULL. */
  void (*allocate)(Cell* cell, size_t send_bytes, size_t receive_bytes);
  void (*release)(Cell* cell);
  void (*command)(Rank* rank, const char* line, FILE* reply); /* others than "run"; may be NULL; reply: rank 0 only */
  void (*close)(Rank* rank);                                  /* may be NULL */
} Peer;

/* The main function of a worker; returns its exit status. */
int worker_main(int argc, char** argv, const Peer* peer);

/* Prints what went wrong and ends this process. */
void worker_fail(const Rank* rank, const char* format, ...) __attribute__((format(printf, 2, 3), noreturn));
/* All ranks: returns when all have come. */
void worker_barrier(Rank* rank);
/* All ranks: rank 0's bytes (up to kSharedBytes) at everybody's `data`. */
void worker_share(Rank* rank, void* data, size_t bytes);
/* Waiting politely: a processor's pause, or another process's turn where ranks share cores. */
void worker_pause(const Rank* rank, unsigned spins);
uint64_t worker_now_ns(void);
/* madvise as `pages` says. */
void worker_advise(void* memory, size_t bytes, Pages pages);

/* Measures the cell of a "run" line. */
void measure_command(Rank* rank, const char* line, FILE* reply);

/* Fills the cell's input with exact small integers that depend on rank and position, and the output with poison. */
void pattern_fill(Cell* cell);
/* Elements of the output that are not what they must be. */
size_t pattern_wrong(const Cell* cell);

#ifdef __cplusplus
}
#endif
#endif
