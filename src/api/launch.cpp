// tutti/launch.h: rank and size from the launcher's variables, one id for all ranks of a job, ranks forked by the
// program.
#include "comm/launch.h"
#include "api/boundary.h"
#include "api/export.h"
#include "api/validation.h"
#include "comm/comm.h"

#include <tutti/launch.h>

#include <cstring>
#include <optional>

#include <fmt/format.h>

namespace tutti::api {
namespace {

constexpr int kRanksMax = 1024;

Status checked_launch(const tuttiLaunchInfo_t* given) {
  if (!given) return error(Code::kInvalidArgument, "info is NULL; pass what tuttiLaunchDetect filled in");
  const tuttiLaunchInfo_t& info = *given;
  if (info.size < 1 || info.rank < 0 || info.rank >= info.size)
    return error(Code::kInvalidArgument, fmt::format("rank {} of {}: ranks go from 0 to size-1", info.rank, info.size));
  if (!info.launcher || std::memchr(info.job, 0, sizeof(info.job)) == nullptr)
    return error(Code::kInvalidArgument, "info was not filled in by tuttiLaunchDetect or tuttiLaunchLocal");
  return {};
}

Status unique_id_for(const tuttiLaunchInfo_t* info, ncclUniqueId* id) {
  TUTTI_TRY(checked_launch(info));
  TUTTI_TRY(checked_pointer(id, "id"));
  comm::UniqueId made;
  static_assert(sizeof(made) == sizeof(*id));
  TUTTI_TRY_ASSIGN(const std::optional<comm::UniqueId> by_mpi, comm::id_by_mpi(*info));
  if (by_mpi) {
    std::memcpy(id, &*by_mpi, sizeof(*id));
    return {};
  }
  TUTTI_TRY_ASSIGN(const std::optional<comm::UniqueId> by_tcp, comm::launched_id(*info));
  if (by_tcp) {
    std::memcpy(id, &*by_tcp, sizeof(*id));
    return {};
  }
  comm::MeetingPlace place;
  if (info->size > 1) {
    TUTTI_TRY_ASSIGN(place, comm::next_meeting_place(*info));
  }
  if (info->rank > 0) {
    TUTTI_TRY_ASSIGN(made, comm::fetch(*info, place));
  } else {
    TUTTI_TRY_ASSIGN(made, comm::make_unique_id());
    comm::OwnId own(made);  // who has it already hears of a failure
    if (info->size > 1) TUTTI_TRY(comm::hand_out(*info, place, made));
    own.begin();
  }
  std::memcpy(id, &made, sizeof(*id));
  return {};
}

}  // namespace
}  // namespace tutti::api

using tutti::Status;
using tutti::api::boundary;
using tutti::api::checked_pointer;

TUTTI_API(ncclResult_t, tuttiLaunchDetect, tuttiLaunchInfo_t* info) {
  return boundary("tuttiLaunchDetect", nullptr, [&]() -> Status {
    TUTTI_TRY(checked_pointer(info, "info"));
    TUTTI_TRY_ASSIGN(*info, tutti::comm::launch_detect());
    return {};
  });
}

TUTTI_API(ncclResult_t, tuttiLaunchUniqueId, const tuttiLaunchInfo_t* info, ncclUniqueId* id) {
  return boundary("tuttiLaunchUniqueId", nullptr, [&] { return tutti::api::unique_id_for(info, id); });
}

TUTTI_API(ncclResult_t, tuttiLaunchInitMpi, void) {
  return boundary("tuttiLaunchInitMpi", nullptr, [] { return tutti::comm::launch_mpi(); });
}

TUTTI_API(ncclResult_t, tuttiLaunchWantsMpi, const tuttiLaunchInfo_t* info, int* wants) {
  return boundary("tuttiLaunchWantsMpi", nullptr, [&]() -> Status {
    TUTTI_TRY(tutti::api::checked_launch(info));
    TUTTI_TRY(checked_pointer(wants, "wants"));
    *wants = tutti::comm::launch_wants_mpi(*info) ? 1 : 0;
    return {};
  });
}

TUTTI_API(ncclResult_t, tuttiLaunchFinalizeMpi, void) {
  return boundary("tuttiLaunchFinalizeMpi", nullptr, [] { return tutti::comm::end_launched_mpi(); });
}

TUTTI_API(ncclResult_t, tuttiLaunchLocal, int ranks, tuttiLaunchBody_t body, void* context,
          tuttiLaunchOutcome_t* outcome) {
  return boundary("tuttiLaunchLocal", nullptr, [&]() -> Status {
    if (!body) return tutti::error(tutti::Code::kInvalidArgument, "body is NULL; pass what each rank is to run");
    TUTTI_TRY(checked_pointer(outcome, "outcome"));
    if (ranks < 1 || ranks > tutti::api::kRanksMax)
      return tutti::error(tutti::Code::kInvalidArgument,
                          fmt::format("ranks is {}; pass 1 to {}", ranks, tutti::api::kRanksMax));
    TUTTI_TRY_ASSIGN(*outcome, tutti::comm::launch_local(ranks, body, context));
    return {};
  });
}
