/* Own arithmetic of the conformance program: what every rank puts in, and what must come out, without the library's
 * help.
 * Inputs depend on rank and position; sums, products and averages of them are exact in every type, in any order. */
#ifndef TUTTI_CONFORMANCE_NUMBERS_H
#define TUTTI_CONFORMANCE_NUMBERS_H

#include <nccl.h>

#include <stddef.h>
#include <stdint.h>

/* The operations of a test: NCCL's five, and PreMulSum with scale_of(rank). */
typedef enum { kSum, kProd, kMax, kMin, kAvg, kScaledSum, kOps } Op;

size_t type_size(ncclDataType_t type);
const char* type_name(ncclDataType_t type);
const char* op_name(Op op);

/* Every input of a case is a function of (seed, rank, position). */
typedef struct {
  ncclDataType_t type;
  Op op;
  int ranks;
  uint32_t seed;
} Sample;

/* 32 well mixed bits. */
uint32_t mixed(uint32_t seed, uint32_t rank, uint32_t position);

/* The factor of PreMulSum. */
int scale_of(int rank);

/* One element of `type`, rounded to nearest even where it must be. */
void store_integer(ncclDataType_t type, int64_t value, void* to);

/* Rank's input at `position`. */
void store_input(const Sample* sample, int rank, size_t position, void* to);

/* The reduction of all ranks' inputs at `position`. */
void store_expected(const Sample* sample, size_t position, void* to);

#endif
