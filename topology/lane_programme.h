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
  Lane lane;  ///< has rate and weight; loads(network, lanes) says what they put on arcs
  PackingProgramme::Column column;
  double price = std::numeric_limits<double>::infinity();
};

template <class Lane>
struct LanePacking {
  double best = 0;     ///< of any number of lanes
  bool exact = false;  ///< proved by prices
  std::vector<Lane> lanes;
};

/// The most used columns, at most `lanes_max`, with amounts of their own.
template <class Lane>
std::vector<double> keep_best(const std::vector<double>& capacities, std::vector<LaneColumn<Lane>>& columns,
                              const std::vector<double>& amounts, int lanes_max) {
  std::vector<std::size_t> order(columns.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return amounts[a] > amounts[b]; });
  order.resize(std::min(order.size(), static_cast<std::size_t>(lanes_max)));
  PackingProgramme programme(capacities);
  std::vector<LaneColumn<Lane>> kept;
  for (const std::size_t i : order) {
    programme.add_column(columns[i].column);
    kept.push_back(std::move(columns[i]));
  }
  programme.solve();
  columns = std::move(kept);
  return programme.amounts();
}

/// Whole weights, as small as they can be without much loss, and exact rates.
template <class Lane>
std::vector<Lane> weighted(const Network& network, const std::vector<LaneColumn<Lane>>& columns,
                           const std::vector<double>& amounts) {
  const double most = amounts.empty() ? 0 : *std::ranges::max_element(amounts);
  if (most <= 0) return {};
  const double value = std::accumulate(amounts.begin(), amounts.end(), 0.0);
  constexpr int kWeightMax = 4096;
  constexpr double kGoodEnough = 0.9999;
  std::vector<Lane> best;
  Rational best_sum(0);
  for (int weight_max = 1; weight_max <= kWeightMax; ++weight_max) {
    if (weight_max > 16) weight_max += weight_max / 16;
    std::vector<Lane> lanes;
    std::int64_t weights = 0;
    for (std::size_t i = 0; i < columns.size(); ++i) {
      Lane lane = columns[i].lane;
      lane.weight = static_cast<int>(std::lround(amounts[i] / most * weight_max));
      if (lane.weight == 0) continue;
      lane.rate = Rational(lane.weight);
      weights += lane.weight;
      lanes.push_back(std::move(lane));
    }
    const Rational factor = headroom(network, loads(network, lanes));
    if (factor * Rational(weights) <= best_sum) continue;
    for (Lane& lane : lanes) lane.rate = lane.rate * factor;
    best_sum = factor * Rational(weights);
    best = std::move(lanes);
    if (best_sum.to_double() >= kGoodEnough * value) break;
  }
  return best;
}

/// Some tenths of a second. By count and not by time, so that all who plan for a machine plan alike.
inline constexpr std::uint64_t kProgrammeWorkMost = 200'000'000;

/// `cheapest(prices)` finds lanes for prices by arc, the cheapest first; none if there is none at all. `capacities` of arcs,
/// above 0. `work_most`: of the programme; then what there is by then is shared out.
template <class Lane, class Cheapest>
LanePacking<Lane> pack_lanes(const Network& network, const std::vector<double>& capacities, int rounds_max,
                             int lanes_max, std::uint64_t work_most, const Cheapest& cheapest) {
  constexpr double kNoGain = 1 - 1e-7;
  LanePacking<Lane> packing;
  PackingProgramme programme(capacities, work_most);
  std::vector<LaneColumn<Lane>> columns;
  std::vector<double> prices;
  for (const double capacity : capacities) prices.push_back(1 / capacity);
  for (int round = 0; round < rounds_max && !packing.exact; ++round) {
    std::vector<LaneColumn<Lane>> found = cheapest(prices);
    if (found.empty()) return packing;
    if (round > 0 && found.front().price >= kNoGain) packing.exact = true;
    for (LaneColumn<Lane>& column : found) {
      if (packing.exact || (round > 0 && column.price >= kNoGain)) break;
      programme.add_column(column.column);
      columns.push_back(std::move(column));
    }
    if (!packing.exact && !programme.solve()) break;
    prices = programme.prices();
  }
  packing.best = programme.value();
  const std::vector<double> amounts = keep_best(capacities, columns, programme.amounts(), lanes_max);
  packing.lanes = weighted(network, columns, amounts);
  return packing;
}

}  // namespace tutti::topology
