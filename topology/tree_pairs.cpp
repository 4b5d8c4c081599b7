#include "topology/tree_pairs.h"

#include "topology/arborescence.h"
#include "topology/bounds.h"
#include "topology/shortest_routes.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <utility>

namespace tutti::topology {

namespace {

using Candidate = LaneColumn<PairLane>;

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

}  // namespace

PairPacking pack_pairs(const Network& network) {
  const PartitionBound bound = all_reduce_bound(network);
  if (bound.unlimited || bound.rate == Rational(0)) {
    PairPacking nothing;
    nothing.exact = true;
    return nothing;
  }
  constexpr std::size_t kSmall = 16;
  const int rounds_max = network.compute.size() <= kSmall ? 1000 : 100;
  PairSearch search(network);
  return pack_lanes<PairLane>(usable_capacities(network, bound.rate.to_double()), rounds_max, kProgrammeWorkMost,
                              [&](const std::vector<double>& prices) { return search.cheapest(prices); });
}

std::vector<PairLane> lanes_of(const Network& network, const PairPacking& packing, int lanes_max) {
  return few_lanes(network, packing, lanes_max);
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
