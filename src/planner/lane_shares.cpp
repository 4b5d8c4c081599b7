#include "planner/lane_shares.h"

#include "base/assert.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <utility>

namespace tutti::planner {

namespace {

using topology::Ring;
using topology::TreeLane;

constexpr double kWorthALane = 0.999;

/// Counts what lanes put on links.
class LinkCount {
 public:
  explicit LinkCount(const topology::Network& network) : network_(network) {
    for (std::size_t arc = 0; arc < network.arcs.size(); ++arc)
      arcs_[{network.arcs[arc].from, network.arcs[arc].to}] = arc;
    clear();
  }
  void clear() { loads_.assign(network_.arcs.size(), 0); }
  void add(const std::vector<int>& path) {
    for (std::size_t i = 0; i + 1 < path.size(); ++i) ++loads_[arcs_.at({path[i], path[i + 1]})];
  }
  /// The time of the fullest link, if each path has a byte.
  double longest() const {
    double most = 0;
    for (std::size_t arc = 0; arc < loads_.size(); ++arc)
      most = std::max(most, loads_[arc] / static_cast<double>(network_.arcs[arc].capacity));
    return most;
  }

 private:
  const topology::Network& network_;
  std::map<std::pair<int, int>, std::size_t> arcs_;
  std::vector<double> loads_;
};

/// What the links allow of lanes with a byte each, in lanes per unit of time.
template <class Lanes, class Add>
double lanes_in_time(LinkCount& links, const Lanes& lanes, const Add& add) {
  links.clear();
  for (const auto& lane : lanes) add(lane, links);
  return static_cast<double>(lanes.size()) / links.longest();
}

/// Tries each number of lanes; lanes_of(count) makes them, add(lane, links) counts what one puts on links.
template <class LanesOf, class Add>
auto best_number(LinkCount& links, int lanes_max, const LanesOf& lanes_of, const Add& add) {
  auto best = lanes_of(1);
  double most = lanes_in_time(links, best, add);
  for (int count = 2; count <= lanes_max; ++count) {
    auto lanes = lanes_of(count);
    const double rate = lanes_in_time(links, lanes, add);
    if (rate * kWorthALane < most) continue;
    most = rate;
    best = std::move(lanes);
  }
  return std::pair(std::move(best), most);
}

void add_down(const TreeLane& tree, LinkCount& links) {
  for (const topology::TreeEdge& edge : tree.edges) links.add(edge.path);
}

void add_both_ways(const TreeLane* tree, LinkCount& links) {
  for (const topology::TreeEdge& edge : tree->edges) {
    links.add(edge.path);
    links.add({edge.path.rbegin(), edge.path.rend()});
  }
}

/// By lane one of the items, `count` lanes, as rates say.
template <class Item>
std::vector<const Item*> dealt(const std::vector<Item>& items, const std::vector<double>& rates, int count) {
  std::vector<const Item*> lanes;
  const std::vector<int> parts = parts_of(rates, count);
  for (std::size_t i = 0; i < items.size(); ++i)
    lanes.insert(lanes.end(), static_cast<std::size_t>(parts[i]), &items[i]);
  return lanes;
}

}  // namespace

std::vector<int> parts_of(const std::vector<double>& rates, int lanes) {
  TUTTI_ASSERT(!rates.empty());
  double sum = 0;
  for (const double rate : rates) sum += rate;
  std::vector<int> parts;
  std::vector<std::pair<double, std::size_t>> remainders;
  int left = lanes;
  for (std::size_t i = 0; i < rates.size(); ++i) {
    constexpr double kRounding = 1e-9;  // a whole number may come out a little below itself
    const double exact = rates[i] / sum * lanes + kRounding;
    parts.push_back(std::min(static_cast<int>(exact), left));
    left -= parts.back();
    remainders.emplace_back(parts.back() - exact, i);
  }
  std::ranges::sort(remainders);
  for (std::size_t i = 0; left > 0; ++i, --left) ++parts[remainders[i % remainders.size()].second];
  return parts;
}

RootedLanes share_out(const topology::Network& network, const std::vector<TreeLane>& trees, int lanes_max) {
  if (trees.empty()) return {};
  std::vector<std::vector<const TreeLane*>> by_root(network.compute.size());
  for (const TreeLane& tree : trees) by_root[static_cast<std::size_t>(tree.root)].push_back(&tree);
  const auto lanes_of = [&](int count) {
    std::vector<std::vector<const TreeLane*>> lanes(static_cast<std::size_t>(count));
    for (const auto& of_root : by_root) {
      std::vector<double> rates;
      for (const TreeLane* tree : of_root) rates.push_back(tree->rate.to_double());
      const std::vector<int> parts = parts_of(rates, count);
      std::size_t lane = 0;
      for (std::size_t i = 0; i < of_root.size(); ++i) {
        for (int copy = 0; copy < parts[i]; ++copy) lanes[lane++].push_back(of_root[i]);
      }
    }
    return lanes;
  };
  LinkCount links(network);
  auto [lanes, rate] = best_number(links, lanes_max, lanes_of, [](const auto& lane, LinkCount& counted) {
    for (const TreeLane* tree : lane) add_down(*tree, counted);
  });
  return {std::move(lanes), rate * static_cast<double>(by_root.size())};
}

SpanningLanes share_out_spanning(const topology::Network& network, const std::vector<TreeLane>& trees, int lanes_max) {
  if (trees.empty()) return {};
  std::vector<double> rates;
  int divisor = 0;
  for (const TreeLane& tree : trees) {
    rates.push_back(tree.rate.to_double());
    divisor = std::gcd(divisor, tree.weight);
  }
  std::int64_t weights = 0;
  for (const TreeLane& tree : trees) weights += divisor > 0 ? tree.weight / divisor : lanes_max + 1;
  LinkCount links(network);
  if (weights <= lanes_max) {
    std::vector<const TreeLane*> lanes = dealt(trees, rates, static_cast<int>(weights));
    const double rate = lanes_in_time(links, lanes, add_both_ways);
    return {std::move(lanes), rate};
  }
  const auto lanes_of = [&](int count) { return dealt(trees, rates, count); };
  auto [lanes, rate] = best_number(links, lanes_max, lanes_of, add_both_ways);
  return {std::move(lanes), rate};
}

namespace {

/// As many lanes as the weights say, if they are not too many, or the best number.
template <class Lane, class Add>
std::vector<const Lane*> share_out_weighted(const topology::Network& network, const std::vector<Lane>& items,
                                            int lanes_max, const Add& add) {
  if (items.empty()) return {};
  std::vector<double> rates;
  int divisor = 0;
  for (const Lane& item : items) {
    rates.push_back(item.rate.to_double());
    divisor = std::gcd(divisor, item.weight);
  }
  std::int64_t weights = 0;
  for (const Lane& item : items) weights += item.weight / divisor;
  if (weights <= lanes_max) return dealt(items, rates, static_cast<int>(weights));
  LinkCount links(network);
  return best_number(
             links, lanes_max, [&](int count) { return dealt(items, rates, count); }, add)
      .first;
}

}  // namespace

std::vector<const topology::PairLane*> share_out(const topology::Network& network,
                                                 const std::vector<topology::PairLane>& pairs, int lanes_max) {
  return share_out_weighted(network, pairs, lanes_max, [](const topology::PairLane* pair, LinkCount& counted) {
    for (const auto& edges : {pair->up, pair->down}) {
      for (const topology::TreeEdge& edge : edges) counted.add(edge.path);
    }
  });
}

std::vector<const topology::BundleLane*> share_out(const topology::Network& network,
                                                   const std::vector<topology::BundleLane>& bundles, int lanes_max) {
  return share_out_weighted(network, bundles, lanes_max, [](const topology::BundleLane* bundle, LinkCount& counted) {
    for (const TreeLane& tree : bundle->trees) add_down(tree, counted);
  });
}

std::vector<const Ring*> share_out(const topology::Network& network, const std::vector<Ring>& rings, int lanes_max) {
  if (rings.empty()) return {};
  std::vector<double> rates;
  for (const Ring& ring : rings) rates.push_back(ring.rate);
  const auto lanes_of = [&](int count) { return dealt(rings, rates, count); };
  LinkCount links(network);
  return best_number(links, lanes_max, lanes_of,
                     [](const Ring* ring, LinkCount& counted) {
                       for (const std::vector<int>& path : ring->paths) counted.add(path);
                     })
      .first;
}

}  // namespace tutti::planner
