// The plan of a collective on a machine, for large messages: what the links allow at best (the certificate), what each
// algorithm makes of them, and the schedule of the best one.
#pragma once

#include "algorithm/packed_trees.h"
#include "base/dtype.h"
#include "base/result.h"
#include "schedule/schedule.h"
#include "topology/bounds.h"
#include "topology/network.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tutti::planner {

inline constexpr int kLanesWanted = 32;
inline constexpr int kLanesMost = 128;

struct MachineQuestion {
  Collective collective = Collective::kAllReduce;  ///< or all_gather, reduce_scatter
  /// 0: kLanesWanted, and more, up to kLanesMost, where it takes them to come near the certificate.
  int lanes_max = 0;
};

/// What no schedule can exceed.
struct Certificate {
  double gbps = 0;                     ///< algorithm bandwidth; no meaning if unlimited
  bool unlimited = false;              ///< one rank: nothing has to move
  topology::PartitionBound partition;  ///< all_reduce: what binds
  topology::CutBound cut;              ///< the others
};

/// One way of doing it.
struct MachineCandidate {
  std::string_view algorithm;  ///< its name in the table of algorithms
  int lanes = 1;
  double gbps = 0;                        ///< in the steady state (routes.h)
  double ratio = 1;                       ///< to the certificate
  int hops = 0;                           ///< messages after one another until the first data is everywhere
  int fullest = -1;                       ///< the arc that takes longest
  schedule::Schedule schedule;            ///< with one unit where it is packed trees for an all-reduce
  std::vector<algorithm::Parents> trees;  ///< of these, by lane
};

struct MachinePlan {
  MachineQuestion question;
  int ranks = 0;
  Certificate certificate;
  std::vector<MachineCandidate> candidates;  ///< the chosen one first, then the others by what they reach
  bool with_rings = false;                   ///< whether rings were looked for
  double ring_gbps = 0;               ///< of the best rings, of any number of lanes: what NCCL's cannot exceed; 0: none
  std::vector<std::string> left_out;  ///< what is no candidate here and why

  const MachineCandidate& chosen() const { return candidates.front(); }
  /// nullptr if it is no candidate here.
  const MachineCandidate* find(std::string_view algorithm) const;
};

/// Packing trees takes some seconds for so many, and grows faster than their square.
inline constexpr int kPlannedRanksMax = 256;
/// Switches count too. No machine known is near these; networks made to be hard take some ten seconds.
inline constexpr int kPlannedNodesMax = 1024;
inline constexpr int kPlannedArcsMax = 1 << 16;

/// The network's ranks are its nodes 0 to ranks - 1 (topology/view.h).
/// kInvalidArgument if the collective is none of the three, there is no rank, the network is larger than the limits,
/// or some ranks are not joined (ranks_apart).
Result<MachinePlan> plan_machine(const topology::Network& network, const MachineQuestion& question);

/// Rings beside the plan, for comparison: plan_machine has looked for them only where nothing else comes near the bound.
void add_rings(MachinePlan& plan, const topology::Network& network);

/// Two ranks of which the first cannot reach the second, or {-1, -1}.
std::pair<int, int> ranks_apart(const topology::Network& network);

/// The candidate's schedule as it runs: all-reduces through packed trees with `units` units in a round, 0 for as many as
/// large messages need.
schedule::Schedule full_schedule(const MachineCandidate& candidate, int units = 0);

}  // namespace tutti::planner
