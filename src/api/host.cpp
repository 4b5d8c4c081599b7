// tutti/tutti.h: streams, events, shared memory, communicators on host memory, plans.
#include "api/boundary.h"
#include "api/config_struct.h"
#include "api/creation.h"
#include "api/device_choice.h"
#include "api/export.h"
#include "api/validation.h"
#include "executor/stream.h"
#include "transport/shared_memory.h"

#include <tutti/tutti.h>

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <string>

#include <fmt/format.h>

namespace tutti::api {
namespace {

/// Success or in-progress: what queries of streams and events return.
Status done(const Result<bool>& query) {
  if (!query.ok()) return query.error();
  return query.value() ? Status() : Status(error(Code::kInProgress, "not done yet"));
}

Status allocate(void** ptr, std::size_t bytes, int* fd) {
  TUTTI_TRY(checked_pointer(ptr, "ptr"));
  *ptr = nullptr;
  TUTTI_TRY_ASSIGN(void* memory, transport::shared_allocate(bytes));
  if (fd) {
    const Result<int> descriptor = transport::shared_fd(memory);
    if (!descriptor.ok()) {
      static_cast<void>(transport::shared_free(memory));
      return descriptor.error();
    }
    *fd = descriptor.value();
  }
  *ptr = memory;
  return {};
}

Status import(int fd, void** ptr, std::size_t* bytes) {
  TUTTI_TRY(checked_pointer(ptr, "ptr"));
  *ptr = nullptr;
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || (flags & O_ACCMODE) != O_RDWR)
    return error(Code::kInvalidArgument,
                 fmt::format("fd is {}; pass a descriptor from tuttiMemAlloc, open for reading and writing", fd));
  TUTTI_TRY_ASSIGN(*ptr, transport::shared_import(fd));
  if (bytes) {
    const auto found = transport::shared_find(*ptr, 1);
    *bytes = found ? static_cast<std::size_t>(found->bytes) : 0;
  }
  return {};
}

/// An answer about a call, as text: comm::explain or comm::candidate_rules.
using Answer = Result<std::string> (*)(comm::Communicator&, const comm::CallArgs&);

/// Before anything is done for the answer.
Status check_room(const char* text, std::size_t size) {
  if (text || size == 0) return {};
  return error(Code::kInvalidArgument,
               fmt::format("text is NULL, but size is {}; pass 0 to ask for the size only", size));
}

/// As much of it as fits.
void hand_over(const std::string& answer, char* text, std::size_t size, std::size_t* needed) {
  if (needed) *needed = answer.size() + 1;
  if (size == 0) return;
  const std::size_t shown = std::min(answer.size(), size - 1);
  std::memcpy(text, answer.data(), shown);
  text[shown] = '\0';
}

Status tell_topology(ncclComm_t comm, char* text, std::size_t size, std::size_t* needed) {
  TUTTI_TRY_ASSIGN(comm::Communicator * communicator, checked_communicator(comm));
  TUTTI_TRY(check_room(text, size));
  TUTTI_TRY_ASSIGN(const std::string graph, comm::topology(*communicator));
  hand_over(graph, text, size, needed);
  return {};
}

Status explain(ncclComm_t comm, tuttiCollective_t collective, RawCall call, Answer answer, char* text, std::size_t size,
               std::size_t* needed) {
  TUTTI_TRY_ASSIGN(comm::Communicator * communicator, checked_communicator(comm));
  const int value = static_cast<int>(collective);
  if (value < 0 || value >= kCollectives)
    return error(Code::kInvalidArgument,
                 fmt::format("collective is {}; pass tuttiAllReduce (0) to tuttiRecv ({})", value, kCollectives - 1));
  TUTTI_TRY(check_room(text, size));
  call.collective = static_cast<Collective>(value);
  call.comm = comm;
  TUTTI_TRY_ASSIGN(const comm::CallArgs args, checked_shape(*communicator, call));
  TUTTI_TRY_ASSIGN(const std::string plan, answer(*communicator, args));
  hand_over(plan, text, size, needed);
  return {};
}

Status report_ranks(ncclComm_t comm, char* text, std::size_t size, std::size_t* needed) {
  TUTTI_TRY_ASSIGN(comm::Communicator * communicator, checked_communicator(comm));
  TUTTI_TRY(check_room(text, size));
  TUTTI_TRY_ASSIGN(const std::string ranks, comm::report_of(*communicator));
  hand_over(ranks, text, size, needed);
  return {};
}

}  // namespace
}  // namespace tutti::api

using tutti::Status;
using tutti::api::boundary;
using tutti::api::checked_pointer;
namespace executor = tutti::executor;

TUTTI_API(ncclResult_t, tuttiStreamCreate, cudaStream_t* stream) {
  return boundary("tuttiStreamCreate", nullptr, [&]() -> Status {
    TUTTI_TRY(checked_pointer(stream, "stream"));
    *stream = nullptr;
    TUTTI_TRY_ASSIGN(executor::StreamHandle handle, executor::stream_create());
    *stream = static_cast<cudaStream_t>(handle);
    return {};
  });
}

TUTTI_API(ncclResult_t, tuttiStreamSynchronize, cudaStream_t stream) {
  return boundary("tuttiStreamSynchronize", nullptr, [&] { return executor::stream_synchronize(stream); });
}

TUTTI_API(ncclResult_t, tuttiStreamQuery, cudaStream_t stream) {
  return boundary("tuttiStreamQuery", nullptr, [&] { return tutti::api::done(executor::stream_query(stream)); });
}

TUTTI_API(ncclResult_t, tuttiStreamDestroy, cudaStream_t stream) {
  return boundary("tuttiStreamDestroy", nullptr, [&] { return executor::stream_destroy(stream); });
}

TUTTI_API(ncclResult_t, tuttiEventCreate, tuttiEvent_t* event) {
  return boundary("tuttiEventCreate", nullptr, [&]() -> Status {
    TUTTI_TRY(checked_pointer(event, "event"));
    *event = nullptr;
    TUTTI_TRY_ASSIGN(executor::EventHandle handle, executor::event_create());
    *event = static_cast<tuttiEvent_t>(handle);
    return {};
  });
}

TUTTI_API(ncclResult_t, tuttiEventRecord, tuttiEvent_t event, cudaStream_t stream) {
  return boundary("tuttiEventRecord", nullptr, [&] { return executor::event_record(event, stream); });
}

TUTTI_API(ncclResult_t, tuttiEventSynchronize, tuttiEvent_t event) {
  return boundary("tuttiEventSynchronize", nullptr, [&] { return executor::event_synchronize(event); });
}

TUTTI_API(ncclResult_t, tuttiEventQuery, tuttiEvent_t event) {
  return boundary("tuttiEventQuery", nullptr, [&] { return tutti::api::done(executor::event_query(event)); });
}

TUTTI_API(ncclResult_t, tuttiEventDestroy, tuttiEvent_t event) {
  return boundary("tuttiEventDestroy", nullptr, [&] { return executor::event_destroy(event); });
}

TUTTI_API(ncclResult_t, tuttiStreamWaitEvent, cudaStream_t stream, tuttiEvent_t event) {
  return boundary("tuttiStreamWaitEvent", nullptr, [&] { return executor::stream_wait_event(stream, event); });
}

TUTTI_API(ncclResult_t, tuttiMemAlloc, void** ptr, size_t bytes, int* fd) {
  return boundary("tuttiMemAlloc", nullptr, [&] { return tutti::api::allocate(ptr, bytes, fd); });
}

TUTTI_API(ncclResult_t, tuttiMemImport, int fd, void** ptr, size_t* bytes) {
  return boundary("tuttiMemImport", nullptr, [&] { return tutti::api::import(fd, ptr, bytes); });
}

TUTTI_API(ncclResult_t, tuttiMemFree, void* ptr) {
  return boundary("tuttiMemFree", nullptr, [&] { return ptr ? tutti::transport::shared_free(ptr) : Status(); });
}

TUTTI_API(ncclResult_t, tuttiSetDevice, tuttiDevice_t device) {
  return boundary("tuttiSetDevice", nullptr, [&] { return tutti::api::choose_device(device); });
}

TUTTI_API(ncclResult_t, tuttiCommInitRank, ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank,
          const tuttiConfig_t* config) {
  return boundary("tuttiCommInitRank", nullptr, tutti::api::InGroup::kFailsGroup, [&] {
    return tutti::api::create_rank(comm, nranks, &commId, 1, rank, tutti::api::read_config(config));
  });
}

TUTTI_API(ncclResult_t, tuttiExplain, ncclComm_t comm, tuttiCollective_t collective, size_t count,
          ncclDataType_t datatype, ncclRedOp_t op, int root, char* text, size_t size, size_t* needed) {
  return boundary("tuttiExplain", comm, [&] {
    return tutti::api::explain(comm, collective,
                               {.collective = {}, .count = count, .type = datatype, .op = op, .root = root},
                               tutti::comm::explain, text, size, needed);
  });
}

TUTTI_API(ncclResult_t, tuttiCommPlan, ncclComm_t comm, tuttiCollective_t collective, ncclDataType_t datatype,
          ncclRedOp_t op, int root, char* text, size_t size, size_t* needed) {
  return boundary("tuttiCommPlan", comm, [&] {
    return tutti::api::explain(comm, collective,
                               {.collective = {}, .count = 1, .type = datatype, .op = op, .root = root},
                               tutti::comm::plan_by_size, text, size, needed);
  });
}

TUTTI_API(ncclResult_t, tuttiCommCertificate, ncclComm_t comm, tuttiCollective_t collective, size_t count,
          ncclDataType_t datatype, ncclRedOp_t op, int root, char* text, size_t size, size_t* needed) {
  return boundary("tuttiCommCertificate", comm, [&] {
    return tutti::api::explain(comm, collective,
                               {.collective = {}, .count = count, .type = datatype, .op = op, .root = root},
                               tutti::comm::certificate, text, size, needed);
  });
}

TUTTI_API(ncclResult_t, tuttiCommTopology, ncclComm_t comm, char* text, size_t size, size_t* needed) {
  return boundary("tuttiCommTopology", comm, [&] { return tutti::api::tell_topology(comm, text, size, needed); });
}

TUTTI_API(ncclResult_t, tuttiCandidateRules, ncclComm_t comm, tuttiCollective_t collective, const void* sendbuff,
          void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op, int root, char* text, size_t size,
          size_t* needed) {
  return boundary("tuttiCandidateRules", comm, [&] {
    return tutti::api::explain(comm, collective,
                               {.collective = {},
                                .send = sendbuff,
                                .receive = recvbuff,
                                .count = count,
                                .type = datatype,
                                .op = op,
                                .root = root},
                               tutti::comm::candidate_rules, text, size, needed);
  });
}

TUTTI_API(ncclResult_t, tuttiCommSetSchedule, ncclComm_t comm, const char* text, int* forms) {
  return boundary("tuttiCommSetSchedule", comm, [&]() -> Status {
    TUTTI_TRY_ASSIGN(tutti::comm::Communicator * communicator, tutti::api::checked_communicator(comm));
    TUTTI_TRY_ASSIGN(const tutti::comm::ScheduleForms proved, tutti::comm::set_schedule(*communicator, text));
    if (forms) *forms = static_cast<int>(proved.bits);
    return {};
  });
}

TUTTI_API(ncclResult_t, tuttiCommWireBytes, ncclComm_t comm, uint64_t* bytes) {
  return boundary("tuttiCommWireBytes", comm, [&]() -> Status {
    TUTTI_TRY(tutti::api::checked_pointer(bytes, "bytes"));
    TUTTI_TRY_ASSIGN(tutti::comm::Communicator * communicator, tutti::api::checked_communicator(comm));
    TUTTI_TRY_ASSIGN(*bytes, tutti::comm::wire_bytes(*communicator));
    return {};
  });
}

TUTTI_API(ncclResult_t, tuttiCommTransport, ncclComm_t comm, const char** name) {
  return boundary("tuttiCommTransport", comm, [&]() -> Status {
    TUTTI_TRY(tutti::api::checked_pointer(name, "name"));
    TUTTI_TRY_ASSIGN(tutti::comm::Communicator * communicator, tutti::api::checked_communicator(comm));
    TUTTI_TRY_ASSIGN(*name, tutti::comm::transport_name(*communicator));
    return {};
  });
}

TUTTI_API(ncclResult_t, tuttiCommSetTuning, ncclComm_t comm, const char* text) {
  return boundary("tuttiCommSetTuning", comm, [&]() -> Status {
    TUTTI_TRY_ASSIGN(tutti::comm::Communicator * communicator, tutti::api::checked_communicator(comm));
    return tutti::comm::set_tuning(*communicator, text);
  });
}

TUTTI_API(ncclResult_t, tuttiCommReport, ncclComm_t comm, char* text, size_t size, size_t* needed) {
  return boundary("tuttiCommReport", comm, [&] { return tutti::api::report_ranks(comm, text, size, needed); });
}
