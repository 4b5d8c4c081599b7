#include "planner/lane_shares.h"

#include "base/assert.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

namespace tutti::planner {

namespace {

using topology::BundleLane;
using topology::PairLane;
using topology::Ring;
using topology::TreeLane;

constexpr double kWorthALane = 0.999;

/// What a byte through one of the trees (or pairs, bundles, rings) costs each arc that it crosses, in units of time.
using Column = std::vector<std::pair<std::size_t, double>>;

/// Makes columns of paths.
class Columns {
 public:
  explicit Columns(const topology::Network& network) : network_(network), loads_(network.arcs.size(), 0) {
    for (std::size_t arc = 0; arc < network.arcs.size(); ++arc)
      arcs_[{network.arcs[arc].from, network.arcs[arc].to}] = arc;
  }
  void add(const std::vector<int>& path) {
    for (std::size_t i = 0; i + 1 < path.size(); ++i) {
      const std::size_t arc = arcs_.at({path[i], path[i + 1]});
      if (loads_[arc]++ == 0) touched_.push_back(arc);
    }
  }
  void add_down(const std::vector<topology::TreeEdge>& edges) {
    for (const topology::TreeEdge& edge : edges) add(edge.path);
  }
  void add_up(const std::vector<topology::TreeEdge>& edges) {
    for (const topology::TreeEdge& edge : edges) add({edge.path.rbegin(), edge.path.rend()});
  }
  /// Of what was added since the last one.
  Column take() {
    Column column;
    for (const std::size_t arc : touched_)
      column.emplace_back(arc, std::exchange(loads_[arc], 0) / static_cast<double>(network_.arcs[arc].capacity));
    touched_.clear();
    return column;
  }
  std::size_t arcs() const { return loads_.size(); }

 private:
  const topology::Network& network_;
  std::map<std::pair<int, int>, std::size_t> arcs_;
  std::vector<int> loads_;
  std::vector<std::size_t> touched_;
};

/// How often each of the items is dealt, and what the links then allow: lanes per unit of time.
struct Deal {
  std::vector<int> parts;
  double rate = 0;
};

/// Items that lanes are dealt among.
class Dealer {
 public:
  Dealer(std::size_t arcs, std::vector<Column> columns, std::vector<double> rates)
      : columns_(std::move(columns)), rates_(std::move(rates)), times_(arcs, 0) {}

  Deal of(std::vector<int> parts);
  /// The best of 1 to lanes_max lanes: as the rates say to the nearest lane, or one after another where it costs the fullest link
  /// least.
  Deal best(int lanes_max);

 private:
  Deal by_rates(int lanes_max);
  Deal one_by_one(int lanes_max);

  const std::vector<Column> columns_;
  const std::vector<double> rates_;
  std::vector<double> times_;  ///< by arc
};

Deal Dealer::of(std::vector<int> parts) {
  std::ranges::fill(times_, 0);
  int lanes = 0;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    if (parts[i] == 0) continue;
    lanes += parts[i];
    for (const auto& [arc, time] : columns_[i]) times_[arc] += parts[i] * time;
  }
  return {std::move(parts), lanes / *std::ranges::max_element(times_)};
}

/// Of more lanes only what brings more than next to nothing.
void keep_better(Deal& best, Deal more) {
  if (more.rate * kWorthALane >= best.rate) best = std::move(more);
}

Deal Dealer::by_rates(int lanes_max) {
  Deal best;
  for (int count = 1; count <= lanes_max; ++count) keep_better(best, of(parts_of(rates_, count)));
  return best;
}

Deal Dealer::one_by_one(int lanes_max) {
  const double sum = std::accumulate(rates_.begin(), rates_.end(), 0.0);
  Deal best;
  std::vector<int> parts(columns_.size(), 0);
  std::ranges::fill(times_, 0);
  double longest = 0;
  for (int count = 1; count <= lanes_max; ++count) {
    std::size_t chosen = 0;
    double least = std::numeric_limits<double>::infinity();
    double most_due = 0;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      double with = longest;
      for (const auto& [arc, time] : columns_[i]) with = std::max(with, times_[arc] + time);
      const double due = rates_[i] / sum * count - parts[i];
      constexpr double kEqual = 1e-9;
      if (with > least * (1 + kEqual) || (with > least * (1 - kEqual) && due <= most_due)) continue;
      chosen = i;
      least = with;
      most_due = due;
    }
    ++parts[chosen];
    for (const auto& [arc, time] : columns_[chosen]) times_[arc] += time;
    longest = least;
    if (count / longest * kWorthALane >= best.rate) best = {parts, count / longest};
  }
  return best;
}

Deal Dealer::best(int lanes_max) {
  Deal best = by_rates(lanes_max);
  Deal other = one_by_one(lanes_max);
  if (other.rate * kWorthALane > best.rate) best = std::move(other);
  return best;
}

/// By lane one of the items.
template <class Item>
std::vector<const Item*> dealt(const std::vector<Item>& items, const std::vector<int>& parts) {
  std::vector<const Item*> lanes;
  for (std::size_t i = 0; i < items.size(); ++i)
    lanes.insert(lanes.end(), static_cast<std::size_t>(parts[i]), &items[i]);
  return lanes;
}

double to_double(double rate) { return rate; }
double to_double(const topology::Rational& rate) { return rate.to_double(); }

/// Lanes that weights, if there are any, ask for; 0: more than can be.
template <class Item>
int lanes_by_weight(const std::vector<Item>& items, int lanes_max) {
  if constexpr (requires(const Item& item) { item.weight; }) {
    int divisor = 0;
    for (const Item& item : items) divisor = std::gcd(divisor, item.weight);
    if (divisor == 0) return 0;
    std::int64_t weights = 0;
    for (const Item& item : items) weights += item.weight / divisor;
    return weights <= lanes_max ? static_cast<int>(weights) : 0;
  }
  return 0;
}

/// add(item, columns) adds its paths. As many lanes as the weights say, if they are not too many, or the best number.
template <class Item, class Add>
SharedLanes<Item> share_out_each(const topology::Network& network, const std::vector<Item>& items, int lanes_max,
                                 const Add& add) {
  if (items.empty()) return {};
  Columns links(network);
  std::vector<Column> columns;
  std::vector<double> rates;
  for (const Item& item : items) {
    add(item, links);
    columns.push_back(links.take());
    rates.push_back(to_double(item.rate));
  }
  const int by_weight = lanes_by_weight(items, lanes_max);
  Dealer dealer(links.arcs(), std::move(columns), rates);
  const Deal deal = by_weight > 0 ? dealer.of(parts_of(rates, by_weight)) : dealer.best(lanes_max);
  return {dealt(items, deal.parts), deal.rate};
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
  Columns links(network);
  std::vector<Column> columns;
  std::vector<std::vector<std::size_t>> by_root(network.compute.size());
  std::vector<std::vector<double>> rates(network.compute.size());
  for (const TreeLane& tree : trees) {
    links.add_down(tree.edges);
    by_root[static_cast<std::size_t>(tree.root)].push_back(columns.size());
    rates[static_cast<std::size_t>(tree.root)].push_back(tree.rate.to_double());
    columns.push_back(links.take());
  }
  Dealer dealer(links.arcs(), std::move(columns), {});
  Deal best;
  int best_count = 0;
  for (int count = 1; count <= lanes_max; ++count) {
    std::vector<int> parts(trees.size(), 0);
    for (std::size_t root = 0; root < by_root.size(); ++root) {
      const std::vector<int> of_root = parts_of(rates[root], count);
      for (std::size_t i = 0; i < of_root.size(); ++i) parts[by_root[root][i]] = of_root[i];
    }
    Deal deal = dealer.of(std::move(parts));
    if (deal.rate * kWorthALane < best.rate) continue;
    best = std::move(deal);
    best_count = count;
  }
  RootedLanes shared;
  shared.rate = best.rate;
  shared.lanes.resize(static_cast<std::size_t>(best_count));
  for (const std::vector<std::size_t>& of_root : by_root) {
    std::size_t lane = 0;
    for (const std::size_t i : of_root) {
      for (int copy = 0; copy < best.parts[i]; ++copy) shared.lanes[lane++].push_back(&trees[i]);
    }
  }
  return shared;
}

SpanningLanes share_out_spanning(const topology::Network& network, const std::vector<TreeLane>& trees, int lanes_max) {
  return share_out_each(network, trees, lanes_max, [](const TreeLane& tree, Columns& links) {
    links.add_down(tree.edges);
    links.add_up(tree.edges);
  });
}

SharedLanes<PairLane> share_out(const topology::Network& network, const std::vector<PairLane>& pairs, int lanes_max) {
  return share_out_each(network, pairs, lanes_max, [](const PairLane& pair, Columns& links) {
    links.add_down(pair.up);  // paths of both lead as messages go
    links.add_down(pair.down);
  });
}

SharedLanes<BundleLane> share_out(const topology::Network& network, const std::vector<BundleLane>& bundles,
                                  int lanes_max) {
  auto shared = share_out_each(network, bundles, lanes_max, [](const BundleLane& bundle, Columns& links) {
    for (const TreeLane& tree : bundle.trees) links.add_down(tree.edges);
  });
  shared.rate *= static_cast<double>(network.compute.size());  // a tree from each
  return shared;
}

SharedLanes<Ring> share_out(const topology::Network& network, const std::vector<Ring>& rings, int lanes_max) {
  return share_out_each(network, rings, lanes_max, [](const Ring& ring, Columns& links) {
    for (const std::vector<int>& path : ring.paths) links.add(path);
  });
}

}  // namespace tutti::planner
