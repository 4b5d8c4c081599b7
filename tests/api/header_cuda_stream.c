/* A program that has cudaStream_t from CUDA's headers already, or gets it afterwards: CUDA declares it this way. */
#define TUTTI_NCCL_NO_CUDA_HEADERS
#if defined(CUDA_FIRST)
#define __DRIVER_TYPES_H__
typedef struct CUstream_st* cudaStream_t;
#endif
#include <nccl.h>
#if defined(CUDA_AFTERWARDS)
typedef struct CUstream_st* cudaStream_t; /* allowed since C11 */
#endif

ncclResult_t forward(const void* in, void* out, ncclComm_t comm, struct CUstream_st* stream);
ncclResult_t forward(const void* in, void* out, ncclComm_t comm, struct CUstream_st* stream) {
  return ncclAllReduce(in, out, 1, ncclFloat, ncclSum, comm, stream);
}

int main(void) { return 0; }
