// ncclGetUniqueId and all that makes communicators.
#include "api/creation.h"

#include "api/boundary.h"
#include "api/config_struct.h"
#include "api/device_choice.h"
#include "api/export.h"
#include "api/validation.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include <fmt/format.h>

namespace tutti::api {
namespace {

static_assert(sizeof(ncclUniqueId) == sizeof(comm::UniqueId));

/// A failure that leaves no communicator behind.
bool failed(const Status& status) { return !status.ok() && status.error().code != Code::kInProgress; }

Result<std::vector<comm::UniqueId>> checked_ids(const ncclUniqueId* ids, int count, int ranks) {
  if (count < 1 || count > ranks)
    return error(Code::kInvalidArgument, fmt::format("nId is {}; pass 1 to nranks ({}) ids", count, ranks));
  if (!ids) return error(Code::kInvalidArgument, "commIds is NULL; pass the ids that ncclGetUniqueId made");
  std::vector<comm::UniqueId> copies(static_cast<std::size_t>(count));
  std::memcpy(static_cast<void*>(copies.data()), ids, copies.size() * sizeof(ncclUniqueId));
  for (std::size_t i = 0; i < copies.size(); ++i) {
    if (copies[i].magic == 0)
      return error(
          Code::kInvalidArgument,
          fmt::format("unique id {} of {} is empty; copy all {} bytes of what ncclGetUniqueId made to every rank", i,
                      count, NCCL_UNIQUE_ID_BYTES));
  }
  return copies;
}

Status check_ranks(int ranks, int rank) {
  if (ranks < 1) return error(Code::kInvalidArgument, fmt::format("nranks is {}; pass at least 1", ranks));
  if (rank >= 0 && rank < ranks) return {};
  return error(Code::kInvalidArgument, fmt::format("rank is {}; with nranks {} pass 0 to {}", rank, ranks, ranks - 1));
}

Status check_devices(int count, const int* devices) {
  if (count < 1) return error(Code::kInvalidArgument, fmt::format("ndev is {}; pass at least 1", count));
  for (int i = 0; devices && i < count; ++i) {
    if (devices[i] < 0)
      return error(Code::kInvalidArgument, fmt::format("devlist[{}] is {}; device numbers start at 0", i, devices[i]));
  }
  return {};
}

/// All ranks in one group; the group is closed whatever happens in it.
Status create_in_group(std::vector<comm::Handle>& handles) {
  const int ranks = static_cast<int>(handles.size());
  TUTTI_TRY_ASSIGN(const comm::UniqueId id, comm::make_unique_id());
  TUTTI_TRY(comm::group_start());
  Status joined;
  for (int rank = 0; rank < ranks && !failed(joined); ++rank) {
    joined = comm::init_rank(&handles[static_cast<std::size_t>(rank)], {&id, 1}, ranks, rank, default_options());
  }
  if (failed(joined)) comm::fail_group(joined.error());
  Status ended = comm::group_end();
  return failed(joined) ? joined : ended;
}

Status create_all(ncclComm_t* comms, int count, const int* devices) {
  TUTTI_TRY(checked_pointer(comms, "comm"));
  TUTTI_TRY(check_devices(count, devices));
  TUTTI_TRY(check_device());
  std::vector<comm::Handle> handles(static_cast<std::size_t>(count), nullptr);
  Status status = create_in_group(handles);
  if (failed(status)) {
    // What went wrong is in `status`; how the others end adds nothing.
    for (comm::Handle& handle : handles) {
      if (handle && comm::find(handle)) static_cast<void>(comm::abort(handle));
      handle = nullptr;
    }
  }
  std::transform(handles.begin(), handles.end(), comms,
                 [](comm::Handle handle) { return static_cast<ncclComm_t>(handle); });
  return status;
}

Status split(ncclComm_t comm, int color, int key, ncclComm_t* child, const ncclConfig_t* config) {
  TUTTI_TRY_ASSIGN(comm::Communicator * parent, checked_communicator(comm));
  TUTTI_TRY(checked_pointer(child, "newcomm"));
  *child = nullptr;
  if (color < 0 && color != NCCL_SPLIT_NOCOLOR)
    return error(Code::kInvalidArgument,
                 fmt::format("color is {}; pass 0 or more, or NCCL_SPLIT_NOCOLOR ({}) to get no communicator", color,
                             NCCL_SPLIT_NOCOLOR));
  TUTTI_TRY_ASSIGN(const comm::Options options, read_config(config));
  // In a group the child's handle is written at the group's end: straight to where the user wants it.
  static_assert(sizeof(ncclComm_t) == sizeof(comm::Handle));
  return comm::split(*parent, color, key, reinterpret_cast<comm::Handle*>(child), config ? &options : nullptr);
}

}  // namespace

Status create_rank(ncclComm_t* comm, int ranks, const ncclUniqueId* ids, int id_count, int rank,
                   const Result<comm::Options>& options) {
  TUTTI_TRY(checked_pointer(comm, "comm"));
  *comm = nullptr;
  TUTTI_TRY(check_ranks(ranks, rank));
  TUTTI_TRY_ASSIGN(const std::vector<comm::UniqueId> copies, checked_ids(ids, id_count, ranks));
  if (!options.ok()) return options.error();
  TUTTI_TRY(check_device());
  comm::Handle handle = nullptr;
  Status status = comm::init_rank(&handle, copies, ranks, rank, options.value());
  if (!failed(status)) *comm = static_cast<ncclComm_t>(handle);
  return status;
}

}  // namespace tutti::api

using tutti::api::boundary;
using tutti::api::create_rank;
using tutti::api::InGroup;

TUTTI_NCCL_API(ncclResult_t, GetUniqueId, ncclUniqueId* uniqueId) {
  return boundary("ncclGetUniqueId", nullptr, [&]() -> tutti::Status {
    TUTTI_TRY(tutti::api::checked_pointer(uniqueId, "uniqueId"));
    TUTTI_TRY_ASSIGN(const tutti::comm::UniqueId id, tutti::comm::make_unique_id());
    std::memcpy(uniqueId, &id, sizeof(id));
    return {};
  });
}

TUTTI_NCCL_API(ncclResult_t, CommInitRank, ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank) {
  return boundary("ncclCommInitRank", nullptr, InGroup::kFailsGroup,
                  [&] { return create_rank(comm, nranks, &commId, 1, rank, tutti::api::default_options()); });
}

TUTTI_NCCL_API(ncclResult_t, CommInitRankConfig, ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank,
               ncclConfig_t* config) {
  return boundary("ncclCommInitRankConfig", nullptr, InGroup::kFailsGroup,
                  [&] { return create_rank(comm, nranks, &commId, 1, rank, tutti::api::read_config(config)); });
}

TUTTI_NCCL_API(ncclResult_t, CommInitRankScalable, ncclComm_t* newcomm, int nranks, int myrank, int nId,
               ncclUniqueId* commIds, ncclConfig_t* config) {
  return boundary("ncclCommInitRankScalable", nullptr, InGroup::kFailsGroup,
                  [&] { return create_rank(newcomm, nranks, commIds, nId, myrank, tutti::api::read_config(config)); });
}

TUTTI_NCCL_API(ncclResult_t, CommInitAll, ncclComm_t* comm, int ndev, const int* devlist) {
  return boundary("ncclCommInitAll", nullptr, InGroup::kFailsGroup,
                  [&] { return tutti::api::create_all(comm, ndev, devlist); });
}

TUTTI_NCCL_API(ncclResult_t, CommSplit, ncclComm_t comm, int color, int key, ncclComm_t* newcomm,
               ncclConfig_t* config) {
  return boundary("ncclCommSplit", comm, InGroup::kFailsGroup,
                  [&] { return tutti::api::split(comm, color, key, newcomm, config); });
}
