// Ranks and their launchers: who am I (launch_detect), the id that all ranks of a job share (launch_meet), and ranks
// forked by the program itself (launch_local). The C names are in tutti/launch.h.
#pragma once

#include "base/result.h"
#include "comm/unique_id.h"

#include <tutti/launch.h>

#include <cstdint>
#include <optional>
#include <string>

namespace tutti::comm {

Result<tuttiLaunchInfo_t> launch_detect();

/// Where the ranks of a job meet.
struct MeetingPlace {
  std::string address;     ///< "@name" in the abstract namespace, or the path of a socket
  std::uint32_t call = 0;  ///< the n-th id of this job
  double timeout_s = 120;
};

/// The number of the job's next id; counted() once that is made. Meanwhile no other thread has one.
class IdNumber {
 public:
  explicit IdNumber(const tuttiLaunchInfo_t& info);
  ~IdNumber();
  IdNumber(const IdNumber&) = delete;
  IdNumber& operator=(const IdNumber&) = delete;
  std::uint32_t value() const { return next_; }
  void counted() { ++next_; }

 private:
  std::uint32_t& next_;
};

/// Where the ranks meet by TCP (TUTTI_RENDEZVOUS=tcp:host:port, or MASTER_ADDR and a job on several hosts): the id, which every rank
/// makes for itself. Nothing where they do not.
Result<std::optional<UniqueId>> launched_id(const tuttiLaunchInfo_t& info);
/// As far as the launcher tells.
inline bool is_on_several_hosts(const tuttiLaunchInfo_t& info) {
  return info.local_size > 0 && info.local_size < info.size;
}
/// Whether a variable says where the ranks meet.
bool names_meeting_place(const tuttiLaunchInfo_t& info);

/// For programs that leave MPI to the library: loads that of the launcher and initialises it, with MPI_THREAD_MULTIPLE.
/// kInvalidUsage: no MPI's launcher, MPI is initialised already, or has no such level; kSystem: there is no plug-in for it.
Status launch_mpi();
/// Whether a program that leaves MPI to the library should, by TUTTI_NET and where its ranks are (tuttiLaunchWantsMpi).
bool launch_wants_mpi(const tuttiLaunchInfo_t& info);
/// Finalises what launch_mpi has initialised; communicators are gone by then. Nothing where it has not.
Status end_launched_mpi();
/// Rank 0's id by MPI, where launch_mpi was called and the launcher's ranks are MPI's; else nothing.
Result<std::optional<UniqueId>> id_by_mpi(const tuttiLaunchInfo_t& info);

/// TUTTI_RENDEZVOUS_TIMEOUT_S.
Result<double> meeting_timeout();
/// From TUTTI_RENDEZVOUS and the job's identity; counts the calls of this process per job.
Result<MeetingPlace> next_meeting_place(const tuttiLaunchInfo_t& info);

/// Rank 0 gives `id` to every other rank; returns when all have it.
Status hand_out(const tuttiLaunchInfo_t& info, const MeetingPlace& place, const UniqueId& id);
/// The other ranks: waits for rank 0.
Result<UniqueId> fetch(const tuttiLaunchInfo_t& info, const MeetingPlace& place);

/// Forks and supervises; the contract is tuttiLaunchLocal's.
Result<tuttiLaunchOutcome_t> launch_local(int ranks, tuttiLaunchBody_t body, void* context);

}  // namespace tutti::comm
