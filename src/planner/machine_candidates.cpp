#include "planner/machine_candidates.h"

#include "algorithm/algorithm.h"
#include "algorithm/lane_orders.h"
#include "algorithm/packed_trees.h"
#include "planner/lane_shares.h"
#include "topology/packing.h"
#include "topology/tree_bundles.h"
#include "topology/tree_pairs.h"

#include <algorithm>
#include <list>
#include <utility>

namespace tutti::planner {

namespace {

using algorithm::Parents;

constexpr std::string_view kPackedTrees = "packed_trees";  // as in the table of algorithms
using topology::TreeLane;

schedule::Request request_for(const topology::Network& network, const MachineQuestion& question) {
  return {question.collective, static_cast<int>(network.compute.size()), 0, 0};
}

Parents parents_of(const std::vector<topology::TreeEdge>& edges, std::size_t ranks) {
  Parents parents(ranks, algorithm::kNoParent);
  for (const topology::TreeEdge& edge : edges) parents[static_cast<std::size_t>(edge.child)] = edge.parent;
  return parents;
}

void add_both_ways(Proposal& proposal, int lane, const std::vector<int>& path) {
  proposal.paths.emplace_back(lane, path);
  proposal.paths.emplace_back(lane, std::vector<int>(path.rbegin(), path.rend()));
}

/// Of the ranks that a message goes through one after another, the steps from host to host.
int crossings(const std::vector<int>& host_of, const std::vector<topology::TreeEdge>& edges, int root) {
  std::vector<int> crossed(host_of.size(), 0);
  int most = 0;
  const auto at = [&](int rank) -> int& { return crossed[static_cast<std::size_t>(rank)]; };
  at(root) = 0;
  for (const topology::TreeEdge& edge : edges) {  // parents first
    const bool apart = host_of[static_cast<std::size_t>(edge.parent)] != host_of[static_cast<std::size_t>(edge.child)];
    at(edge.child) = at(edge.parent) + (apart ? 1 : 0);
    most = std::max(most, at(edge.child));
  }
  return most;
}

int hosts_in(const std::vector<int>& host_of) { return 1 + *std::ranges::max_element(host_of); }

/// Numbers of lanes to try, until what they reach is kEnough of what there is.
constexpr double kEnough = 0.99;
/// Of the bound: less is worth the time to pack for more lanes, where ranks are so few that it is little.
constexpr double kNear = 0.97;
constexpr std::size_t kPackedAgainRanksMax = 64;
/// Among so few ranks packing is quick, and fewer trees are tried, too.
constexpr std::size_t kFewRanks = 16;
std::vector<int> lane_limits(const MachineQuestion& question) {
  if (question.lanes_max > 0) return {question.lanes_max};
  return {kLanesWanted, kLanesMost};
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
  const std::size_t most = network.compute.size() <= kFewRanks && limit == kLanesWanted ? 3 : 1;
  for (int trees_max = limit; trees_max > 0 && packings.size() < most; trees_max /= 2) {
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
  const std::vector<int> host_of = host_of_ranks(question, static_cast<int>(network.compute.size()));
  candidate.algorithm = kPackedTrees;
  candidate.lanes = static_cast<int>(lanes.size());
  for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
    candidate.hops = std::max(candidate.hops, 2 * depth_of(*lanes[lane]));
    candidate.hops_across =
        std::max(candidate.hops_across, 2 * crossings(host_of, lanes[lane]->edges, lanes[lane]->root));
    candidate.trees.push_back(parents_of(lanes[lane]->edges, network.compute.size()));
    for (const topology::TreeEdge& edge : lanes[lane]->edges)
      add_both_ways(proposal, static_cast<int>(lane), edge.path);
  }
  candidate.gbps = shared.rate / topology::kGigabyte;
  candidate.schedule = algorithm::packed_trees(candidate.trees);
  return {std::move(proposal)};
}

/// Pairs or bundles in lanes of equal shares: in more of them as long as these come closer to `best`, what there is.
template <class Packing, class Lane>
SharedLanes<Lane> shared_near(const topology::Network& network, const MachineQuestion& question, const Packing& packing,
                              double best, std::vector<Lane>& kept) {
  SharedLanes<Lane> shared;
  for (const int limit : lane_limits(question)) {
    std::vector<Lane> packed = lanes_of(network, packing, limit);
    SharedLanes<Lane> lanes = share_out(network, packed, limit);
    if (lanes.rate > shared.rate) {
      shared = std::move(lanes);
      kept = std::move(packed);  // what the lanes point to stays where it is
    }
    if (shared.rate >= kNear * best) break;
  }
  return shared;
}

/// Sums up one tree and down another: for links that differ in their two directions.
std::vector<Proposal> pairs_for_all_reduce(const topology::Network& network, const MachineQuestion& question) {
  const topology::PairPacking packing = topology::pack_pairs(network);
  std::vector<topology::PairLane> packed;
  const auto lanes = shared_near(network, question, packing, packing.best, packed).lanes;
  if (lanes.empty()) return {};
  const std::size_t ranks = network.compute.size();
  const std::vector<int> host_of = host_of_ranks(question, static_cast<int>(ranks));
  Proposal proposal;
  MachineCandidate& candidate = proposal.candidate;
  candidate.algorithm = "packed_pairs";  // as in the table of algorithms
  candidate.lanes = static_cast<int>(lanes.size());
  candidate.most_gbps = packing.best / topology::kGigabyte;
  candidate.most_is_proved = packing.exact;
  for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
    const topology::PairLane& pair = *lanes[lane];
    candidate.pairs.push_back({parents_of(pair.up, ranks), parents_of(pair.down, ranks)});
    const auto depth = [](const Parents& tree) { return std::ranges::max(algorithm::depths_of(tree)); };
    candidate.hops = std::max(candidate.hops, depth(candidate.pairs.back().up) + depth(candidate.pairs.back().down));
    candidate.hops_across = std::max(candidate.hops_across,
                                     crossings(host_of, pair.up, pair.root) + crossings(host_of, pair.down, pair.root));
    for (const auto& edges : {pair.up, pair.down}) {
      for (const topology::TreeEdge& edge : edges) proposal.paths.emplace_back(static_cast<int>(lane), edge.path);
    }
  }
  candidate.schedule = algorithm::packed_pairs(candidate.pairs);
  return {std::move(proposal)};
}

/// By lane and rank, its root: trees that blocks go down; a reduce-scatter's sums come the same ways back.
Proposal rooted_proposal(const std::vector<std::vector<const TreeLane*>>& lanes, const MachineQuestion& question) {
  const bool down = question.collective == Collective::kAllGather;
  const std::size_t ranks = lanes.front().size();
  const std::vector<int> host_of = host_of_ranks(question, static_cast<int>(ranks));
  Proposal proposal;
  MachineCandidate& candidate = proposal.candidate;
  std::vector<algorithm::RootedTrees> shapes;
  for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
    shapes.emplace_back();
    for (const TreeLane* tree : lanes[lane]) {
      shapes.back().push_back(parents_of(tree->edges, ranks));
      candidate.hops = std::max(candidate.hops, depth_of(*tree));
      candidate.hops_across = std::max(candidate.hops_across, crossings(host_of, tree->edges, tree->root));
      for (const topology::TreeEdge& edge : tree->edges) {
        std::vector<int> path = edge.path;
        if (!down) std::ranges::reverse(path);
        proposal.paths.emplace_back(static_cast<int>(lane), std::move(path));
      }
    }
  }
  candidate.algorithm = kPackedTrees;
  candidate.lanes = static_cast<int>(shapes.size());
  candidate.slots = algorithm::slots_for(shapes);
  candidate.schedule = down ? algorithm::packed_out_trees(shapes, 1, candidate.slots)
                            : algorithm::packed_in_trees(shapes, 1, candidate.slots);
  candidate.rooted = std::move(shapes);
  return proposal;
}

std::vector<std::vector<const TreeLane*>> trees_of(const std::vector<const topology::BundleLane*>& bundles) {
  std::vector<std::vector<const TreeLane*>> lanes;
  for (const topology::BundleLane* bundle : bundles) {
    lanes.emplace_back();
    for (const TreeLane& tree : bundle->trees) lanes.back().push_back(&tree);
  }
  return lanes;
}

/// For all-gather down the trees, for reduce-scatter up those of the reversed network.
std::vector<Proposal> rooted_trees(const topology::Network& network, const MachineQuestion& question,
                                   double bound_rate) {
  const bool down = question.collective == Collective::kAllGather;
  const topology::Network way = down ? network : topology::reversed(network);
  const topology::TreePacking packing = topology::pack_all_gather(way);
  const std::vector<int> limits = lane_limits(question);
  RootedLanes shared = share_out(way, packing.lanes, limits.front());
  topology::TreePacking of_units;  // lanes point into it
  if (shared.rate < kEnough * packing.rate.to_double()) {
    of_units = topology::pack_all_gather(way, limits.front());
    RootedLanes lanes = share_out(way, of_units.lanes, limits.front());
    if (lanes.rate > shared.rate) shared = std::move(lanes);
  }
  for (std::size_t i = 1; i < limits.size() && shared.rate < kNear * packing.rate.to_double(); ++i) {
    RootedLanes lanes = share_out(way, packing.lanes, limits[i]);
    if (lanes.rate > shared.rate) shared = std::move(lanes);
  }
  const double enough = network.compute.size() <= kFewRanks ? kEnough : kNear;
  topology::BundlePacking bundles;
  std::vector<topology::BundleLane> packed;  // lanes point into it
  const double trees_from_each = static_cast<double>(network.compute.size());
  if (packing.rate.to_double() < enough * bound_rate) {
    // Switches that more can enter than leave, or less: what both directions have is not all there is.
    bundles = topology::pack_bundles(way);
    const auto more = shared_near(way, question, bundles, bundles.best * trees_from_each, packed);
    if (more.rate > shared.rate) shared = {trees_of(more.lanes), more.rate};
  }
  if (shared.lanes.empty()) return {};
  Proposal proposal = rooted_proposal(shared.lanes, question);
  proposal.candidate.most_gbps = bundles.best * trees_from_each / topology::kGigabyte;
  proposal.candidate.most_is_proved = bundles.exact;
  return {std::move(proposal)};
}

/// A row of the table as it is, on the shortest ways.
Proposal row(std::string_view name, const topology::Network& network, const MachineQuestion& question, int hops,
             int hops_across) {
  const schedule::Request request = request_for(network, question);
  Proposal proposal;
  proposal.candidate.algorithm = name;
  proposal.candidate.schedule = algorithm::make_schedule(*algorithm::find(name, request), request);
  proposal.candidate.lanes = static_cast<int>(proposal.candidate.schedule.shape.lanes);
  proposal.candidate.hops = hops;
  proposal.candidate.hops_across = hops_across;
  return proposal;
}

int doublings(int ranks) {
  int count = 0;
  for (int reached = 1; reached < ranks; reached *= 2) ++count;
  return count;
}

}  // namespace

std::vector<int> host_of_ranks(const MachineQuestion& question, int ranks) {
  std::vector<int> host_of(static_cast<std::size_t>(ranks), 0);
  for (std::size_t host = 0; host < question.hosts.size(); ++host) {
    for (const int rank : question.hosts[host]) host_of[static_cast<std::size_t>(rank)] = static_cast<int>(host);
  }
  return host_of;
}

std::vector<Proposal> propose_trees(const topology::Network& network, const MachineQuestion& question,
                                    double bound_rate) {
  if (question.collective != Collective::kAllReduce) return rooted_trees(network, question, bound_rate);
  std::vector<Proposal> proposals = trees_for_all_reduce(network, question, bound_rate);
  // Pairs of trees take long to find: among many ranks not for the last few per cent.
  const bool near = network.compute.size() > kFewRanks && !proposals.empty() &&
                    proposals.front().candidate.gbps * topology::kGigabyte >= kNear * bound_rate;
  if (!network.full_duplex() && !near) {
    for (Proposal& pairs : pairs_for_all_reduce(network, question)) proposals.push_back(std::move(pairs));
  }
  return proposals;
}

std::vector<Proposal> propose_rows(const topology::Network& network, const MachineQuestion& question) {
  const int ranks = static_cast<int>(network.compute.size());
  // All pairs cross; a tree over ranks in order of hosts crosses about as often as one over hosts.
  const int hosts = hosts_in(host_of_ranks(question, ranks));
  const int apart = hosts > 1 ? 1 : 0;
  std::vector<Proposal> proposals;
  proposals.push_back(row("oneshot", network, question, 1, apart));
  if (question.collective != Collective::kAllReduce) return proposals;
  proposals.push_back(row("twoshot", network, question, 2, 2 * apart));
  proposals.push_back(row("tree", network, question, 2 * doublings(ranks), 2 * doublings(hosts)));
  return proposals;
}

Proposal propose_rings(const topology::Network& network, const MachineQuestion& question,
                       const topology::RingPacking& packing) {
  const schedule::Request request = request_for(network, question);
  const auto lanes = share_out(network, packing.rings, lane_limits(question).front()).lanes;
  Proposal proposal;
  std::vector<std::vector<int>> orders;
  const std::vector<int> host_of = host_of_ranks(question, request.ranks);
  const int loops = question.collective == Collective::kAllReduce ? 2 : 1;
  for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
    const std::vector<int>& order = lanes[lane]->order;
    orders.push_back(order);
    int crossed = 0;
    for (std::size_t i = 0; i < order.size(); ++i) {
      const int next = order[(i + 1) % order.size()];
      crossed += host_of[static_cast<std::size_t>(order[i])] != host_of[static_cast<std::size_t>(next)] ? 1 : 0;
    }
    proposal.candidate.hops_across = std::max(proposal.candidate.hops_across, loops * crossed);
    for (const std::vector<int>& path : lanes[lane]->paths) proposal.paths.emplace_back(static_cast<int>(lane), path);
  }
  proposal.candidate.algorithm = "ring";
  proposal.candidate.lanes = static_cast<int>(orders.size());
  proposal.candidate.schedule = algorithm::in_orders(*algorithm::find("ring", request), request, orders);
  proposal.candidate.hops = loops * (request.ranks - 1);
  proposal.candidate.hops_across = std::min(proposal.candidate.hops_across, proposal.candidate.hops);
  return proposal;
}

}  // namespace tutti::planner
