#include "topology/rings.h"

#include "topology/bounds.h"
#include "topology/packing_programme.h"
#include "topology/shortest_routes.h"
#include "topology/tours.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace tutti::topology {

namespace {

/// Rows of the programme: arcs, or where every link is full duplex the links, each ring then standing for itself and its
/// reverse.
struct Rows {
  std::vector<int> of_arc;
  std::vector<double> capacities;
  bool both_ways = false;
};

Rows rows_of(const Network& network, double rate) {
  Rows rows;
  rows.both_ways = network.full_duplex();
  const std::vector<double> capacities = usable_capacities(network, rate);
  std::map<std::pair<int, int>, int> places;
  for (std::size_t i = 0; i < network.arcs.size(); ++i) {
    const Arc& arc = network.arcs[i];
    const bool swap = rows.both_ways && arc.from > arc.to;
    const auto [place, is_new] = places.try_emplace(swap ? std::pair(arc.to, arc.from) : std::pair(arc.from, arc.to),
                                                    static_cast<int>(rows.capacities.size()));
    if (is_new) rows.capacities.push_back(capacities[i]);
    rows.of_arc.push_back(place->second);
  }
  return rows;
}

class RingSearch {
 public:
  /// `ceiling` is a bound for every schedule.
  RingSearch(const Network& network, double ceiling)
      : network_(network),
        ceiling_(ceiling),
        rows_(rows_of(network, ceiling)),
        programme_(rows_.capacities),
        routes_(network),
        stops_(network.compute.size()),
        used_(rows_.capacities.size(), 0) {}

  RingPacking run();

 private:
  bool add(const Tour& tour);
  void spread();
  void set_prices(const std::vector<double>& prices);
  Tour cheapest(std::uint64_t seed);
  RingPacking packing() const;

  const Network& network_;
  double ceiling_;
  Rows rows_;
  PackingProgramme programme_;
  ShortestRoutes routes_;
  TourPrices stops_;
  std::vector<Ring> rings_;
  std::vector<double> used_;  ///< by row: how often rings lead over it
  double relaxed_ = 0;        ///< no tour is cheaper
  bool proved_ = false;
};

void RingSearch::set_prices(const std::vector<double>& prices) {
  std::vector<double> by_arc;
  for (const int row : rows_.of_arc) by_arc.push_back(std::max(prices[row], 0.0));
  routes_.update(by_arc);
  relaxed_ = 0;
  for (std::size_t i = 0; i < stops_.count(); ++i) {
    double nearest = routes_.price(i, i == 0 ? 1 : 0);
    for (std::size_t j = 0; j < stops_.count(); ++j) {
      stops_.at(i, j) = routes_.price(i, j);
      if (i != j) nearest = std::min(nearest, stops_.at(i, j));
    }
    relaxed_ += nearest;
  }
}

/// The cheapest tour where that can be proved, else a cheap one. Seeking is much quicker than proving, and enough as long as
/// it finds a tour that is worth adding.
Tour RingSearch::cheapest(std::uint64_t seed) {
  constexpr std::size_t kProveAtOnce = 10;
  proved_ = false;
  if (stops_.count() > kProveAtOnce) {
    Tour tour = cheap_tour(stops_, seed);
    if (tour.price < 1 - 1e-6 || stops_.count() > kExactToursMax) return tour;
  }
  proved_ = true;
  Tour tour = cheapest_tour(stops_);
  relaxed_ = tour.price;
  return tour;
}

bool RingSearch::add(const Tour& tour) {
  if (!std::isfinite(tour.price)) return false;
  Ring ring;
  std::map<int, double> entries;
  for (std::size_t i = 0; i < tour.order.size(); ++i) {
    const std::size_t from = tour.order[i];
    const std::size_t to = tour.order[(i + 1) % tour.order.size()];
    ring.order.push_back(network_.compute[from]);
    ring.paths.push_back(routes_.path(from, to));
    for (const int arc : routes_.arcs(from, to)) entries[rows_.of_arc[arc]] += 1;
  }
  for (const auto& [row, entry] : entries) used_[row] += entry;
  rings_.push_back(std::move(ring));
  programme_.add_column({entries.begin(), entries.end()});
  return true;
}

/// Many stops, too many rounds: starts with tours that keep out of each other's way, by prices that rise with use.
void RingSearch::spread() {
  constexpr int kTours = 64;
  constexpr double kSteep = 8;
  std::vector<double> prices(rows_.capacities.size());
  for (int i = 1; i < kTours; ++i) {
    double most = 0;
    for (std::size_t row = 0; row < prices.size(); ++row) most = std::max(most, used_[row] / rows_.capacities[row]);
    for (std::size_t row = 0; row < prices.size(); ++row)
      prices[row] = std::exp(kSteep * used_[row] / rows_.capacities[row] / most) / rows_.capacities[row];
    set_prices(prices);
    if (!add(cheap_tour(stops_, static_cast<std::uint64_t>(i)))) return;
  }
}

RingPacking RingSearch::packing() const {
  RingPacking packing;
  const double count = static_cast<double>(network_.compute.size());
  const double of_amount = (rows_.both_ways ? 2 : 1) * count / (2 * (count - 1));
  packing.rate = programme_.value() * of_amount;
  const std::vector<double> amounts = programme_.amounts();
  for (std::size_t i = 0; i < rings_.size(); ++i) {
    if (amounts[i] < 1e-9 * programme_.value()) continue;
    Ring ring = rings_[i];
    ring.rate = amounts[i];
    packing.rings.push_back(ring);
    if (!rows_.both_ways) continue;
    std::ranges::reverse(ring.order);
    std::rotate(ring.order.begin(), ring.order.end() - 1, ring.order.end());  // starts where the other does
    std::ranges::reverse(ring.paths);
    for (auto& path : ring.paths) std::ranges::reverse(path);
    packing.rings.push_back(std::move(ring));
  }
  // Prices under which no tour is cheaper than 1 bound every packing by what all capacity is worth.
  packing.limit = relaxed_ > 0 ? std::min(ceiling_, packing.rate / std::min(relaxed_, 1.0)) : ceiling_;
  packing.exact = proved_ && packing.limit <= packing.rate * (1 + 1e-6);
  return packing;
}

RingPacking RingSearch::run() {
  std::vector<double> prices;
  for (const double capacity : rows_.capacities) prices.push_back(1 / capacity);
  set_prices(prices);
  const Tour first = stops_.count() > kExactToursMax ? cheap_tour(stops_, 1) : cheapest_tour(stops_);
  proved_ = stops_.count() <= kExactToursMax;
  if (!add(first)) {
    RingPacking none;
    none.exact = proved_;
    none.limit = proved_ ? 0 : ceiling_;
    return none;
  }
  if (stops_.count() > kExactToursMax) spread();
  const int rounds_max = stops_.count() > kExactToursMax ? 50 : 5000;
  for (int round = 1; round <= rounds_max; ++round) {
    proved_ = false;
    relaxed_ = 0;  // the prices of before prove nothing of what a solution that is given up comes to
    if (!programme_.solve()) break;
    set_prices(programme_.prices());
    const Tour tour = cheapest(static_cast<std::uint64_t>(round));
    if (tour.price > 1 - 1e-7 || !add(tour)) break;
  }
  return packing();
}

}  // namespace

RingPacking pack_rings(const Network& network) {
  RingPacking none;
  none.exact = true;
  const PartitionBound bound = all_reduce_bound(network);
  if (bound.unlimited || bound.rate == Rational(0)) return none;
  return RingSearch(network, bound.rate.to_double()).run();
}

}  // namespace tutti::topology
