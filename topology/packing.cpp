#include "topology/packing.h"

#include "base/assert.h"
#include "topology/branchings.h"
#include "topology/lane_search.h"
#include "topology/max_flow.h"
#include "topology/units.h"

#include <algorithm>
#include <map>
#include <utility>

namespace tutti::topology {

namespace {

Wide common_divisor(const Network& network) {
  Wide divisor = 0;
  for (const Arc& arc : network.arcs) divisor = greatest_common_divisor(divisor, arc.capacity);
  return divisor;
}

/// Whether as much can leave every switch as can enter it.
bool is_balanced(const Network& network) {
  std::vector<Wide> surplus(network.nodes, 0);
  for (const Arc& arc : network.arcs) {
    surplus[arc.from] -= arc.capacity;
    surplus[arc.to] += arc.capacity;
  }
  for (const int node : network.compute) surplus[node] = 0;
  return std::ranges::all_of(surplus, [](const Wide amount) { return amount == 0; });
}

std::vector<TreeLane> lanes_of(const std::vector<Branching>& branchings, const Rational& unit, bool free_root) {
  std::vector<TreeLane> lanes;
  for (const Branching& branching : branchings) {
    TreeLane lane;
    lane.rate = Rational(branching.amount, 1) * unit;
    lane.root = branching.root;
    for (const Route& route : branching.edges) lane.edges.push_back({route.from(), route.to(), route.path});
    if (free_root) root_in_the_middle(lane);
    lanes.push_back(std::move(lane));
  }
  return merged(std::move(lanes));
}

TreePacking packing_of(std::vector<TreeLane> lanes) {
  TreePacking packing;
  for (const TreeLane& lane : lanes) packing.rate = packing.rate + lane.rate;
  packing.lanes = std::move(lanes);
  return packing;
}

std::vector<Branching> trees_for(const Network& network, Wide scale, Wide rate, Wide amount_max) {
  const int root = network.compute.front();
  Demand demand{network.compute, std::vector<Wide>(network.nodes, 0)};
  demand.weights[root] = rate;
  const auto flows = orient(network, scale, rate, root);
  TUTTI_ASSERT(flows.has_value());  // no orientation for a rate that every partition allows
  auto routes = split_switches(network.nodes, *flows, demand);
  TUTTI_ASSERT(routes.has_value());  // a switch that cannot be split off
  auto branchings = pack_branchings(network.nodes, std::move(*routes), demand, amount_max);
  TUTTI_ASSERT(branchings.has_value());  // routes that branchings cannot be packed into
  return std::move(*branchings);
}

}  // namespace

Network both_ways(const Network& network) {
  std::map<std::pair<int, int>, Bandwidth> capacities;
  for (const Arc& arc : network.arcs) capacities[{arc.from, arc.to}] += arc.capacity;
  Network result{network.nodes, network.compute, {}};
  for (const auto& [ends, capacity] : capacities) {
    const auto back = capacities.find({ends.second, ends.first});
    if (back == capacities.end()) continue;
    result.arcs.push_back({ends.first, ends.second, std::min(capacity, back->second)});
  }
  return result;
}

TreePacking pack_all_reduce(const Network& network) {
  const Network duplex = both_ways(network);
  const PartitionBound bound = all_reduce_bound(duplex);
  if (bound.unlimited || bound.rate == Rational(0)) return {};
  // In units in which the rate is whole and every capacity even, so that switches can be balanced.
  const Rational in_divisors = bound.rate / Rational(common_divisor(duplex), 1);
  const Rational unit = bound.rate / Rational(2 * in_divisors.numerator(), 1);
  Network scaled = duplex;
  for (Arc& arc : scaled.arcs) arc.capacity /= static_cast<Bandwidth>(common_divisor(duplex));
  return packing_of(
      lanes_of(trees_for(scaled, 2 * in_divisors.denominator(), 2 * in_divisors.numerator(), kUnlimited), unit, true));
}

TreePacking pack_all_gather(const Network& network) {
  const Network duplex = is_balanced(network) ? network : both_ways(network);
  const CutBound bound = all_gather_bound(duplex);
  if (bound.unlimited || bound.rate == Rational(0)) return {};
  const Wide divisor = common_divisor(duplex);
  const Rational each = bound.rate / Rational(divisor * static_cast<Wide>(duplex.compute.size()), 1);
  Demand demand{duplex.compute, std::vector<Wide>(duplex.nodes, 0)};
  for (const int node : duplex.compute) demand.weights[node] = each.numerator();
  std::vector<Flow> flows;
  for (const Arc& arc : duplex.arcs) flows.push_back({arc.from, arc.to, arc.capacity / divisor * each.denominator()});
  auto routes = split_switches(duplex.nodes, flows, demand);
  TUTTI_ASSERT(routes.has_value());  // a switch that cannot be split off
  auto branchings = pack_branchings(duplex.nodes, std::move(*routes), demand, kUnlimited);
  TUTTI_ASSERT(branchings.has_value());  // routes that branchings cannot be packed into
  return packing_of(lanes_of(*branchings, Rational(divisor, each.denominator()), false));
}

namespace {

/// `trees` unit trees, as lanes; their rates grown until a link is full.
TreePacking pack_units(const Network& duplex, const Rational& unit, int trees, Wide amount_max) {
  std::vector<TreeLane> lanes = lanes_of(trees_for(in_units(duplex, unit), 1, trees, amount_max), Rational(1), true);
  for (TreeLane& lane : lanes) lane.weight = static_cast<int>(lane.rate.numerator());
  const Rational factor = headroom(duplex, loads(duplex, lanes, TreeUse::kUpAndDown));
  for (TreeLane& lane : lanes) lane.rate = lane.rate * factor;
  return packing_of(std::move(lanes));
}

/// Of the deepest lane.
int depth_of(const TreePacking& packing) {
  int deepest = 0;
  for (const TreeLane& lane : packing.lanes) deepest = std::max(deepest, topology::depth_of(lane));
  return deepest;
}

/// Rates that numbers of trees promise, the best first, then the fewest; none of those that promise nothing.
std::vector<std::pair<Rational, int>> promises(const UnitSearch& search, int trees_max) {
  std::vector<std::pair<Rational, int>> rates;
  for (int trees = 1; trees <= trees_max; ++trees) {
    const Rational unit = search.promised(trees);
    if (unit > Rational(0)) rates.emplace_back(unit * Rational(trees), trees);
  }
  std::ranges::stable_sort(rates, [](const auto& a, const auto& b) { return a.first > b.first; });
  return rates;
}

}  // namespace

TreePacking pack_all_reduce(const Network& network, int lanes_max) {
  const Network duplex = both_ways(network);
  const PartitionBound bound = all_reduce_bound(duplex);
  if (bound.unlimited || bound.rate == Rational(0) || lanes_max < 1) return {};
  const UnitSearch search(duplex, bound);
  TreePacking best;
  Rational best_unit(0);
  int best_trees = 0;
  // More trees than lanes are worth some tries: equal ones share a lane. So are, on small machines, numbers of trees that do
  // not promise more: they may be flatter.
  // Of many lanes it is better to take as many trees as there are lanes.
  constexpr std::size_t kSmall = 16;
  constexpr int kFewLanes = 32;
  const bool is_small = duplex.compute.size() <= kSmall && lanes_max <= kFewLanes;
  int large_tries = is_small ? 3 : 1;
  int flat_tries = is_small ? 8 : 0;
  for (const auto& [promise, trees] : promises(search, is_small ? 4 * lanes_max : lanes_max)) {
    const bool is_large = trees > lanes_max;
    const bool may_gain = promise * Rational(999, 1000) > best.rate;
    if (!may_gain && (flat_tries == 0 || promise * Rational(1001, 1000) < best.rate)) break;
    if (is_large && (large_tries-- <= 0 || !may_gain)) continue;
    if (!may_gain) --flat_tries;
    const Rational unit = search.largest(trees, promise / Rational(trees));
    if (unit == Rational(0)) continue;
    TreePacking packing = pack_units(duplex, unit, trees, is_large ? kUnlimited : 1);
    if (packing.lanes.size() > static_cast<std::size_t>(lanes_max)) continue;
    const bool gains = packing.rate * Rational(999, 1000) > best.rate;
    const bool flatter = packing.rate * Rational(1001, 1000) > best.rate && depth_of(packing) < depth_of(best);
    if (!gains && !flatter) continue;
    best = std::move(packing);
    best_unit = unit;
    best_trees = trees;
  }
  const Rational satisfied = bound.rate * Rational(99, 100);
  if (best.rate >= satisfied || !is_small || best_trees == 0) return best;
  const TreePacking fewer = pack_units(duplex, best_unit, best_trees, kUnlimited);
  for (const auto& lanes : {best.lanes, fewer.lanes}) {
    TreePacking better = packing_of(improved(duplex, lanes, lanes_max, bound.rate));
    if (better.rate > best.rate) best = std::move(better);
  }
  return best;
}

namespace {

/// `trees` unit trees from each compute node, as lanes; their rates grown until a link is full.
TreePacking pack_gather_units(const Network& duplex, const Rational& unit, int trees) {
  const Network rounded = whole_units(duplex, unit);
  Demand demand{duplex.compute, std::vector<Wide>(duplex.nodes, 0)};
  for (const int node : duplex.compute) demand.weights[node] = trees;
  std::vector<Flow> flows;
  for (const Arc& arc : rounded.arcs) flows.push_back({arc.from, arc.to, arc.capacity});
  auto routes = split_switches(rounded.nodes, flows, demand);
  TUTTI_ASSERT(routes.has_value());  // a switch that cannot be split off
  auto branchings = pack_branchings(rounded.nodes, std::move(*routes), demand, kUnlimited);
  TUTTI_ASSERT(branchings.has_value());  // routes that branchings cannot be packed into
  std::vector<TreeLane> lanes = lanes_of(*branchings, Rational(1), false);
  for (TreeLane& lane : lanes) lane.weight = static_cast<int>(lane.rate.numerator());
  const Rational factor = headroom(duplex, loads(duplex, lanes, TreeUse::kDown));
  for (TreeLane& lane : lanes) lane.rate = lane.rate * factor;
  return packing_of(std::move(lanes));
}

}  // namespace

TreePacking pack_all_gather(const Network& network, int lanes_max) {
  const Network duplex = both_ways(network);
  const CutBound bound = all_gather_bound(duplex);
  if (bound.unlimited || bound.rate == Rational(0) || lanes_max < 1) return {};
  const GatherUnitSearch search(duplex, bound);
  const Rational roots(static_cast<Wide>(duplex.compute.size()), 1);
  // Of all lanes together, the best first, then the fewest.
  std::vector<std::pair<Rational, int>> promised;
  for (int trees = 1; trees <= lanes_max; ++trees)
    promised.emplace_back(search.promised(trees) * Rational(trees) * roots, trees);
  std::ranges::stable_sort(promised, [](const auto& a, const auto& b) { return a.first > b.first; });
  constexpr std::size_t kSmall = 16;
  int tries = duplex.compute.size() <= kSmall ? 6 : 1;
  Rational best_rate(0);
  Rational best_unit(0);
  int best_trees = 0;
  for (const auto& [promise, trees] : promised) {
    if (promise * Rational(999, 1000) <= best_rate || tries-- == 0) break;
    const Rational unit = search.largest(trees, promise / (Rational(trees) * roots));
    const Rational rate = unit * Rational(trees) * roots;
    if (rate * Rational(999, 1000) <= best_rate) continue;
    best_rate = rate;
    best_unit = unit;
    best_trees = trees;
  }
  return best_trees == 0 ? TreePacking{} : pack_gather_units(duplex, best_unit, best_trees);
}

}  // namespace tutti::topology
