// Ranks and their launchers: who am I (launch_detect), the id that all ranks of a job share (launch_meet), and ranks
// forked by the program itself (launch_local). The C names are in tutti/launch.h.
#pragma once

#include "base/result.h"
#include "comm/unique_id.h"

#include <tutti/launch.h>

#include <cstdint>
#include <string>

namespace tutti::comm {

Result<tuttiLaunchInfo_t> launch_detect();

/// Where the ranks of a job meet.
struct MeetingPlace {
  std::string address;     ///< "@name" in the abstract namespace, or the path of a socket
  std::uint32_t call = 0;  ///< the n-th id of this job
  double timeout_s = 120;
};

/// From TUTTI_RENDEZVOUS and the job's identity; counts the calls of this process per job.
Result<MeetingPlace> next_meeting_place(const tuttiLaunchInfo_t& info);

/// Rank 0 gives `id` to every other rank; returns when all have it.
Status hand_out(const tuttiLaunchInfo_t& info, const MeetingPlace& place, const UniqueId& id);
/// The other ranks: waits for rank 0.
Result<UniqueId> fetch(const tuttiLaunchInfo_t& info, const MeetingPlace& place);

/// Forks and supervises; the contract is tuttiLaunchLocal's.
Result<tuttiLaunchOutcome_t> launch_local(int ranks, tuttiLaunchBody_t body, void* context);

}  // namespace tutti::comm
