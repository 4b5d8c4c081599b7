// The plan of a collective on a machine, for large messages: what the links allow at best (the certificate), what each
// algorithm makes of them, and the schedule of the best one.
#pragma once

#include "algorithm/hierarchical.h"
#include "algorithm/packed_pairs.h"
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
  /// Ranks by host, each once; empty: hosts are not told apart, so that no plan goes by them.
  std::vector<std::vector<int>> hosts;
  /// Whether each rank reaches the others' buffers, as on one host; else messages go through slots, in many rounds.
  bool direct = true;
};

/// What no schedule can exceed.
struct Certificate {
  double gbps = 0;                     ///< algorithm bandwidth; no meaning if unlimited
  double links_gbps = 0;               ///< where memory allows less than links, what these allow; else 0
  bool unlimited = false;              ///< one rank: nothing has to move
  bool by_hosts = false;               ///< of so many ranks only hosts and single ranks were looked at (many_ranks.h)
  topology::PartitionBound partition;  ///< all_reduce: what binds
  topology::CutBound cut;              ///< the others

  bool by_memory() const { return links_gbps > 0; }
  double over_links_gbps() const { return by_memory() ? links_gbps : gbps; }
};

/// Of an all-reduce, all-gather or reduce-scatter on a network with a rank at least. Above kPlannedRanksMax ranks the question has hosts.
Certificate certify(const topology::Network& network, const MachineQuestion& question);

/// Of the steady state, what candidates whose rounds wait for one another are given: simulated across hosts, large messages
/// come to a quarter of it up to nine tenths, those of others to all of it.
inline constexpr double kWaitingPart = 0.75;

/// One way of doing it.
struct MachineCandidate {
  std::string_view algorithm;  ///< its name in the table of algorithms
  int lanes = 1;
  double gbps = 0;      ///< in the steady state (routes.h)
  double ratio = 1;     ///< to the certificate
  int hops = 0;         ///< messages after one another until the first data is everywhere
  int hops_across = 0;  ///< of these between hosts
  int fullest = -1;     ///< the arc that takes longest; -1: memory takes longer
  bool waits = false;   ///< its rounds wait for one another, so that it does not come to its steady state
  /// With one unit where it is packed trees; without programs above kPlannedRanksMax.
  schedule::Schedule schedule;
  std::vector<algorithm::Parents> trees;       ///< of an all-reduce, by lane
  std::vector<algorithm::TreePair> pairs;      ///< or pairs of trees
  std::vector<algorithm::RootedTrees> rooted;  ///< or, of the other collectives
  int slots = algorithm::kTreeSlots;           ///< of a channel, that these need
  algorithm::Hierarchy hierarchy;              ///< of a hierarchical one
  /// Of any number of such lanes, by linear programme; 0: not looked for. `most_is_proved` of all lanes of the kind.
  double most_gbps = 0;
  bool most_is_proved = false;
  /// With their lanes; a message that has none goes the shortest way.
  std::vector<std::pair<int, std::vector<int>>> paths;

  /// What it counts as beside others.
  double counted_gbps() const { return waits ? kWaitingPart * gbps : gbps; }
  /// For people: of a hierarchical one also what goes across.
  std::string label() const;
  /// Of packed trees of any kind, the units in a round that large messages need; else 0.
  int units_most() const;
};

struct MachinePlan {
  MachineQuestion question;
  int ranks = 0;
  Certificate certificate;
  std::vector<MachineCandidate> candidates;  ///< the chosen one first, then the others by what they reach
  bool with_rings = false;                   ///< whether rings were looked for
  double ring_gbps = 0;                      ///< of the best rings found, of any number of lanes; 0: none
  double ring_limit_gbps = 0;                ///< what no rings exceed, NCCL's neither
  std::vector<std::string> left_out;         ///< what is no candidate here and why

  const MachineCandidate& chosen() const { return candidates.front(); }
  /// Whether no rings are better than those found, but for rounding.
  bool rings_are_best() const { return ring_gbps >= ring_limit_gbps * (1 - 1e-5); }
  /// nullptr if it is no candidate here.
  const MachineCandidate* find(std::string_view algorithm) const;
};

/// Packing trees takes some seconds for so many, and grows faster than their square. More get hierarchical plans.
inline constexpr int kPlannedRanksMax = 256;
/// Switches count too. No machine known is near these; networks made to be hard take some ten seconds.
inline constexpr int kPlannedNodesMax = 1024;
inline constexpr int kPlannedArcsMax = 1 << 16;
/// Of several hosts: a second or so.
inline constexpr int kHostedRanksMax = 4096;
inline constexpr int kHostedNodesMax = 1 << 16;
inline constexpr int kHostedArcsMax = 1 << 19;

/// The network's ranks are its nodes 0 to ranks - 1 (topology/view.h).
/// kInvalidArgument if the collective is none of the three, there is no rank, the network is larger than the limits,
/// some ranks are not joined (ranks_apart), or the hosts have not every rank once.
Result<MachinePlan> plan_machine(const topology::Network& network, const MachineQuestion& question);

/// Rings beside the plan, for comparison: plan_machine has looked for them only where nothing else comes near the bound.
void add_rings(MachinePlan& plan, const topology::Network& network);

/// Of ranks whose memory allows no more: bound and candidates are no faster. Nothing changes if links allow less.
void limit_by_memory(MachinePlan& plan, double gbps);

/// Two ranks of which the first cannot reach the second, or {-1, -1}.
std::pair<int, int> ranks_apart(const topology::Network& network);

/// The candidate's schedule as it runs: packed trees with `units` units in a round, 0 for as many as large
/// messages need.
schedule::Schedule full_schedule(const MachineCandidate& candidate, int units = 0);

}  // namespace tutti::planner
