/* What tutti-perf --against takes for another library in tests: this one's functions, all-reduce slower, and wrong or not there at all where the
 * environment says so. */
#include <nccl.h>
#include <tutti/tutti.h>

#include <stdlib.h>
#include <time.h>

#define OTHER_EXPORT __attribute__((visibility("default")))

/* Who has this works on host memory. */
OTHER_EXPORT ncclResult_t tuttiSetDevice(tuttiDevice_t device) {
  (void)device;
  return ncclSuccess;
}

OTHER_EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  return getenv("OTHER_NCCL_REFUSES") ? ncclSystemError : pncclGetUniqueId(id);
}

OTHER_EXPORT const char* ncclGetErrorString(ncclResult_t code) {
  return code == ncclSystemError ? "the other library's own words" : pncclGetErrorString(code);
}

OTHER_EXPORT ncclResult_t ncclAllReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                                        ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  const struct timespec two_ms = {0, 2000000};
  const ncclResult_t code = pncclAllReduce(sendbuff, recvbuff, count, datatype, op, comm, stream);
  nanosleep(&two_ms, NULL);
  if (code == ncclSuccess && count > 0 && getenv("OTHER_NCCL_LIES")) *(char*)recvbuff ^= 1;
  return code;
}
