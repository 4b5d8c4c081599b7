// What a communicator knows of the machine that its ranks run on: where each sits, groups of ranks that are near each other,
// and, if somebody asks, the machine graph that all ranks' looks merge to.
//
//   every rank     sits: writes its seat ------------.
//                                                     all ranks meet
//   some ranks     look, if anything depends on it --.
//                                                     all ranks meet again
//   whoever asks   merges what they saw, once for all ranks; without any look, takes its own
//
// A look is needed at once if NCCL_DEBUG=INFO or the NCCL_TOPO variables ask for it on any rank, if the ranks sit in several
// groups, or if ranks see different things. Then the lowest rank of those that see the same looks, for all of them.
//
// Over hosts there is always a look at each, as nobody can take it later for ranks elsewhere; it goes to all ranks, and each merges
// for itself: they have the same bytes, so that all come to the same graph.
#pragma once

#include "base/result.h"
#include "comm/cache_room.h"
#include "comm/machine_board.h"
#include "planner/machine_service.h"
#include "planner/seats.h"

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace tutti::comm {

class MachineView {
 public:
  struct Args {
    MachineBoard board;
    int rank = 0;
    std::vector<std::string> hosts;  ///< by rank
    bool one_host = true;  ///< else the board is this rank's own, and what ranks write is carried to the others'
    Port port = {};        ///< over hosts: the way to the others
    std::function<bool()> given_up;  ///< polled in waits: the communicator has failed, or is aborted
    std::function<std::string(int rank)> gpu =
        {};  ///< PCI address of the rank's GPU, or empty; asked once all have met
  };
  explicit MachineView(Args args);

  /// Before all ranks meet.
  void sit();
  /// Once, between the meetings; also the only time at which others may wait for what this rank measures. kInvalidUsage:
  /// NCCL_TOPO_FILE is read, and is no machine.
  Status look();
  /// Before the second meeting, at rank 0: what its own look says of the links between the groups; 0: nothing.
  double between_groups_gbps() const;
  /// At rank 0 as well: plans trees for its own look, where somebody wants them (wants_trees), for all ranks.
  void plan_trees(int lanes_most);
  /// The same: whether the look has GPUs of two ranks that no link or switch joins. Without such ranks, or such a look: no.
  bool gpus_apart() const;
  /// The same, once it has looked: how far the ranks' GPUs are from each other, by rank and rank, row by row. Failure: that is not known.
  Result<std::vector<GpuDistance>> gpu_distances() const;
  /// The same: in which order a ring visits the ranks' GPUs that are not all alike, or that NCCL_ALGO wants a ring of. Empty: not known, or
  /// there is none.
  std::vector<int> gpu_ring() const;
  /// After the second meeting: their text (algorithm/planned_trees.h), the same on every rank; empty: there are none.
  std::string trees() const;
  /// After the second meeting: what NCCL_DEBUG=INFO prints of seats and machine, and the file of NCCL_TOPO_DUMP_FILE.
  void report();

  const std::vector<planner::Seat>& seats() const { return seats_; }
  /// Of one host's ranks; over hosts there are none.
  const planner::SeatGroups& groups() const { return groups_; }
  /// Ranks per processor where they are the most, of all kernels, each of which may run several hosts; 0: some rank's processors are not known.
  double crowding() const;
  /// The same of this rank's host.
  double own_crowding() const;
  /// What the caches of this rank's host have room for, of calls of all ranks, each of which is taken to need as much.
  CacheRoom own_cache_room() const;
  /// In order of their lowest ranks.
  std::vector<std::vector<int>> ranks_by_host() const;
  /// What stands in the way of speed, by host.
  std::vector<std::string> advice() const;

  /// The merged graph in text form, the same on every rank. kSystem: the plug-in is not there, or it cannot look; kRemote: whoever makes
  /// it does not come to an end.
  Result<std::string> graph();
  /// What the NUMA nodes that ranks sit on have between them, as the graph says. On one host.
  Result<planner::HostLinks> links();
  /// Over hosts: what all ranks have between them, the same on every rank.
  Result<planner::BetweenHosts> between_hosts(Collective collective);
  /// Of memory, on one host: what the graph says, else what is measured; 0: neither.
  struct MemoryRate {
    double gbps = 0;
    bool measured = false;
  };
  MemoryRate memory_rate();

 private:
  bool leads() const { return args_.rank == 0; }
  /// The lowest rank of its host.
  int leader_of(int rank) const;
  bool looks(int rank) const;
  /// Ranks sit on a NUMA node each, or are on GPUs, three at least; or rank 0 has a machine's file, or its NCCL_ALGO asks for trees.
  bool wants_trees() const;
  planner::RankPlaces places() const;
  Status keep(const std::string& seen);
  std::vector<planner::RankLook> told_looks() const;
  std::vector<planner::Seat> seats_of(const std::vector<int>& ranks) const;
  Result<std::string> merge() const;
  Result<std::string> wait_for_graph() const;
  std::vector<int> numas() const;
  void dump();

  Args args_;
  std::vector<planner::Seat> seats_;
  planner::SeatGroups groups_;
  bool wanted_ = false;  ///< some rank wants the graph at once
  std::mutex mutex_;
  std::string graph_;  ///< once known; guarded by mutex_ once the communicator is ready
  std::map<Collective, planner::BetweenHosts> between_hosts_;  ///< guarded by mutex_
};

/// Ranks that may share processors, hosts in order of their lowest ranks: those of one kernel, though they are on several hosts (containers). By
/// rank: its host; its kernel (Manners::kernel), 0: that of its host alone.
std::vector<std::vector<int>> ranks_by_kernel(const std::vector<std::string>& hosts,
                                              const std::vector<std::uint64_t>& kernels);

/// "NUMA node 0, processors 0-3"
std::string describe(const planner::Seat& seat);

}  // namespace tutti::comm
