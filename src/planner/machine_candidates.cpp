#include "planner/machine_candidates.h"

#include "algorithm/algorithm.h"
#include "algorithm/lane_orders.h"
#include "algorithm/packed_trees.h"
#include "planner/lane_shares.h"
#include "topology/packing.h"

#include <algorithm>
#include <list>
#include <utility>

namespace tutti::planner {

namespace {

using algorithm::Parents;

constexpr std::string_view kPackedTrees = "packed_trees";  // as in algorithm::planned_algorithms()
using topology::TreeLane;

schedule::Request request_for(const topology::Network& network, const MachineQuestion& question) {
  return {question.collective, static_cast<int>(network.compute.size()), 0, 0};
}

Parents parents_of(const TreeLane& tree, std::size_t ranks) {
  Parents parents(ranks, algorithm::kNoParent);
  for (const topology::TreeEdge& edge : tree.edges) parents[static_cast<std::size_t>(edge.child)] = edge.parent;
  return parents;
}

void add_both_ways(Proposal& proposal, int lane, const std::vector<int>& path) {
  proposal.paths.emplace_back(lane, path);
  proposal.paths.emplace_back(lane, std::vector<int>(path.rbegin(), path.rend()));
}

/// Numbers of lanes to try, until what they reach is kEnough of what there is.
constexpr double kEnough = 0.99;
/// Of the bound: less is worth the time to pack for more lanes, where ranks are so few that it is little.
constexpr double kNear = 0.97;
constexpr std::size_t kPackedAgainRanksMax = 16;
std::vector<int> lane_limits(const MachineQuestion& question) {
  if (question.lanes_max > 0) return {question.lanes_max};
  std::vector<int> limits;
  for (int limit = kLanesWanted; limit <= kLanesMost; limit *= 2) limits.push_back(limit);
  return limits;
}

/// The best lanes that these packings can be shared out to.
SpanningLanes shared_out(const topology::Network& network, const std::vector<topology::TreePacking>& packings,
                         int limit) {
  SpanningLanes best;
  for (const topology::TreePacking& packing : packings) {
    SpanningLanes lanes = share_out_spanning(network, packing.lanes, limit);
    if (lanes.rate > best.rate) best = std::move(lanes);
  }
  return best;
}

/// Packings with trees of many weights need many lanes of equal shares; those of fewer trees may need less.
std::vector<topology::TreePacking> packings_for(const topology::Network& network, int limit) {
  std::vector<topology::TreePacking> packings;
  for (int trees_max = limit; trees_max > 0 && packings.size() < 3; trees_max /= 2) {
    packings.push_back(topology::pack_all_reduce(network, trees_max));
    const double rate = packings.back().rate.to_double();
    if (shared_out(network, {packings.back()}, limit).rate >= kEnough * rate) break;
  }
  return packings;
}

std::vector<Proposal> trees_for_all_reduce(const topology::Network& network, const MachineQuestion& question,
                                           double bound_rate) {
  std::list<std::vector<topology::TreePacking>> tried;  // lanes point into them
  SpanningLanes shared;
  const bool may_pack_again = network.compute.size() <= kPackedAgainRanksMax;
  for (const int limit : lane_limits(question)) {
    const bool far = shared.rate < kNear * bound_rate;
    if (tried.empty() || (far && may_pack_again)) tried.push_back(packings_for(network, limit));
    for (const std::vector<topology::TreePacking>& packings : tried) {
      SpanningLanes lanes = shared_out(network, packings, limit);
      if (lanes.rate > shared.rate) shared = std::move(lanes);
    }
    const bool all_there_is = shared.rate >= kEnough * tried.back().front().rate.to_double();
    if (all_there_is && (shared.rate >= kNear * bound_rate || !may_pack_again)) break;
  }
  const std::vector<const TreeLane*>& lanes = shared.lanes;
  if (lanes.empty()) return {};
  Proposal proposal;
  MachineCandidate& candidate = proposal.candidate;
  candidate.algorithm = kPackedTrees;
  candidate.lanes = static_cast<int>(lanes.size());
  for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
    candidate.hops = std::max(candidate.hops, 2 * depth_of(*lanes[lane]));
    candidate.trees.push_back(parents_of(*lanes[lane], network.compute.size()));
    for (const topology::TreeEdge& edge : lanes[lane]->edges)
      add_both_ways(proposal, static_cast<int>(lane), edge.path);
  }
  candidate.schedule = algorithm::packed_trees(candidate.trees);
  return {std::move(proposal)};
}

/// For all-gather down the trees, for reduce-scatter up those of the reversed network.
std::vector<Proposal> rooted_trees(const topology::Network& network, const MachineQuestion& question) {
  const bool down = question.collective == Collective::kAllGather;
  const topology::Network way = down ? network : topology::reversed(network);
  const topology::TreePacking packing = topology::pack_all_gather(way);
  RootedLanes shared;
  for (const int limit : lane_limits(question)) {
    shared = share_out(way, packing.lanes, limit);
    if (shared.rate >= kEnough * packing.rate.to_double()) break;
  }
  const auto& lanes = shared.lanes;
  if (lanes.empty()) return {};
  Proposal proposal;
  std::vector<std::vector<Parents>> shapes;
  for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
    shapes.emplace_back();
    for (const TreeLane* tree : lanes[lane]) {
      shapes.back().push_back(parents_of(*tree, network.compute.size()));
      proposal.candidate.hops = std::max(proposal.candidate.hops, depth_of(*tree));
      for (const topology::TreeEdge& edge : tree->edges) {
        std::vector<int> path = edge.path;
        if (!down) std::ranges::reverse(path);
        proposal.paths.emplace_back(static_cast<int>(lane), std::move(path));
      }
    }
  }
  proposal.candidate.algorithm = kPackedTrees;
  proposal.candidate.lanes = static_cast<int>(shapes.size());
  proposal.candidate.schedule = down ? algorithm::packed_out_trees(shapes) : algorithm::packed_in_trees(shapes);
  return {std::move(proposal)};
}

/// A row of the table as it is, on the shortest ways.
Proposal row(std::string_view name, const topology::Network& network, const MachineQuestion& question, int hops) {
  const schedule::Request request = request_for(network, question);
  Proposal proposal;
  proposal.candidate.algorithm = name;
  proposal.candidate.schedule = algorithm::make_schedule(*algorithm::find(name, request), request);
  proposal.candidate.lanes = static_cast<int>(proposal.candidate.schedule.shape.lanes);
  proposal.candidate.hops = hops;
  return proposal;
}

int doublings(int ranks) {
  int count = 0;
  for (int reached = 1; reached < ranks; reached *= 2) ++count;
  return count;
}

}  // namespace

std::vector<Proposal> propose(const topology::Network& network, const MachineQuestion& question, double bound_rate) {
  const bool all_reduce = question.collective == Collective::kAllReduce;
  std::vector<Proposal> proposals =
      all_reduce ? trees_for_all_reduce(network, question, bound_rate) : rooted_trees(network, question);
  const int ranks = static_cast<int>(network.compute.size());
  if (!all_reduce) {
    proposals.push_back(row("oneshot", network, question, 1));
    return proposals;
  }
  proposals.push_back(row("twoshot", network, question, 2));
  proposals.push_back(row("tree", network, question, 2 * doublings(ranks)));
  return proposals;
}

Proposal propose_rings(const topology::Network& network, const MachineQuestion& question,
                       const topology::RingPacking& packing) {
  const schedule::Request request = request_for(network, question);
  const auto lanes = share_out(network, packing.rings, lane_limits(question).front());
  Proposal proposal;
  std::vector<std::vector<int>> orders;
  for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
    orders.push_back(lanes[lane]->order);
    for (const std::vector<int>& path : lanes[lane]->paths) proposal.paths.emplace_back(static_cast<int>(lane), path);
  }
  proposal.candidate.algorithm = "ring";
  proposal.candidate.lanes = static_cast<int>(orders.size());
  proposal.candidate.schedule = algorithm::in_orders(*algorithm::find("ring", request), request, orders);
  proposal.candidate.hops = (question.collective == Collective::kAllReduce ? 2 : 1) * (request.ranks - 1);
  return proposal;
}

}  // namespace tutti::planner
