#include "topology/tree_bundles.h"

#include "topology/arborescence.h"
#include "topology/bounds.h"
#include "topology/shortest_routes.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

namespace tutti::topology {

namespace {

using BundleColumn = LaneColumn<BundleLane>;

/// The cheapest bundle: the cheapest tree from each root.
class BundleSearch {
 public:
  explicit BundleSearch(const Network& network) : network_(network), routes_(network) {}

  std::vector<BundleColumn> cheapest(const std::vector<double>& prices) {
    std::vector<double> by_arc = prices;
    for (double& price : by_arc) price = std::max(price, 0.0);
    routes_.update(by_arc);
    const std::size_t count = network_.compute.size();
    PriceTable there{count, std::vector<double>(count * count)};
    for (std::size_t from = 0; from < count; ++from) {
      for (std::size_t to = 0; to < count; ++to) there.prices[from * count + to] = routes_.price(from, to);
    }
    BundleColumn bundle;
    bundle.price = 0;
    std::map<int, double> entries;
    for (std::size_t root = 0; root < count; ++root) {
      const std::vector<std::size_t> parents = cheapest_arborescence(there, root);
      if (parents.empty()) return {};
      bundle.lane.trees.push_back(tree(root, parents, entries, bundle.price));
    }
    bundle.column.assign(entries.begin(), entries.end());
    return {std::move(bundle)};
  }

 private:
  TreeLane tree(std::size_t root, const std::vector<std::size_t>& parents, std::map<int, double>& entries,
                double& price) {
    TreeLane lane;
    lane.rate = Rational(1);
    lane.root = network_.compute[root];
    for (std::size_t node = 0; node < parents.size(); ++node) {
      if (node == root) continue;
      lane.edges.push_back(
          {network_.compute[parents[node]], network_.compute[node], routes_.path(parents[node], node)});
      for (const int arc : routes_.arcs(parents[node], node)) entries[arc] += 1;
      price += routes_.price(parents[node], node);
    }
    lane.edges = parents_first(std::move(lane.edges), lane.root);
    return lane;
  }

  const Network& network_;
  ShortestRoutes routes_;
};

}  // namespace

BundlePacking pack_bundles(const Network& network) {
  const CutBound bound = all_gather_bound(network);
  if (bound.unlimited || bound.rate == Rational(0)) {
    BundlePacking nothing;
    nothing.exact = true;
    return nothing;
  }
  constexpr std::size_t kSmall = 16;
  const int rounds_max = network.compute.size() <= kSmall ? 1000 : 100;
  BundleSearch search(network);
  return pack_lanes<BundleLane>(usable_capacities(network, bound.rate.to_double()), rounds_max, kProgrammeWorkMost,
                                [&](const std::vector<double>& prices) { return search.cheapest(prices); });
}

std::vector<BundleLane> lanes_of(const Network& network, const BundlePacking& packing, int lanes_max) {
  std::vector<BundleLane> lanes = few_lanes(network, packing, lanes_max);
  for (BundleLane& lane : lanes) {
    for (TreeLane& tree : lane.trees) {
      tree.rate = lane.rate;
      tree.weight = lane.weight;
    }
  }
  return lanes;
}

Loads loads(const Network& network, const std::vector<BundleLane>& lanes) {
  std::vector<TreeLane> all;
  for (const BundleLane& lane : lanes) {
    for (const TreeLane& tree : lane.trees) {
      all.push_back(tree);
      all.back().rate = lane.rate;
    }
  }
  return loads(network, all, TreeUse::kDown);
}

}  // namespace tutti::topology
