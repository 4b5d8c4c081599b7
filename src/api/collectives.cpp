// The collectives, send and receive: check the arguments, submit the call.
#include "api/boundary.h"
#include "api/export.h"
#include "api/repeated_call.h"

namespace tutti::api {
namespace {

constexpr Names kNamesOfBcast{.send = "buff", .receive = "buff", .one_buffer = true};
constexpr Names kNamesOfReduceScatter{.count = "recvcount"};
constexpr Names kNamesOfAllGather{.count = "sendcount"};

[[gnu::noinline]] Status submit_checked(RawCall call) {
  TUTTI_TRY_ASSIGN(comm::Communicator * communicator, checked_communicator(call.comm));
  const Result<comm::CallArgs> args = checked_call(*communicator, call);
  return args.ok() ? comm::submit(*communicator, args.value()) : Status(args.error());
}

/// In each function by itself, so that a repeated call's arguments need not go through memory.
[[gnu::always_inline]] inline ncclResult_t submit(const char* function, const RawCall& call) noexcept {
  return boundary(function, call.comm, InGroup::kFailsGroup, [&]() -> Status {
    if (const comm::CallArgs* repeated = repeated_call(call)) [[likely]] {
      if (comm::Communicator* const communicator = comm::find(call.comm)) [[likely]]
        return comm::submit(*communicator, *repeated);
    }
    return submit_checked(call);
  });
}

}  // namespace
}  // namespace tutti::api

using tutti::Collective;
using tutti::api::kNamesOfAllGather;
using tutti::api::kNamesOfBcast;
using tutti::api::kNamesOfReduceScatter;
using tutti::api::submit;

TUTTI_NCCL_API(ncclResult_t, AllReduce, const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return submit("ncclAllReduce", {.collective = Collective::kAllReduce,
                                  .send = sendbuff,
                                  .receive = recvbuff,
                                  .count = count,
                                  .type = datatype,
                                  .op = op,
                                  .comm = comm,
                                  .stream = stream});
}

TUTTI_NCCL_API(ncclResult_t, Reduce, const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
               ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return submit("ncclReduce", {.collective = Collective::kReduce,
                               .send = sendbuff,
                               .receive = recvbuff,
                               .count = count,
                               .type = datatype,
                               .op = op,
                               .root = root,
                               .comm = comm,
                               .stream = stream});
}

TUTTI_NCCL_API(ncclResult_t, Broadcast, const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
               int root, ncclComm_t comm, cudaStream_t stream) {
  return submit("ncclBroadcast", {.collective = Collective::kBroadcast,
                                  .send = sendbuff,
                                  .receive = recvbuff,
                                  .count = count,
                                  .type = datatype,
                                  .root = root,
                                  .comm = comm,
                                  .stream = stream});
}

TUTTI_NCCL_API(ncclResult_t, Bcast, void* buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
               cudaStream_t stream) {
  return submit("ncclBcast", {.collective = Collective::kBroadcast,
                              .send = buff,
                              .receive = buff,
                              .count = count,
                              .type = datatype,
                              .root = root,
                              .comm = comm,
                              .stream = stream,
                              .names = &kNamesOfBcast});
}

TUTTI_NCCL_API(ncclResult_t, ReduceScatter, const void* sendbuff, void* recvbuff, size_t recvcount,
               ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return submit("ncclReduceScatter", {.collective = Collective::kReduceScatter,
                                      .send = sendbuff,
                                      .receive = recvbuff,
                                      .count = recvcount,
                                      .type = datatype,
                                      .op = op,
                                      .comm = comm,
                                      .stream = stream,
                                      .names = &kNamesOfReduceScatter});
}

TUTTI_NCCL_API(ncclResult_t, AllGather, const void* sendbuff, void* recvbuff, size_t sendcount, ncclDataType_t datatype,
               ncclComm_t comm, cudaStream_t stream) {
  return submit("ncclAllGather", {.collective = Collective::kAllGather,
                                  .send = sendbuff,
                                  .receive = recvbuff,
                                  .count = sendcount,
                                  .type = datatype,
                                  .comm = comm,
                                  .stream = stream,
                                  .names = &kNamesOfAllGather});
}

TUTTI_NCCL_API(ncclResult_t, AlltoAll, const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
               ncclComm_t comm, cudaStream_t stream) {
  return submit("ncclAlltoAll", {.collective = Collective::kAllToAll,
                                 .send = sendbuff,
                                 .receive = recvbuff,
                                 .count = count,
                                 .type = datatype,
                                 .comm = comm,
                                 .stream = stream});
}

TUTTI_NCCL_API(ncclResult_t, Gather, const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
               int root, ncclComm_t comm, cudaStream_t stream) {
  return submit("ncclGather", {.collective = Collective::kGather,
                               .send = sendbuff,
                               .receive = recvbuff,
                               .count = count,
                               .type = datatype,
                               .root = root,
                               .comm = comm,
                               .stream = stream});
}

TUTTI_NCCL_API(ncclResult_t, Scatter, const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
               int root, ncclComm_t comm, cudaStream_t stream) {
  return submit("ncclScatter", {.collective = Collective::kScatter,
                                .send = sendbuff,
                                .receive = recvbuff,
                                .count = count,
                                .type = datatype,
                                .root = root,
                                .comm = comm,
                                .stream = stream});
}

TUTTI_NCCL_API(ncclResult_t, Send, const void* sendbuff, size_t count, ncclDataType_t datatype, int peer,
               ncclComm_t comm, cudaStream_t stream) {
  return submit("ncclSend", {.collective = Collective::kSend,
                             .send = sendbuff,
                             .count = count,
                             .type = datatype,
                             .root = peer,
                             .comm = comm,
                             .stream = stream});
}

TUTTI_NCCL_API(ncclResult_t, Recv, void* recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
               cudaStream_t stream) {
  return submit("ncclRecv", {.collective = Collective::kReceive,
                             .receive = recvbuff,
                             .count = count,
                             .type = datatype,
                             .root = peer,
                             .comm = comm,
                             .stream = stream});
}
