// The check of what users pass to collectives and to send and receive. Every message says which argument is wrong, its
// value, and what would be right.
#pragma once

#include "base/dtype.h"
#include "base/result.h"
#include "comm/comm.h"

#include <nccl.h>

#include <cstddef>

namespace tutti::api {

/// What the function calls its parameters.
struct Names {
  const char* send = "sendbuff";
  const char* receive = "recvbuff";
  const char* count = "count";
  bool one_buffer = false;  ///< for both
};
inline constexpr Names kUsualNames;

/// A call as the user made it, nothing checked. Fields that the function does not have keep their defaults.
struct RawCall {
  Collective collective;
  const void* send = nullptr;
  void* receive = nullptr;
  std::size_t count = 0;
  ncclDataType_t type = ncclInt8;
  ncclRedOp_t op = ncclSum;
  int root = 0;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  const Names* names = &kUsualNames;
};

/// InvalidArgument for NULL and for a handle that is not, or no longer, a communicator's.
Result<comm::Communicator*> checked_communicator(ncclComm_t handle);

/// InvalidArgument for a value outside 0 .. ncclNumTypes-1.
Result<DataType> checked_type(ncclDataType_t type);

/// From the place of a PreMulSum among its communicator's, kReduceOps and more, to the number that users have for it, and back. Each
/// communicator has other numbers: its operations are not another's.
int exchanged_op(ncclComm_t comm, int op);

/// Type, operation, root or peer, and count.
Result<comm::CallArgs> checked_shape(comm::Communicator& communicator, const RawCall& call);

/// All of checked_shape, and buffers and stream.
Result<comm::CallArgs> checked_call(comm::Communicator& communicator, const RawCall& call);

/// InvalidArgument "NAME is NULL..." for a result pointer that the function needs.
Status checked_pointer(const void* pointer, const char* name);

}  // namespace tutti::api
