// What communicators are asked, and how they end.
#include "api/boundary.h"
#include "api/export.h"
#include "api/registrations.h"
#include "api/validation.h"
#include "comm/device_memory.h"

#include <algorithm>

#include <fmt/format.h>

namespace tutti::api {
namespace {

/// A query of one number. `query`: a Result of it.
template <class T, class Query>
ncclResult_t ask(const char* function, ncclComm_t comm, T* result, const char* name, Query query) noexcept {
  return boundary(function, comm, [&]() -> Status {
    TUTTI_TRY_ASSIGN(comm::Communicator * communicator, checked_communicator(comm));
    TUTTI_TRY(checked_pointer(result, name));
    TUTTI_TRY_ASSIGN(*result, query(*communicator));
    return {};
  });
}

/// NULL is nothing to end. Registrations end with their communicator. A forked child may end what it has inherited, as programs do that
/// tidy up when they exit.
template <class End>
ncclResult_t end(const char* function, ncclComm_t comm, End end_handle) noexcept {
  return boundary(function, comm, InGroup::kFailsGroup, [&]() -> Status {
    if (!comm) return {};
    if (!comm::is_inherited(comm)) TUTTI_TRY(checked_communicator(comm));
    Registrations::process().drop(comm);
    return end_handle(comm);
  });
}

}  // namespace
}  // namespace tutti::api

using tutti::comm::Communicator;

TUTTI_NCCL_API(ncclResult_t, CommCount, const ncclComm_t comm, int* count) {
  return tutti::api::ask("ncclCommCount", comm, count, "count", [](Communicator& c) -> tutti::Result<int> {
    TUTTI_TRY(tutti::comm::check_place(c));
    return tutti::comm::size_of(c);
  });
}

TUTTI_NCCL_API(ncclResult_t, CommUserRank, const ncclComm_t comm, int* rank) {
  return tutti::api::ask("ncclCommUserRank", comm, rank, "rank", [](Communicator& c) -> tutti::Result<int> {
    TUTTI_TRY(tutti::comm::check_place(c));
    return tutti::comm::rank_of(c);
  });
}

// Host memory has no device number; 0 is what programs can pass on to whatever they do with it.
TUTTI_NCCL_API(ncclResult_t, CommCuDevice, const ncclComm_t comm, int* device) {
  return tutti::api::ask("ncclCommCuDevice", comm, device, "device",
                         [](Communicator& c) -> tutti::Result<int> { return std::max(0, tutti::comm::device_of(c)); });
}

TUTTI_NCCL_API(ncclResult_t, CommGetAsyncError, ncclComm_t comm, ncclResult_t* asyncError) {
  return tutti::api::ask("ncclCommGetAsyncError", comm, asyncError, "asyncError",
                         [](Communicator& c) -> tutti::Result<ncclResult_t> {
                           return static_cast<ncclResult_t>(tutti::comm::async_error(c));
                         });
}

TUTTI_NCCL_API(ncclResult_t, CommFinalize, ncclComm_t comm) {
  return tutti::api::boundary("ncclCommFinalize", comm, tutti::api::InGroup::kFailsGroup, [&]() -> tutti::Status {
    if (!comm || tutti::comm::is_inherited(comm)) return {};
    TUTTI_TRY_ASSIGN(Communicator * communicator, tutti::api::checked_communicator(comm));
    return tutti::comm::finalize(*communicator);
  });
}

TUTTI_NCCL_API(ncclResult_t, CommDestroy, ncclComm_t comm) {
  return tutti::api::end("ncclCommDestroy", comm, tutti::comm::destroy);
}

TUTTI_NCCL_API(ncclResult_t, CommAbort, ncclComm_t comm) {
  return tutti::api::end("ncclCommAbort", comm, tutti::comm::abort);
}

TUTTI_NCCL_API(ncclResult_t, CommRevoke, ncclComm_t comm, int revokeFlags) {
  return tutti::api::boundary("ncclCommRevoke", comm, tutti::api::InGroup::kFailsGroup, [&]() -> tutti::Status {
    if (!comm) return {};
    TUTTI_TRY(tutti::api::checked_communicator(comm));
    if (revokeFlags != NCCL_REVOKE_DEFAULT)
      return tutti::error(tutti::Code::kInvalidArgument,
                          fmt::format("revokeFlags is {}; pass NCCL_REVOKE_DEFAULT (0)", revokeFlags));
    return tutti::comm::revoke(comm);
  });
}
