#include "numbers.h"

#include <math.h>
#include <string.h>

typedef struct {
  const char* name;
  unsigned bytes;
  int is_float;
  int is_signed;
  int exponent_bits, mantissa_bits; /* of floats below 32 bits */
  int64_t exact;                    /* integers up to this are exact, and sums up to it */
} TypeFacts;

static const TypeFacts kTypes[ncclNumTypes] = {
    {"int8", 1, 0, 1, 0, 0, 127},       {"uint8", 1, 0, 0, 0, 0, 255},       {"int32", 4, 0, 1, 0, 0, 1 << 20},
    {"uint32", 4, 0, 0, 0, 0, 1 << 20}, {"int64", 8, 0, 1, 0, 0, 1 << 20},   {"uint64", 8, 0, 0, 0, 0, 1 << 20},
    {"float16", 2, 1, 1, 5, 10, 2048},  {"float32", 4, 1, 1, 0, 0, 1 << 22}, {"float64", 8, 1, 1, 0, 0, 1 << 22},
    {"bfloat16", 2, 1, 1, 8, 7, 256},   {"float8e4m3", 1, 1, 1, 4, 3, 16},   {"float8e5m2", 1, 1, 1, 5, 2, 8},
};

static const char* const kOpNames[kOps] = {"sum", "prod", "max", "min", "avg", "premulsum"};

size_t type_size(ncclDataType_t type) { return kTypes[type].bytes; }
const char* type_name(ncclDataType_t type) { return kTypes[type].name; }
const char* op_name(Op op) { return kOpNames[op]; }
int scale_of(int rank) { return 1 + rank % 2; }

uint32_t mixed(uint32_t seed, uint32_t rank, uint32_t position) {
  uint32_t h = seed * 0x9e3779b1u ^ (rank + 1) * 0x85ebca77u ^ position * 0xc2b2ae3du;
  h ^= h >> 15;
  h *= 0x2c1b3c6du;
  h ^= h >> 12;
  h *= 0x297a2d39u;
  return h ^ h >> 15;
}

/* A small float's bits: sign, exponent, mantissa; finite values only. */
static unsigned small_float(double value, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const unsigned sign = value < 0 ? 1u << (exponent_bits + mantissa_bits) : 0;
  int exponent = 0;
  double quanta;
  if (value == 0) return 0;
  frexp(value, &exponent);
  exponent -= 1;
  if (exponent < 1 - bias) exponent = 1 - bias;
  /* A multiple of the last mantissa bit; the leading bit, or a carry, adds to the exponent by itself. */
  quanta = nearbyint(ldexp(fabs(value), mantissa_bits - exponent));
  return sign | (((unsigned)(exponent + bias - 1) << mantissa_bits) + (unsigned)quanta);
}

static void store_float(ncclDataType_t type, double value, void* to) {
  const TypeFacts* facts = &kTypes[type];
  if (type == ncclFloat64) {
    memcpy(to, &value, 8);
  } else if (type == ncclFloat32) {
    const float narrow = (float)value;
    memcpy(to, &narrow, 4);
  } else {
    const unsigned bits = small_float(value, facts->exponent_bits, facts->mantissa_bits);
    const uint16_t two = (uint16_t)bits;
    const uint8_t one = (uint8_t)bits;
    memcpy(to, facts->bytes == 2 ? (const void*)&two : (const void*)&one, facts->bytes);
  }
}

void store_integer(ncclDataType_t type, int64_t value, void* to) {
  const uint64_t wide = (uint64_t)value;
  const uint32_t four = (uint32_t)wide;
  const uint8_t one = (uint8_t)wide;
  if (kTypes[type].is_float) {
    store_float(type, (double)value, to);
  } else if (kTypes[type].bytes == 8) {
    memcpy(to, &wide, 8);
  } else {
    memcpy(to, kTypes[type].bytes == 4 ? (const void*)&four : (const void*)&one, kTypes[type].bytes);
  }
}

/* In -limit/n .. limit/n (0 .. for unsigned), so that no partial sum leaves -limit .. limit; where that leaves only
 * zero, a few ranks have 1 or -1 and the others 0. */
static int64_t bounded(const Sample* s, int64_t limit, int rank, uint32_t position) {
  const int is_signed = kTypes[s->type].is_signed;
  const int64_t each = limit / s->ranks;
  const uint32_t h = mixed(s->seed, (uint32_t)rank, position);
  if (each > 0) return (int64_t)(h % (uint32_t)(is_signed ? 2 * each + 1 : each + 1)) - (is_signed ? each : 0);
  {
    const uint32_t stride = (uint32_t)((s->ranks + limit - 1) / limit);
    if (((uint32_t)rank + mixed(s->seed, 999, position)) % stride != 0) return 0;
    return is_signed && (h & 1) ? -1 : 1;
  }
}

/* 2 on at most four ranks of sixteen, else 1 or -1: powers of two that every float can hold. */
static int64_t factor(const Sample* s, int rank, uint32_t position) {
  const uint32_t h = mixed(s->seed, (uint32_t)rank, position);
  if (!kTypes[s->type].is_float) return (int64_t)(h % 7) + 1;
  if (((uint32_t)rank + mixed(s->seed, 999, position)) % 4 == 0) return 2;
  return h & 1 ? -1 : 1;
}

/* Anything that the type can hold. */
static int64_t any_value(const Sample* s, int rank, uint32_t position) {
  const TypeFacts* facts = &kTypes[s->type];
  const uint32_t h = mixed(s->seed, (uint32_t)rank, position);
  if (facts->is_float) return (int64_t)(h % (uint32_t)(2 * facts->exact + 1)) - facts->exact;
  if (facts->bytes == 1) return facts->is_signed ? (int8_t)h : (uint8_t)h;
  if (facts->bytes == 4) return facts->is_signed ? (int32_t)h : (int64_t)h;
  /* 63 bits: positive for both signs. */
  return (int64_t)(((uint64_t)h << 31) ^ mixed(s->seed + 1, (uint32_t)rank, position));
}

static int64_t input(const Sample* s, int rank, uint32_t position) {
  const int is_float = kTypes[s->type].is_float;
  switch (s->op) {
    case kSum: return is_float ? bounded(s, kTypes[s->type].exact, rank, position) : any_value(s, rank, position);
    case kProd: return factor(s, rank, position);
    case kAvg: return bounded(s, kTypes[s->type].exact, rank, position);
    case kScaledSum:
      return is_float ? bounded(s, kTypes[s->type].exact / 2, rank, position) : any_value(s, rank, position);
    default: return any_value(s, rank, position);
  }
}

void store_input(const Sample* sample, int rank, size_t position, void* to) {
  store_integer(sample->type, input(sample, rank, (uint32_t)position), to);
}

static int64_t combine(Op op, int64_t a, int64_t b) {
  switch (op) {
    case kProd: return (int64_t)((uint64_t)a * (uint64_t)b);
    case kMax: return a > b ? a : b;
    case kMin: return a < b ? a : b;
    default: return (int64_t)((uint64_t)a + (uint64_t)b);
  }
}

void store_expected(const Sample* sample, size_t position, void* to) {
  int64_t total = 0;
  int rank;
  for (rank = 0; rank < sample->ranks; ++rank) {
    int64_t value = input(sample, rank, (uint32_t)position);
    if (sample->op == kScaledSum) value = (int64_t)((uint64_t)value * (uint64_t)scale_of(rank));
    total = rank == 0 ? value : combine(sample->op, total, value);
  }
  if (sample->op != kAvg) {
    store_integer(sample->type, total, to);
  } else if (!kTypes[sample->type].is_float) {
    store_integer(sample->type, total / sample->ranks, to);
  } else if (sample->type == ncclFloat64) {
    store_float(sample->type, (double)total / sample->ranks, to);
  } else {
    /* Divided in float32, then rounded to the type. */
    const volatile float quotient = (float)total / (float)sample->ranks;
    store_float(sample->type, quotient, to);
  }
}
