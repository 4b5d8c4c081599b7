// Lanes of any kind (pairs of trees, bundles of trees) that together use all that links have: the linear programme by column
// generation, then as many lanes as asked for, with whole weights and exact rates.
#pragma once

#include "topology/bounds.h"
#include "topology/network.h"
#include "topology/packing_programme.h"
#include "topology/rational.h"
#include "topology/trees.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

namespace tutti::topology {

/// A lane with what a unit of its rate puts on the arcs.
template <class Lane>
struct LaneColumn {
  Lane lane;  ///< has rate and weight
  PackingProgramme::Column column;
  double price = std::numeric_limits<double>::infinity();
};

/// The programme's answer: as many lanes as it likes.
template <class Lane>
struct LanePacking {
  double best = 0;                        ///< their rates together, kB/s
  bool exact = false;                     ///< proved by prices, to a millionth
  std::vector<LaneColumn<Lane>> columns;  ///< all that were made
  std::vector<double> amounts;            ///< of each column
  std::vector<double> capacities;         ///< of the arcs
};

/// The most used columns, at most `lanes_max`, with amounts of their own.
template <class Lane>
std::pair<std::vector<const LaneColumn<Lane>*>, std::vector<double>> most_used(const LanePacking<Lane>& packing,
                                                                               int lanes_max) {
  std::vector<std::size_t> order(packing.amounts.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order,
                           [&](std::size_t a, std::size_t b) { return packing.amounts[a] > packing.amounts[b]; });
  order.resize(std::min(order.size(), static_cast<std::size_t>(lanes_max)));
  PackingProgramme programme(packing.capacities);
  std::vector<const LaneColumn<Lane>*> kept;
  for (const std::size_t i : order) {
    programme.add_column(packing.columns[i].column);
    kept.push_back(&packing.columns[i]);
  }
  programme.solve();
  return {std::move(kept), programme.amounts()};
}

/// The largest factor by which the weights' loads on arcs can grow.
template <class Lane>
Rational headroom(const Network& network, const std::vector<const LaneColumn<Lane>*>& columns,
                  const std::vector<std::int64_t>& weights) {
  std::vector<std::int64_t> loads(network.arcs.size(), 0);
  for (std::size_t i = 0; i < columns.size(); ++i) {
    for (const auto& [arc, entry] : columns[i]->column)
      loads[static_cast<std::size_t>(arc)] += weights[i] * std::llround(entry);  // a count of messages
  }
  std::size_t fullest = 0;
  for (std::size_t arc = 1; arc < loads.size(); ++arc) {
    if (Wide{loads[arc]} * network.arcs[fullest].capacity > Wide{loads[fullest]} * network.arcs[arc].capacity)
      fullest = arc;
  }
  return {network.arcs[fullest].capacity, loads[fullest]};
}

/// At most so many lanes: whole weights, as small as they can be without much loss, and exact rates.
template <class Lane>
std::vector<Lane> few_lanes(const Network& network, const LanePacking<Lane>& packing, int lanes_max) {
  const auto [columns, amounts] = most_used(packing, lanes_max);
  const double most = amounts.empty() ? 0 : *std::ranges::max_element(amounts);
  if (most <= 0) return {};
  const double value = std::accumulate(amounts.begin(), amounts.end(), 0.0);
  constexpr int kWeightMax = 4096;
  constexpr double kGoodEnough = 0.9999;
  std::vector<std::int64_t> best;
  Rational best_factor(0);
  Rational best_sum(0);
  for (int weight_max = 1; weight_max <= kWeightMax; ++weight_max) {
    if (weight_max > 16) weight_max += weight_max / 16;
    std::vector<std::int64_t> weights;
    for (const double amount : amounts) weights.push_back(std::llround(amount / most * weight_max));
    const Rational factor = headroom(network, columns, weights);
    const Rational sum = factor * Rational(std::accumulate(weights.begin(), weights.end(), std::int64_t{0}));
    if (sum <= best_sum) continue;
    best = std::move(weights);
    best_factor = factor;
    best_sum = sum;
    if (best_sum.to_double() >= kGoodEnough * value) break;
  }
  std::vector<Lane> lanes;
  for (std::size_t i = 0; i < best.size(); ++i) {
    if (best[i] == 0) continue;
    lanes.push_back(columns[i]->lane);
    lanes.back().weight = static_cast<int>(best[i]);
    lanes.back().rate = Rational(best[i]) * best_factor;
  }
  return lanes;
}

/// Some tenths of a second. By count and not by time, so that all who plan for a machine plan alike.
inline constexpr std::uint64_t kProgrammeWorkMost = 200'000'000;

/// `cheapest(prices)` finds lanes for prices by arc, the cheapest first; none if there is none at all. `capacities` of arcs,
/// above 0. `work_most`: of the programme; then what there is by then is what few_lanes() has.
template <class Lane, class Cheapest>
LanePacking<Lane> pack_lanes(std::vector<double> capacities, int rounds_max, std::uint64_t work_most,
                             const Cheapest& cheapest) {
  constexpr double kNoGain = 1 - 1e-7;
  LanePacking<Lane> packing;
  PackingProgramme programme(capacities, work_most);
  std::vector<double> prices;
  for (const double capacity : capacities) prices.push_back(1 / capacity);
  packing.capacities = std::move(capacities);
  for (int round = 0; round < rounds_max && !packing.exact; ++round) {
    std::vector<LaneColumn<Lane>> found = cheapest(prices);
    if (found.empty()) return packing;
    if (round > 0 && found.front().price >= kNoGain) packing.exact = true;
    for (LaneColumn<Lane>& column : found) {
      if (packing.exact || (round > 0 && column.price >= kNoGain)) break;
      programme.add_column(column.column);
      packing.columns.push_back(std::move(column));
    }
    if (!packing.exact && !programme.solve()) break;
    prices = programme.prices();
  }
  packing.best = programme.value();
  packing.amounts = programme.amounts();
  return packing;
}

}  // namespace tutti::topology
