#include "topology/tree_pairs.h"

#include "topology/arborescence.h"
#include "topology/bounds.h"
#include "topology/packing_programme.h"
#include "topology/shortest_routes.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

namespace tutti::topology {

namespace {

/// A pair with the arcs that it leads over.
struct Candidate {
  PairLane lane;
  PackingProgramme::Column column;
  double price = std::numeric_limits<double>::infinity();
};

class PairSearch {
 public:
  explicit PairSearch(const Network& network) : network_(network), routes_(network) {}

  /// The cheapest pair of each root.
  std::vector<Candidate> cheapest(const std::vector<double>& prices);

 private:
  std::optional<Candidate> from(std::size_t root, const PriceTable& there, const PriceTable& back);

  const Network& network_;
  ShortestRoutes routes_;
};

std::vector<TreeEdge> parents_first(std::vector<TreeEdge> edges, int root) {
  std::vector<TreeEdge> ordered;
  std::vector<int> queue{root};
  for (std::size_t i = 0; i < queue.size(); ++i) {
    for (TreeEdge& edge : edges) {
      if (edge.parent != queue[i] || edge.path.empty()) continue;
      queue.push_back(edge.child);
      ordered.push_back(std::exchange(edge, {}));
    }
  }
  return ordered;
}

std::optional<Candidate> PairSearch::from(std::size_t root, const PriceTable& there, const PriceTable& back) {
  const std::vector<std::size_t> down = cheapest_arborescence(there, root);
  const std::vector<std::size_t> up = cheapest_arborescence(back, root);
  if (down.empty() || up.empty()) return std::nullopt;
  Candidate candidate;
  candidate.price = 0;
  candidate.lane.root = network_.compute[root];
  std::map<int, double> entries;
  const auto use = [&](std::size_t from, std::size_t to) {
    for (const int arc : routes_.arcs(from, to)) entries[arc] += 1;
    candidate.price += routes_.price(from, to);
    return routes_.path(from, to);
  };
  for (std::size_t node = 0; node < there.count; ++node) {
    if (node == root) continue;
    candidate.lane.down.push_back({network_.compute[down[node]], network_.compute[node], use(down[node], node)});
    candidate.lane.up.push_back({network_.compute[up[node]], network_.compute[node], use(node, up[node])});
  }
  candidate.lane.down = parents_first(std::move(candidate.lane.down), candidate.lane.root);
  candidate.lane.up = parents_first(std::move(candidate.lane.up), candidate.lane.root);
  candidate.column.assign(entries.begin(), entries.end());
  return candidate;
}

std::vector<Candidate> PairSearch::cheapest(const std::vector<double>& prices) {
  std::vector<double> by_arc = prices;
  for (double& price : by_arc) price = std::max(price, 0.0);
  routes_.update(by_arc);
  const std::size_t count = network_.compute.size();
  PriceTable there{count, std::vector<double>(count * count)};
  PriceTable back = there;
  for (std::size_t from = 0; from < count; ++from) {
    for (std::size_t to = 0; to < count; ++to) {
      there.prices[from * count + to] = routes_.price(from, to);
      back.prices[to * count + from] = routes_.price(from, to);
    }
  }
  std::vector<Candidate> candidates;
  for (std::size_t root = 0; root < count; ++root) {
    std::optional<Candidate> candidate = this->from(root, there, back);
    if (!candidate) return {};  // one root for all: everybody reaches everybody, or not
    candidates.push_back(std::move(*candidate));
  }
  std::ranges::stable_sort(candidates, {}, &Candidate::price);
  return candidates;
}

/// The most used candidates, at most `lanes_max`, with amounts of their own.
std::vector<double> keep_best(const std::vector<double>& capacities, std::vector<Candidate>& candidates,
                              std::vector<double> amounts, int lanes_max) {
  std::vector<std::size_t> order(candidates.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return amounts[a] > amounts[b]; });
  order.resize(std::min(order.size(), static_cast<std::size_t>(lanes_max)));
  PackingProgramme programme(capacities);
  std::vector<Candidate> kept;
  for (const std::size_t i : order) {
    programme.add_column(candidates[i].column);
    kept.push_back(std::move(candidates[i]));
  }
  programme.solve();
  candidates = std::move(kept);
  return programme.amounts();
}

/// Whole weights, as small as they can be without much loss, and exact rates.
std::vector<PairLane> weighted(const Network& network, const std::vector<Candidate>& candidates,
                               const std::vector<double>& amounts) {
  const double most = *std::ranges::max_element(amounts);
  const double value = std::accumulate(amounts.begin(), amounts.end(), 0.0);
  constexpr int kWeightMax = 4096;
  constexpr double kGoodEnough = 0.9999;
  std::vector<PairLane> best;
  Rational best_sum(0);
  for (int weight_max = 1; weight_max <= kWeightMax; ++weight_max) {
    if (weight_max > 16) weight_max += weight_max / 16;
    std::vector<PairLane> lanes;
    std::int64_t weights = 0;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      PairLane lane = candidates[i].lane;
      lane.weight = static_cast<int>(std::lround(amounts[i] / most * weight_max));
      if (lane.weight == 0) continue;
      lane.rate = Rational(lane.weight);
      weights += lane.weight;
      lanes.push_back(std::move(lane));
    }
    const Rational factor = headroom(network, loads(network, lanes));
    if (factor * Rational(weights) <= best_sum) continue;
    for (PairLane& lane : lanes) lane.rate = lane.rate * factor;
    best_sum = factor * Rational(weights);
    best = std::move(lanes);
    if (best_sum.to_double() >= kGoodEnough * value) break;
  }
  return best;
}

}  // namespace

PairPacking pack_pairs(const Network& network, int lanes_max) {
  PairPacking packing;
  const PartitionBound bound = all_reduce_bound(network);
  if (bound.unlimited || bound.rate == Rational(0) || lanes_max < 1) {
    packing.exact = true;
    return packing;
  }
  constexpr std::size_t kSmall = 16;
  const int rounds_max = network.compute.size() <= kSmall ? 1000 : 100;
  const std::vector<double> capacities = usable_capacities(network, bound.rate.to_double());
  PackingProgramme programme(capacities);
  PairSearch search(network);
  std::vector<Candidate> candidates;
  std::vector<double> prices;
  for (const double capacity : capacities) prices.push_back(1 / capacity);
  for (int round = 0; round < rounds_max && !packing.exact; ++round) {
    std::vector<Candidate> found = search.cheapest(prices);
    if (found.empty()) return packing;  // the bound would be 0
    if (round > 0 && found.front().price >= 1 - 1e-7) packing.exact = true;
    for (Candidate& candidate : found) {
      if (packing.exact || (round > 0 && candidate.price >= 1 - 1e-7)) break;
      programme.add_column(candidate.column);
      candidates.push_back(std::move(candidate));
    }
    if (!packing.exact && !programme.solve()) break;
    prices = programme.prices();
  }
  packing.best = programme.value();
  const std::vector<double> amounts = keep_best(capacities, candidates, programme.amounts(), lanes_max);
  packing.lanes = weighted(network, candidates, amounts);
  for (const PairLane& lane : packing.lanes) packing.rate = packing.rate + lane.rate;
  return packing;
}

Loads loads(const Network& network, const std::vector<PairLane>& lanes) {
  std::vector<TreeLane> down;
  std::vector<TreeLane> up;
  for (const PairLane& lane : lanes) {
    down.push_back({lane.rate, lane.weight, lane.root, lane.down});
    up.push_back({lane.rate, lane.weight, lane.root, lane.up});
    for (TreeEdge& edge : up.back().edges) std::ranges::reverse(edge.path);
  }
  Loads sums = loads(network, down, TreeUse::kDown);
  const Loads more = loads(network, up, TreeUse::kUp);
  sums.connected = sums.connected && more.connected;
  sums.hold = sums.connected;
  for (std::size_t i = 0; i < sums.arcs.size(); ++i) {
    sums.arcs[i] = sums.arcs[i] + more.arcs[i];
    sums.hold = sums.hold && sums.arcs[i] <= Rational(network.arcs[i].capacity);
  }
  return sums;
}

}  // namespace tutti::topology
