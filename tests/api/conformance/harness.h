/* One rank of the conformance program: its communicator, its buffers with guard zones, its failures. */
#ifndef TUTTI_CONFORMANCE_HARNESS_H
#define TUTTI_CONFORMANCE_HARNESS_H

#include "numbers.h"

#include <stddef.h>
#include <stdint.h>

#define ARENA_BYTES ((size_t)4 << 20)

/* Memory to cut buffers from: private, or from ncclMemAlloc. */
typedef enum { kPrivate, kShared, kMemoryKinds } Memory;

typedef struct {
  int rank, ranks;
  ncclComm_t comm;
  uint32_t seed; /* grows by one per case, alike on every rank */
  int quick;
  unsigned char* send_arena[kMemoryKinds];
  unsigned char* receive_arena[kMemoryKinds];
  long checks, failures;
} Rank;

/* `bytes` bytes with guards around them, cut from an arena at `shift` bytes from an aligned place. Filled with poison.
 * */
typedef struct {
  unsigned char* data;
  size_t bytes;
} Buffer;

int arenas_make(Rank* me);
void arenas_free(Rank* me);
Buffer buffer_cut(unsigned char* arena, size_t bytes, size_t shift);
int buffer_guards_intact(const Buffer* buffer);
int buffer_is_poison(const unsigned char* data, size_t bytes);

/* Counts a check; prints "rank R of N: ..." if it does not hold. Returns ok. */
int expect(Rank* me, int ok, const char* format, ...) __attribute__((format(printf, 3, 4)));
/* The result must be ncclSuccess; the library's reason is printed. */
int expect_success(Rank* me, ncclResult_t result, const char* what);
/* data[count] must equal the bits of wanted[count]; prints the first difference. */
int expect_bits(Rank* me, const void* data, const void* wanted, size_t count, size_t element_bytes, const char* what);

/* Waits until a communicator is out of ncclInProgress; returns its state. */
ncclResult_t settle(ncclComm_t comm);
/* A sum of ones: the communicator still works. */
int expect_usable(Rank* me, ncclComm_t comm, const char* after);

/* The parts of the program. All ranks call them in the same order. */
void test_collectives(Rank* me);
void test_groups(Rank* me);
void test_point_to_point(Rank* me);
void test_splits(Rank* me);
void test_misuse(Rank* me);
void test_configurations(Rank* me, const ncclUniqueId* ids);
void test_rooted(Rank* me, const ncclUniqueId* id);
#define CONFIGURATION_IDS 4
#define ROOTED_IDS 1

#endif
