// Functions that NCCL 2.28.9 exports and Tutti does not support yet. They fail with the reason in ncclGetLastError;
// docs/api.md lists them.
#include "api/boundary.h"
#include "api/export.h"

#include <cstddef>

#include <fmt/format.h>

namespace tutti::api {
namespace {

constexpr const char* kDeviceApi = "the device API (collectives written inside CUDA kernels)";

ncclResult_t unsupported(const char* function, const char* what, ncclComm_t comm = nullptr) noexcept {
  return boundary(function, comm, [&]() -> Status {
    return error(Code::kInvalidUsage,
                 fmt::format("{} is not supported yet by this library (docs/api.md lists what is)", what));
  });
}

}  // namespace
}  // namespace tutti::api

using tutti::api::kDeviceApi;
using tutti::api::unsupported;

// The device API's host side. nccl_device.h, which declares it, is not part of this library; only the calling
// convention matters here: plain C, and a team of three numbers that travels by value.
extern "C" {
struct ncclTeam {
  int ranks, rank, stride;
};
struct ncclDevCommRequirements;
struct ncclDevComm;
struct ncclLsaBarrierHandle;
struct ncclGinBarrierHandle;
struct ncclLLA2AHandle;
struct ncclDevResourceRequirements;
}

TUTTI_NCCL_API(ncclResult_t, DevCommCreate, ncclComm_t comm, const ncclDevCommRequirements*, ncclDevComm*) {
  return unsupported("ncclDevCommCreate", kDeviceApi, comm);
}

TUTTI_NCCL_API(ncclResult_t, DevCommDestroy, ncclComm_t comm, const ncclDevComm*) {
  return unsupported("ncclDevCommDestroy", kDeviceApi, comm);
}

TUTTI_NCCL_API(ncclTeam, TeamWorld, ncclComm_t comm) {
  unsupported("ncclTeamWorld", kDeviceApi, comm);
  return {};
}

TUTTI_NCCL_API(ncclTeam, TeamLsa, ncclComm_t comm) {
  unsupported("ncclTeamLsa", kDeviceApi, comm);
  return {};
}

TUTTI_NCCL_API(ncclTeam, TeamRail, ncclComm_t comm) {
  unsupported("ncclTeamRail", kDeviceApi, comm);
  return {};
}

TUTTI_NCCL_API(int, TeamRankToWorld, ncclComm_t comm, ncclTeam, int) {
  unsupported("ncclTeamRankToWorld", kDeviceApi, comm);
  return -1;
}

TUTTI_NCCL_API(int, TeamRankToLsa, ncclComm_t comm, ncclTeam, int) {
  unsupported("ncclTeamRankToLsa", kDeviceApi, comm);
  return -1;
}

TUTTI_NCCL_API(ncclResult_t, LsaBarrierCreateRequirement, ncclTeam, int, ncclLsaBarrierHandle*,
               ncclDevResourceRequirements*) {
  return unsupported("ncclLsaBarrierCreateRequirement", kDeviceApi);
}

TUTTI_NCCL_API(ncclResult_t, GinBarrierCreateRequirement, ncclComm_t comm, ncclTeam, int, ncclGinBarrierHandle*,
               ncclDevResourceRequirements*) {
  return unsupported("ncclGinBarrierCreateRequirement", kDeviceApi, comm);
}

TUTTI_NCCL_API(int, LLA2ACalcSlots, int, int) {
  unsupported("ncclLLA2ACalcSlots", kDeviceApi);
  return 0;
}

TUTTI_NCCL_API(ncclResult_t, LLA2ACreateRequirement, int, int, ncclLLA2AHandle*, ncclDevResourceRequirements*) {
  return unsupported("ncclLLA2ACreateRequirement", kDeviceApi);
}
