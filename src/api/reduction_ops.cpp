// Reduction operations that users make: PreMulSum.
#include "api/boundary.h"
#include "api/export.h"
#include "api/validation.h"
#include "comm/device_memory.h"

#include <cstring>

#include <fmt/format.h>

namespace tutti::api {
namespace {

Status create(ncclRedOp_t* op, const void* scalar, ncclDataType_t datatype, ncclScalarResidence_t residence,
              ncclComm_t comm) {
  TUTTI_TRY_ASSIGN(comm::Communicator * communicator, checked_communicator(comm));
  TUTTI_TRY(checked_pointer(op, "op"));
  TUTTI_TRY_ASSIGN(const DataType type, checked_type(datatype));
  if (!scalar) return error(Code::kInvalidArgument, "scalar is NULL; pass the address of one element of datatype");
  const int where = static_cast<int>(residence);
  if (where != ncclScalarDevice && where != ncclScalarHostImmediate)
    return error(Code::kInvalidArgument,
                 fmt::format("residence is {}; pass ncclScalarDevice (0) or ncclScalarHostImmediate (1)", where));
  comm::ScaledSum sum{type, 0};
  // On a GPU such a factor is read when the call runs, as NCCL does; elsewhere now.
  if (where == ncclScalarDevice && comm::device_of(*communicator) != comm::kHostMemory) {
    TUTTI_TRY_ASSIGN(sum.is_address, comm::is_device_visible(scalar));
  }
  if (sum.is_address) {
    sum.scale = reinterpret_cast<std::uintptr_t>(scalar);
  } else {
    std::memcpy(&sum.scale, scalar, size_of(type));
  }
  *op = static_cast<ncclRedOp_t>(exchanged_op(comm, kReduceOps + comm::create_scaled_sum(*communicator, sum)));
  return {};
}

Status destroy(ncclRedOp_t op, ncclComm_t comm) {
  TUTTI_TRY_ASSIGN(comm::Communicator * communicator, checked_communicator(comm));
  const int value = static_cast<int>(op);
  if (value < ncclNumOps)
    return error(Code::kInvalidArgument,
                 fmt::format("op is {}; only operations made by ncclRedOpCreatePreMulSum can be destroyed", value));
  if (comm::destroy_scaled_sum(*communicator, exchanged_op(comm, value) - kReduceOps).ok()) return {};
  return error(Code::kInvalidArgument,
               fmt::format("op {} is none of this communicator's, or is destroyed already", value));
}

}  // namespace
}  // namespace tutti::api

TUTTI_NCCL_API(ncclResult_t, RedOpCreatePreMulSum, ncclRedOp_t* op, void* scalar, ncclDataType_t datatype,
               ncclScalarResidence_t residence, ncclComm_t comm) {
  return tutti::api::boundary("ncclRedOpCreatePreMulSum", comm,
                              [&] { return tutti::api::create(op, scalar, datatype, residence, comm); });
}

TUTTI_NCCL_API(ncclResult_t, RedOpDestroy, ncclRedOp_t op, ncclComm_t comm) {
  return tutti::api::boundary("ncclRedOpDestroy", comm, [&] { return tutti::api::destroy(op, comm); });
}
