#include "harness.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { kGuard = 0xa5, kPoison = 0xc3, kGuardBytes = 64, kPrintedMax = 20 };

int arenas_make(Rank* me) {
  int kind;
  me->send_arena[kPrivate] = malloc(ARENA_BYTES);
  me->receive_arena[kPrivate] = malloc(ARENA_BYTES);
  if (!expect_success(me, ncclMemAlloc((void**)&me->send_arena[kShared], ARENA_BYTES), "ncclMemAlloc")) return 0;
  if (!expect_success(me, ncclMemAlloc((void**)&me->receive_arena[kShared], ARENA_BYTES), "ncclMemAlloc")) return 0;
  for (kind = 0; kind < kMemoryKinds; ++kind) {
    if (!me->send_arena[kind] || !me->receive_arena[kind]) return expect(me, 0, "no memory for buffers");
  }
  return 1;
}

void arenas_free(Rank* me) {
  free(me->send_arena[kPrivate]);
  free(me->receive_arena[kPrivate]);
  expect_success(me, ncclMemFree(me->send_arena[kShared]), "ncclMemFree");
  expect_success(me, ncclMemFree(me->receive_arena[kShared]), "ncclMemFree");
}

Buffer buffer_cut(unsigned char* arena, size_t bytes, size_t shift) {
  Buffer buffer;
  buffer.data = arena + kGuardBytes + shift;
  buffer.bytes = bytes;
  if (bytes + shift + 2 * kGuardBytes > ARENA_BYTES) {
    fprintf(stderr, "conformance: a case needs %zu bytes; make ARENA_BYTES larger\n", bytes);
    exit(2);
  }
  memset(buffer.data - kGuardBytes, kGuard, kGuardBytes);
  memset(buffer.data, kPoison, bytes);
  memset(buffer.data + bytes, kGuard, kGuardBytes);
  return buffer;
}

int buffer_guards_intact(const Buffer* buffer) {
  int i;
  for (i = 0; i < kGuardBytes; ++i) {
    if (buffer->data[i - kGuardBytes] != kGuard || buffer->data[buffer->bytes + (size_t)i] != kGuard) return 0;
  }
  return 1;
}

int buffer_is_poison(const unsigned char* data, size_t bytes) {
  size_t i;
  for (i = 0; i < bytes; ++i) {
    if (data[i] != kPoison) return 0;
  }
  return 1;
}

int expect(Rank* me, int ok, const char* format, ...) {
  ++me->checks;
  if (ok) return 1;
  if (me->failures++ < kPrintedMax) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    fprintf(stderr, "rank %d of %d: %s\n", me->rank, me->ranks, text);
  }
  return 0;
}

int expect_success(Rank* me, ncclResult_t result, const char* what) {
  return expect(me, result == ncclSuccess, "%s: %s: %s", what, ncclGetErrorString(result), ncclGetLastError(NULL));
}

int expect_bits(Rank* me, const void* data, const void* wanted, size_t count, size_t element_bytes, const char* what) {
  const unsigned char* a = data;
  const unsigned char* b = wanted;
  char got_hex[17] = "", wanted_hex[17] = "";
  size_t i = 0, k;
  if (memcmp(a, b, count * element_bytes) == 0) return expect(me, 1, "%s", what);
  while (memcmp(a + i * element_bytes, b + i * element_bytes, element_bytes) == 0) ++i;
  for (k = 0; k < element_bytes && k < 8; ++k) {
    sprintf(got_hex + 2 * k, "%02x", a[i * element_bytes + element_bytes - 1 - k]);
    sprintf(wanted_hex + 2 * k, "%02x", b[i * element_bytes + element_bytes - 1 - k]);
  }
  return expect(me, 0, "%s: element %zu of %zu is 0x%s, should be 0x%s", what, i, count, got_hex, wanted_hex);
}

ncclResult_t settle(ncclComm_t comm) {
  const struct timespec pause = {0, 1000000};
  ncclResult_t state = ncclInProgress;
  int tries;
  for (tries = 0; tries < 60000 && state == ncclInProgress; ++tries) {
    const ncclResult_t asked = ncclCommGetAsyncError(comm, &state);
    if (asked != ncclSuccess) return asked;
    if (state == ncclInProgress) nanosleep(&pause, NULL);
  }
  return state;
}

int expect_usable(Rank* me, ncclComm_t comm, const char* after) {
  int ranks = 0;
  int32_t ones[5] = {1, 1, 1, 1, 1};
  int32_t wanted[5];
  int i;
  if (!expect_success(me, ncclCommCount(comm, &ranks), after)) return 0;
  for (i = 0; i < 5; ++i) wanted[i] = ranks;
  if (!expect_success(me, ncclAllReduce(ones, ones, 5, ncclInt32, ncclSum, comm, NULL), after)) return 0;
  return expect_bits(me, ones, wanted, 5, 4, after);
}
