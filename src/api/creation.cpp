// ncclGetUniqueId and all that makes communicators.
#include "api/creation.h"

#include "api/boundary.h"
#include "api/config_struct.h"
#include "api/device_choice.h"
#include "api/export.h"
#include "api/validation.h"
#include "api/versions.h"
#include "base/config.h"
#include "comm/bootstrap.h"
#include "comm/device_memory.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
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
  // The ranks meet at the first: whichever order each has them in, it is to be the same one.
  const auto comes_before = [](const comm::UniqueId& a, const comm::UniqueId& b) {
    return std::memcmp(&a, &b, sizeof(a)) < 0;
  };
  std::ranges::sort(copies, comes_before);
  return copies;
}

Status check_ranks(int ranks, int rank) {
  if (ranks < 1) return error(Code::kInvalidArgument, fmt::format("nranks is {}; pass at least 1", ranks));
  if (rank >= 0 && rank < ranks) return {};
  return error(Code::kInvalidArgument, fmt::format("rank is {}; with nranks {} pass 0 to {}", rank, ranks, ranks - 1));
}

Status check_devices(int count, const int* devices) {
  if (count < 1 || count > comm::kOpenMax)
    return error(Code::kInvalidArgument, fmt::format("ndev is {}; pass 1 to {}", count, comm::kOpenMax));
  for (int i = 0; devices && i < count; ++i) {
    if (devices[i] < 0)
      return error(Code::kInvalidArgument, fmt::format("devlist[{}] is {}; device numbers start at 0", i, devices[i]));
  }
  return {};
}

/// Before threads are started for them: all of them exist, and none has two ranks unless that is allowed.
Status check_device_list(const std::vector<comm::Options>& options) {
  if (options[0].device == comm::kHostMemory) return {};
  TUTTI_TRY_ASSIGN(const int count, comm::usable_device_count());
  for (std::size_t i = 0; i < options.size(); ++i) {
    const int device = options[i].device;
    if (device >= count)
      return error(Code::kInvalidArgument,
                   fmt::format("rank {} would be on GPU {}, but this process sees {} (numbered from 0); pass others in "
                               "devlist",
                               i, device, count));
    const auto same = [&](const comm::Options& other) { return other.device == device; };
    if (!config().multi_rank_gpu && std::count_if(options.begin(), options.end(), same) > 1)
      return error(
          Code::kInvalidUsage,
          fmt::format("devlist has GPU {} more than once; set NCCL_MULTI_RANK_GPU_ENABLE=1 to let ranks share one",
                      device));
  }
  return {};
}

/// All ranks in one group; the group is closed whatever happens in it.
Status create_in_group(std::vector<comm::Handle>& handles, const std::vector<comm::Options>& options) {
  const int ranks = static_cast<int>(handles.size());
  TUTTI_TRY_ASSIGN(const comm::UniqueId id, comm::make_unique_id());
  std::shared_ptr<comm::OwnId> own;
  try {
    own = std::make_shared<comm::OwnId>(id);
  } catch (const std::bad_alloc&) {
    comm::end_bootstrap(id);
    throw;
  }
  TUTTI_TRY(comm::group_start());
  Status joined;
  try {
    for (int rank = 0; rank < ranks && !failed(joined); ++rank) {
      joined = comm::init_rank(&handles[static_cast<std::size_t>(rank)], {&id, 1}, ranks, rank,
                               options[static_cast<std::size_t>(rank)], own);
    }
  } catch (const std::bad_alloc&) {
    joined = Error{Code::kSystem, {}};
  }
  if (failed(joined)) comm::fail_group(joined.error());
  Status ended = comm::group_end();
  return failed(joined) ? joined : ended;
}

Status create_all(ncclComm_t* comms, int count, const int* devices) {
  TUTTI_TRY(checked_pointer(comms, "comm"));
  TUTTI_TRY(check_devices(count, devices));
  log_version();
  TUTTI_TRY_ASSIGN(const int device, chosen_device());
  std::vector<comm::Options> options(static_cast<std::size_t>(count), default_options());
  for (int i = 0; device != comm::kHostMemory && i < count; ++i) {
    options[static_cast<std::size_t>(i)].device = devices ? devices[i] : i;
  }
  TUTTI_TRY(check_device_list(options));
  std::vector<comm::Handle> handles(static_cast<std::size_t>(count), nullptr);
  Status status = create_in_group(handles, options);
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
  // The child's handle is written before the child is made, also in a group: straight to where the user wants it, as another thread may abort
  // by it what this one waits for.
  static_assert(sizeof(ncclComm_t) == sizeof(comm::Handle));
  return comm::split(*parent, color, key, reinterpret_cast<comm::Handle*>(child), config ? &options : nullptr);
}

/// The ranks to leave out, ascending.
Result<std::vector<int>> checked_exclusions(const comm::Communicator& parent, const int* ranks, int count) {
  const int size = comm::size_of(parent);
  if (size == 1)
    return error(Code::kInvalidArgument,
                 fmt::format("excludeRanksCount is {}, but a communicator of one rank has no other to leave out; "
                             "ncclCommSplit makes another one of it",
                             count));
  if (count < 1 || count >= size)
    return error(Code::kInvalidArgument,
                 fmt::format("excludeRanksCount is {}; a communicator of {} ranks can leave out 1 to {}", count, size,
                             size - 1));
  if (!ranks)
    return error(
        Code::kInvalidArgument,
        fmt::format("excludeRanksList is NULL, but excludeRanksCount is {}; pass the address of so many ranks of "
                    "comm, those that the new communicator is to leave out",
                    count));
  std::vector<int> sorted(ranks, ranks + count);
  std::ranges::sort(sorted);
  for (int i = 0; i < count; ++i) {
    if (ranks[i] < 0 || ranks[i] >= size)
      return error(Code::kInvalidArgument,
                   fmt::format("excludeRanksList[{}] is {}; ranks are 0 to {}", i, ranks[i], size - 1));
    if (ranks[i] == comm::rank_of(parent))
      return error(Code::kInvalidArgument,
                   fmt::format("excludeRanksList[{}] is {}, the rank that calls: ranks that are left out do not call",
                               i, ranks[i]));
  }
  const auto twice = std::ranges::adjacent_find(sorted);
  if (twice != sorted.end())
    return error(Code::kInvalidArgument, fmt::format("rank {} is in excludeRanksList twice", *twice));
  return sorted;
}

Status shrink(ncclComm_t comm, const int* ranks, int count, ncclComm_t* child, const ncclConfig_t* config, int flags) {
  TUTTI_TRY_ASSIGN(comm::Communicator * parent, checked_communicator(comm));
  TUTTI_TRY(checked_pointer(child, "newcomm"));
  *child = nullptr;
  if (flags != NCCL_SHRINK_DEFAULT && flags != NCCL_SHRINK_ABORT)
    return error(Code::kInvalidArgument,
                 fmt::format("shrinkFlags is {}; pass NCCL_SHRINK_DEFAULT (0) or NCCL_SHRINK_ABORT (1)", flags));
  TUTTI_TRY(comm::check_place(*parent));
  TUTTI_TRY_ASSIGN(const std::vector<int> excluded, checked_exclusions(*parent, ranks, count));
  TUTTI_TRY_ASSIGN(const comm::Options options, read_config(config));
  return comm::shrink(*parent, excluded, flags == NCCL_SHRINK_ABORT, reinterpret_cast<comm::Handle*>(child),
                      config ? &options : nullptr);
}

}  // namespace

Status create_rank(ncclComm_t* comm, int ranks, const ncclUniqueId* ids, int id_count, int rank,
                   const Result<comm::Options>& options) {
  TUTTI_TRY(checked_pointer(comm, "comm"));
  *comm = nullptr;
  TUTTI_TRY(check_ranks(ranks, rank));
  TUTTI_TRY_ASSIGN(const std::vector<comm::UniqueId> copies, checked_ids(ids, id_count, ranks));
  if (!options.ok()) return options.error();
  if (rank == 0) log_version();
  comm::Options placed = options.value();
  TUTTI_TRY_ASSIGN(placed.device, chosen_device());
  comm::Handle handle = nullptr;
  Status status = comm::init_rank(&handle, copies, ranks, rank, placed);
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
    TUTTI_TRY_ASSIGN(const tutti::comm::UniqueId id, tutti::comm::make_programs_id());
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

TUTTI_NCCL_API(ncclResult_t, CommShrink, ncclComm_t comm, int* excludeRanksList, int excludeRanksCount,
               ncclComm_t* newcomm, ncclConfig_t* config, int shrinkFlags) {
  return boundary("ncclCommShrink", comm, InGroup::kFailsGroup, [&] {
    return tutti::api::shrink(comm, excludeRanksList, excludeRanksCount, newcomm, config, shrinkFlags);
  });
}
