/* The calls of docs/tour.md: four ranks add up what they have. A client of the public headers only.
 *   tour-call              rank 2's element 5, before and after
 *   tour-call wrong        a call that is wrong on its own
 *   tour-call mismatch     a call that only the ranks together can see to be wrong
 *   tour-call bfloat16     element 5 alone, rounded to 8 bits on the way */
#include <nccl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <tutti/launch.h>
#include <tutti/tutti.h>

enum { kRanks = 4, kCount = 64, kElement = 5, kTextBytes = 320 };

/* What a rank found out; in shared memory, so that the parent can print it in order. */
typedef struct {
  float before, after;
  char message[kTextBytes];
} Finding;

typedef struct {
  const char* mode;
  Finding* findings;
} Tour;

static float number(int rank, int element) { return (float)(100 * rank + element); }

/* bfloat16 is the upper half of a float32; these numbers need no rounding on the way in. */
static uint16_t to_bfloat16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return (uint16_t)(bits >> 16);
}
static float from_bfloat16(uint16_t value) {
  const uint32_t bits = (uint32_t)value << 16;
  float wide;
  memcpy(&wide, &bits, sizeof wide);
  return wide;
}

static ncclResult_t add_floats(const Tour* tour, int rank, ncclComm_t comm, Finding* finding) {
  float input[kCount], output[kCount];
  const int wrong = strcmp(tour->mode, "wrong") == 0;
  const int odd_one = strcmp(tour->mode, "mismatch") == 0 && rank == 2;
  int i;
  for (i = 0; i < kCount; ++i) {
    input[i] = number(rank, i);
    output[i] = -1;
  }
  const ncclResult_t result = ncclAllReduce(input, output, odd_one ? kCount - 1 : kCount,
                                            wrong ? (ncclDataType_t)99 : ncclFloat, ncclSum, comm, NULL);
  finding->before = input[kElement];
  finding->after = output[kElement];
  return result;
}

static ncclResult_t add_bfloat16(int rank, ncclComm_t comm, Finding* finding) {
  static const float kNumbers[kRanks] = {129, 131, 1, 1};
  uint16_t input[kCount], output[kCount];
  int i;
  for (i = 0; i < kCount; ++i) input[i] = to_bfloat16(kNumbers[rank]);
  const ncclResult_t result = ncclAllReduce(input, output, kCount, ncclBfloat16, ncclSum, comm, NULL);
  finding->before = from_bfloat16(input[kElement]);
  finding->after = from_bfloat16(output[kElement]);
  return result;
}

static int rank_body(const tuttiLaunchInfo_t* me, const ncclUniqueId* id, void* context) {
  const Tour* tour = context;
  Finding* finding = &tour->findings[me->rank];
  ncclComm_t comm;
  if (ncclCommInitRank(&comm, me->size, *id, me->rank) != ncclSuccess) {
    fprintf(stderr, "%s\n", ncclGetLastError(NULL));
    return 1;
  }
  const ncclResult_t result = strcmp(tour->mode, "bfloat16") == 0 ? add_bfloat16(me->rank, comm, finding)
                                                                  : add_floats(tour, me->rank, comm, finding);
  snprintf(finding->message, kTextBytes, "%s", result == ncclSuccess ? "" : ncclGetLastError(comm));
  return ncclCommDestroy(comm) == ncclSuccess ? 0 : 1;
}

int main(int argc, char** argv) {
  Tour tour = {argc > 1 ? argv[1] : "sum", NULL};
  tuttiLaunchOutcome_t outcome;
  void* shared;
  int rank;
  if (tuttiMemAlloc(&shared, kRanks * sizeof(Finding), NULL) != ncclSuccess ||
      (tour.findings = shared, tuttiLaunchLocal(kRanks, rank_body, &tour, &outcome)) != ncclSuccess) {
    fprintf(stderr, "%s\n", ncclGetLastError(NULL));
    return 1;
  }
  if (outcome.exit_code != 0) return outcome.exit_code;
  for (rank = 0; rank < kRanks; ++rank) {
    const Finding* found = &tour.findings[rank];
    if (found->message[0] == '\0') {
      printf("rank %d: element %d was %g and is %g\n", rank, kElement, found->before, found->after);
    } else {
      printf("rank %d: %s; element %d is %g still\n", rank, found->message, kElement, found->after);
    }
  }
  return tuttiMemFree(shared) == ncclSuccess ? 0 : 1;
}
