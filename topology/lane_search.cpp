#include "topology/lane_search.h"

#include "topology/packing_programme.h"
#include "topology/shortest_routes.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <utility>

namespace tutti::topology {

namespace {

Rational sum_of(const std::vector<TreeLane>& lanes) {
  Rational sum(0);
  for (const TreeLane& lane : lanes) sum = sum + lane.rate;
  return sum;
}

class LaneSearch {
 public:
  explicit LaneSearch(const Network& network) : network_(network), routes_(network) {
    for (const Arc& arc : network.arcs) {
      const auto [place, is_new] =
          rows_.try_emplace(std::minmax(arc.from, arc.to), static_cast<int>(capacities_.size()));
      if (is_new) capacities_.push_back(static_cast<double>(arc.capacity));
      row_of_arc_.push_back(place->second);
    }
  }

  struct Solution {
    double value = 0;
    std::vector<double> amounts;
    std::vector<double> prices;
  };

  Solution solve(const std::vector<TreeLane>& lanes) const;
  std::optional<TreeLane> cheapest_tree(const std::vector<double>& prices, const TreeLane& like);
  std::vector<double> crowding(const std::vector<TreeLane>& lanes, const Solution& solution, double steepness) const;
  std::vector<TreeLane> weighted(std::vector<TreeLane> lanes, const std::vector<double>& amounts) const;

 private:
  const Network& network_;
  ShortestRoutes routes_;
  std::map<std::pair<int, int>, int> rows_;
  std::vector<int> row_of_arc_;
  std::vector<double> capacities_;
};

LaneSearch::Solution LaneSearch::solve(const std::vector<TreeLane>& lanes) const {
  PackingProgramme programme(capacities_);
  for (const TreeLane& lane : lanes) {
    std::map<int, double> entries;
    for (const TreeEdge& edge : lane.edges) {
      for (std::size_t i = 0; i + 1 < edge.path.size(); ++i)
        entries[rows_.at(std::minmax(edge.path[i], edge.path[i + 1]))] += 1;
    }
    programme.add_column({entries.begin(), entries.end()});
  }
  programme.solve();
  return {programme.value(), programme.amounts(), programme.prices()};
}

/// Prices that rise with the load. The programme's own are 0 on every link that is not quite full, which sends all new trees
/// over the same few.
std::vector<double> LaneSearch::crowding(const std::vector<TreeLane>& lanes, const Solution& solution,
                                         double steepness) const {
  std::vector<double> loads(capacities_.size(), 0);
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    for (const TreeEdge& edge : lanes[i].edges) {
      for (std::size_t hop = 0; hop + 1 < edge.path.size(); ++hop)
        loads[rows_.at(std::minmax(edge.path[hop], edge.path[hop + 1]))] += solution.amounts[i];
    }
  }
  std::vector<double> prices;
  for (std::size_t row = 0; row < loads.size(); ++row)
    prices.push_back(std::exp(steepness * (loads[row] / capacities_[row] - 1)) / capacities_[row]);
  return prices;
}

/// Prim's algorithm over the cheapest ways between compute nodes. The edges of `like` count half: the tree resembles it.
std::optional<TreeLane> LaneSearch::cheapest_tree(const std::vector<double>& prices, const TreeLane& like) {
  std::vector<double> by_arc;
  for (const int row : row_of_arc_) by_arc.push_back(std::max(prices[row], 0.0));
  routes_.update(by_arc);
  std::map<std::pair<int, int>, const TreeEdge*> liked;
  for (const TreeEdge& edge : like.edges) liked[std::minmax(edge.parent, edge.child)] = &edge;
  const std::size_t count = network_.compute.size();
  const auto edge_between = [&](std::size_t i, std::size_t j) {
    const int parent = network_.compute[i];
    const int child = network_.compute[j];
    double price = routes_.price(i, j);
    const auto found = liked.find(std::minmax(parent, child));
    if (found == liked.end()) return std::pair(price, static_cast<const TreeEdge*>(nullptr));
    double own = 0;
    const std::vector<int>& path = found->second->path;
    for (std::size_t hop = 0; hop + 1 < path.size(); ++hop)
      own += prices[rows_.at(std::minmax(path[hop], path[hop + 1]))];
    return own / 2 < price ? std::pair(own / 2, found->second)
                           : std::pair(price, static_cast<const TreeEdge*>(nullptr));
  };
  struct Offer {
    double price = std::numeric_limits<double>::infinity();
    std::size_t parent = 0;
    const TreeEdge* liked = nullptr;
  };
  std::vector<Offer> offers(count);
  std::vector<char> reached(count, 0);
  TreeLane lane;
  lane.root = network_.compute.front();
  std::size_t newest = 0;
  reached[0] = 1;
  while (lane.edges.size() + 1 < count) {
    std::size_t next = count;
    for (std::size_t i = 0; i < count; ++i) {
      if (reached[i] != 0) continue;
      const auto [price, edge] = edge_between(newest, i);
      if (price < offers[i].price) offers[i] = {price, newest, edge};
      if (next == count || offers[i].price < offers[next].price) next = i;
    }
    const Offer& offer = offers[next];
    if (!std::isfinite(offer.price)) return std::nullopt;
    reached[next] = 1;
    std::vector<int> path = offer.liked == nullptr ? routes_.path(offer.parent, next) : offer.liked->path;
    if (path.front() != network_.compute[offer.parent]) std::ranges::reverse(path);
    lane.edges.push_back({path.front(), path.back(), std::move(path)});
    newest = next;
  }
  root_in_the_middle(lane);
  return lane;
}

/// Rounds the amounts to whole weights, as small as they can be without much loss, and makes the rates exact.
std::vector<TreeLane> LaneSearch::weighted(std::vector<TreeLane> lanes, const std::vector<double>& amounts) const {
  const double most = *std::ranges::max_element(amounts);
  const double value = [&] {
    double sum = 0;
    for (const double amount : amounts) sum += amount;
    return sum;
  }();
  std::vector<TreeLane> best;
  Rational best_sum(0);
  constexpr int kWeightMax = 4096;
  constexpr double kGoodEnough = 0.998;
  for (int weight_max = 1; weight_max <= kWeightMax; weight_max *= 2) {
    std::vector<TreeLane> rounded;
    for (std::size_t i = 0; i < lanes.size(); ++i) {
      TreeLane lane = lanes[i];
      lane.weight = static_cast<int>(std::lround(amounts[i] / most * weight_max));
      if (lane.weight == 0) continue;
      lane.rate = Rational(lane.weight);
      rounded.push_back(std::move(lane));
    }
    const Rational factor = headroom(network_, loads(network_, rounded, TreeUse::kUpAndDown));
    for (TreeLane& lane : rounded) lane.rate = lane.rate * factor;
    const Rational sum = sum_of(rounded);
    if (sum <= best_sum) continue;
    best_sum = sum;
    best = std::move(rounded);
    if (best_sum.to_double() >= kGoodEnough * value) break;
  }
  return best;
}

}  // namespace

std::vector<TreeLane> improved(const Network& network, std::vector<TreeLane> lanes, int lanes_max,
                               const Rational& enough) {
  constexpr int kRoundsMax = 400;
  constexpr int kFailuresMax = 1600;  // over the lanes: a round costs as many pivots
  if (lanes.empty()) return lanes;
  LaneSearch search(network);
  const double goal = enough.to_double() * 0.998;
  const Rational given = sum_of(lanes);
  std::vector<TreeLane> current = lanes;
  LaneSearch::Solution solution = search.solve(current);
  std::mt19937_64 random(1);
  int failures = 0;
  for (int round = 0; round < kRoundsMax && failures < kFailuresMax / lanes_max && solution.value < goal; ++round) {
    std::vector<double> prices = search.crowding(current, solution, 4 + static_cast<double>(random() % 32));
    // A new tree for the lane of the lowest rate, or one like some lane in its place.
    const bool grow = current.size() < static_cast<std::size_t>(lanes_max);
    const bool fresh = grow || failures == 0;
    const std::size_t place =
        fresh ? static_cast<std::size_t>(std::ranges::min_element(solution.amounts) - solution.amounts.begin())
              : random() % current.size();
    std::optional<TreeLane> tree = search.cheapest_tree(prices, fresh ? TreeLane() : current[place]);
    if (!tree) break;
    std::vector<TreeLane> changed = current;
    if (grow) {
      changed.push_back(std::move(*tree));
    } else {
      changed[place] = std::move(*tree);
    }
    LaneSearch::Solution next = search.solve(changed);
    failures = next.value > solution.value * (1 + 1e-6) ? 0 : failures + 1;
    if (next.value < solution.value * (1 - 1e-9)) continue;
    current = std::move(changed);
    solution = std::move(next);
  }
  std::vector<TreeLane> better = search.weighted(current, solution.amounts);
  return sum_of(better) > given ? better : lanes;
}

}  // namespace tutti::topology
