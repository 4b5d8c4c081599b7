// Groups, and what a group would cost.
#include "api/boundary.h"
#include "api/export.h"
#include "comm/comm.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include <fmt/format.h>

namespace tutti::api {
namespace {

constexpr unsigned kSimInfoMagic = 0x74685283;

/// The user's struct may be older (shorter) or newer than ours; nothing beyond its size is touched.
Status write_estimate(ncclSimInfo_t* info, float estimated_us) {
  if (!info) return {};
  ncclSimInfo_t copy = NCCL_SIM_INFO_INITIALIZER;
  std::memcpy(&copy.size, &info->size, sizeof(copy.size));
  const std::size_t known = std::min(copy.size, sizeof(copy));
  if (known < offsetof(ncclSimInfo_t, estimatedTime) + sizeof(float) || info->magic != kSimInfoMagic)
    return error(Code::kInvalidArgument,
                 fmt::format("simInfo (size {}) is not initialised: start from NCCL_SIM_INFO_INITIALIZER", copy.size));
  info->estimatedTime = estimated_us;
  return {};
}

}  // namespace
}  // namespace tutti::api

TUTTI_NCCL_API(ncclResult_t, GroupStart) {
  return tutti::api::boundary("ncclGroupStart", nullptr, [] { return tutti::comm::group_start(); });
}

TUTTI_NCCL_API(ncclResult_t, GroupEnd) {
  return tutti::api::boundary("ncclGroupEnd", nullptr, [] { return tutti::comm::group_end(); });
}

TUTTI_NCCL_API(ncclResult_t, GroupSimulateEnd, ncclSimInfo_t* simInfo) {
  return tutti::api::boundary("ncclGroupSimulateEnd", nullptr, [&]() -> tutti::Status {
    // First of all the group is closed: a bad argument must not leave it open.
    TUTTI_TRY_ASSIGN(const float estimated_us, tutti::comm::group_simulate_end());
    return tutti::api::write_estimate(simInfo, estimated_us);
  });
}
