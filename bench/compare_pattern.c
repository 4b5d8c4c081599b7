/* Input that makes a wrong result show: small integers, exact in every type and any order of summing, that depend on
 * rank and position. Positions repeat after a prime number of elements, so that whole periods are compared at once and a
 * part of the usual sizes that lands at the wrong place differs. */
#include "compare_worker.h"

#include <stdlib.h>
#include <string.h>

enum { kPeriod = 4099, kPoison = 0xa5 };

size_t element_bytes(ElementType type) {
  static const size_t bytes[] = {4, 8, 4, 2, 2};
  return bytes[type];
}

/* Rank r's input at position i, 0 to 12, or less where so many ranks' sum would not be exact: bfloat16 has the integers up to 256. */
static unsigned value(ElementType type, int ranks, int rank, size_t position) {
  const uint32_t k = (uint32_t)((position + 17u * (unsigned)rank) % kPeriod);
  const unsigned most = 256u / (unsigned)ranks;
  return ((k * 2654435761u) >> 16) % (type == kBfloat16 && most < 12 ? most + 1 : 13);
}

static void encode(unsigned number, ElementType type, unsigned char* to) {
  const float real = (float)number;
  uint32_t bits;
  memcpy(&bits, &real, sizeof bits);
  const uint16_t bfloat16 = (uint16_t)(bits >> 16);
  /* Exact for integers up to 2048: float's exponent with another bias, ten bits of the fraction. */
  const uint16_t half = number == 0 ? 0 : (uint16_t)((((bits >> 23) - 127 + 15) << 10) | ((bits >> 13) & 0x3ff));
  const double wide = number;
  const int32_t integer = (int32_t)number;
  switch (type) {
    case kFloat: memcpy(to, &real, sizeof real); break;
    case kDouble: memcpy(to, &wide, sizeof wide); break;
    case kInt32: memcpy(to, &integer, sizeof integer); break;
    case kHalf: memcpy(to, &half, sizeof half); break;
    default: memcpy(to, &bfloat16, sizeof bfloat16);
  }
}

/* `ranks` ranks from `first` on, added: element k of a period. */
static unsigned char* make_period(const Cell* cell, int first, int ranks) {
  const ElementType type = cell->type;
  const size_t width = element_bytes(type);
  unsigned char* period = malloc(kPeriod * width);
  if (!period) worker_fail(NULL, "no memory for the pattern");
  for (size_t k = 0; k < kPeriod; ++k) {
    unsigned sum = 0;
    for (int rank = first; rank < first + ranks; ++rank) sum += value(type, cell->rank->ranks, rank, k);
    encode(sum, type, period + k * width);
  }
  return period;
}

/* Calls `visit` for stretches of a buffer whose element 0 is the pattern's `position`. */
static size_t each_stretch(unsigned char* data, size_t count, const unsigned char* period, size_t position,
                           size_t width,
                           size_t (*visit)(unsigned char*, const unsigned char*, size_t stretch, size_t width)) {
  size_t total = 0;
  for (size_t done = 0; done < count;) {
    const size_t start = (position + done) % kPeriod;
    const size_t stretch = count - done < kPeriod - start ? count - done : kPeriod - start;
    total += visit(data + done * width, period + start * width, stretch, width);
    done += stretch;
  }
  return total;
}

static size_t write_stretch(unsigned char* data, const unsigned char* period, size_t stretch, size_t width) {
  memcpy(data, period, stretch * width);
  return 0;
}

static size_t differing(unsigned char* data, const unsigned char* period, size_t stretch, size_t width) {
  if (memcmp(data, period, stretch * width) == 0) return 0;
  size_t wrong = 0;
  for (size_t k = 0; k < stretch; ++k) wrong += memcmp(data + k * width, period + k * width, width) != 0;
  return wrong;
}

void pattern_fill(Cell* cell) {
  const size_t width = element_bytes(cell->type);
  const size_t send_count = cell->collective == kAllGather ? cell->part : cell->count;
  const size_t receive_count = cell->collective == kReduceScatter ? cell->part : cell->count;
  const int me = cell->rank->rank;
  memset(cell->receive, kPoison, receive_count * width);
  if (cell->in_place && cell->collective == kBroadcast && me != 0) return;
  unsigned char* period = make_period(cell, me, 1);
  each_stretch(cell->send, send_count, period, 0, width, write_stretch);
  free(period);
}

/* Compares `count` elements from element `at` of the output on with the sum of some ranks' inputs. */
static size_t compare(const Cell* cell, size_t at, size_t count, int first, int ranks, size_t position) {
  const size_t width = element_bytes(cell->type);
  unsigned char* period = make_period(cell, first, ranks);
  const size_t wrong = each_stretch(cell->receive + at * width, count, period, position, width, differing);
  free(period);
  return wrong;
}

size_t pattern_wrong(const Cell* cell) {
  const int me = cell->rank->rank, ranks = cell->rank->ranks;
  size_t wrong = 0;
  switch (cell->collective) {
    case kAllReduce: return compare(cell, 0, cell->count, 0, ranks, 0);
    case kReduce: return me == 0 ? compare(cell, 0, cell->count, 0, ranks, 0) : 0;
    case kReduceScatter: return compare(cell, 0, cell->part, 0, ranks, (size_t)me * cell->part);
    case kBroadcast: return compare(cell, 0, cell->count, 0, 1, 0);
    case kSendReceive: return compare(cell, 0, cell->count, (me + ranks - 1) % ranks, 1, 0);
    case kAllGather:
    case kAllToAll:
      for (int rank = 0; rank < ranks; ++rank)
        wrong += compare(cell, (size_t)rank * cell->part, cell->part, rank, 1,
                         cell->collective == kAllToAll ? (size_t)me * cell->part : 0);
      return wrong;
    default: return cell->count;
  }
}
