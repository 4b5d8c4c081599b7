#include "topology/units.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace tutti::topology {

namespace {

/// Takes a unit from each link on the shortest way from an odd switch to another one, or where there is none to a compute
/// node: links between switches have more to spare.
class Evener {
 public:
  explicit Evener(Network& network) : network_(network), leaving_(network.nodes), odd_(network.nodes, 0) {
    for (std::size_t i = 0; i < network.arcs.size(); ++i) {
      leaving_[network.arcs[i].from].push_back(i);
      places_[{network.arcs[i].from, network.arcs[i].to}] = i;
      odd_[network.arcs[i].from] ^= static_cast<char>(network.arcs[i].capacity & 1);
    }
    for (const int node : network.compute) odd_[node] = 0;
  }

  void even() {
    for (const bool to_compute : {false, true}) {
      for (int node = 0; node < network_.nodes; ++node) {
        if (odd_[node] != 0) even(node, to_compute);
      }
    }
  }

 private:
  void even(int start, bool to_compute) {
    std::vector<int> before(network_.nodes, kNone);
    std::vector<int> queue{start};
    before[start] = start;
    for (std::size_t i = 0; i < queue.size(); ++i) {
      const int node = queue[i];
      const bool computes = std::ranges::binary_search(network_.compute, node);
      if (computes && !to_compute) continue;
      if (node != start && (odd_[node] != 0 || computes)) {
        odd_[start] = 0;
        odd_[node] = 0;
        for (int at = node; at != start; at = before[at]) take(before[at], at);
        return;
      }
      for (const std::size_t arc : leaving_[node]) {
        const int to = network_.arcs[arc].to;
        if (network_.arcs[arc].capacity == 0 || before[to] != kNone) continue;
        before[to] = node;
        queue.push_back(to);
      }
    }
  }

  void take(int a, int b) {
    --network_.arcs[places_[{a, b}]].capacity;
    --network_.arcs[places_[{b, a}]].capacity;
  }

  Network& network_;
  std::vector<std::vector<std::size_t>> leaving_;
  std::map<std::pair<int, int>, std::size_t> places_;
  std::vector<char> odd_;
};

/// The units at which some capacity holds one more, from `most` down to half of it.
std::vector<Rational> steps_below(const std::map<Bandwidth, Wide>& capacities, const Rational& most) {
  constexpr int kStepsMax = 64;  // for one capacity: beyond, one unit more or less is nothing
  std::set<Rational, std::greater<>> steps{most};
  for (const auto& [capacity, count] : capacities) {
    const Wide first = (Rational(capacity) / most).floor() + 1;
    for (Wide units = first; units < first + kStepsMax; ++units) {
      const Rational step(capacity, units);
      if (step * Rational(2) < most) break;
      steps.insert(step);
    }
  }
  return {steps.begin(), steps.end()};
}

/// The first step that fits, nearly so where evening disturbs the order; 0 if none does. It is near, so gallop first.
template <class Fits>
Rational first_that(const std::vector<Rational>& steps, const Fits& fits) {
  std::size_t low = 0;
  std::size_t high = 0;
  for (std::size_t stride = 1; !fits(steps[high]); stride *= 2) {
    low = high + 1;
    if (low == steps.size()) return {};
    high = std::min(high + stride, steps.size() - 1);
  }
  while (low < high) {
    const std::size_t middle = (low + high) / 2;
    if (fits(steps[middle])) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return steps[high];
}

Network floored(Network network, const Rational& unit) {
  for (Arc& arc : network.arcs) arc.capacity = static_cast<Bandwidth>((Rational(arc.capacity) / unit).floor());
  return network;
}

/// Of the arcs that leave the set.
void count_crossing(const Network& network, const std::vector<int>& set, std::map<Bandwidth, Wide>& crossing) {
  std::vector<char> inside(network.nodes, 0);
  for (const int node : set) inside[node] = 1;
  for (const Arc& arc : network.arcs) {
    if (inside[arc.from] != 0 && inside[arc.to] == 0) ++crossing[arc.capacity];
  }
}

Wide units_in(const std::map<Bandwidth, Wide>& capacities, const Rational& unit) {
  Wide units = 0;
  for (const auto& [capacity, count] : capacities) units += count * (Rational(capacity) / unit).floor();
  return units;
}

}  // namespace

Network in_units(const Network& network, const Rational& unit) {
  Network rounded = floored(network, unit);
  Evener(rounded).even();
  std::erase_if(rounded.arcs, [](const Arc& arc) { return arc.capacity == 0; });
  return rounded;
}

Network whole_units(const Network& network, const Rational& unit) {
  Network rounded = floored(network, unit);
  std::erase_if(rounded.arcs, [](const Arc& arc) { return arc.capacity == 0; });
  return rounded;
}

UnitSearch::UnitSearch(const Network& network, const PartitionBound& bound)
    : network_(network), bound_(bound.rate), blocks_(static_cast<Wide>(bound.sets.size())) {
  for (const Arc& arc : network.arcs) ++all_[arc.capacity];
  for (const auto& set : bound.sets) count_crossing(network, set, crossing_);
}

Rational UnitSearch::promised(int trees) const {
  return first_that(steps_below(crossing_, bound_ / Rational(trees)),
                    [&](const Rational& unit) { return units_in(crossing_, unit) >= 2 * trees * (blocks_ - 1); });
}

Rational UnitSearch::largest(int trees, const Rational& most) const {
  return first_that(steps_below(all_, most),
                    [&](const Rational& unit) { return all_reduce_allows(in_units(network_, unit), Rational(trees)); });
}

GatherUnitSearch::GatherUnitSearch(const Network& network, const CutBound& bound)
    : network_(network), each_(bound.rate / Rational(static_cast<Wide>(network.compute.size()), 1)) {
  for (const Arc& arc : network.arcs) ++all_[arc.capacity];
  count_crossing(network, bound.nodes, crossing_);
  inside_ =
      std::ranges::count_if(bound.nodes, [&](int node) { return std::ranges::binary_search(network.compute, node); });
}

Rational GatherUnitSearch::promised(int trees) const {
  return first_that(steps_below(crossing_, each_ / Rational(trees)),
                    [&](const Rational& unit) { return units_in(crossing_, unit) >= trees * inside_; });
}

Rational GatherUnitSearch::largest(int trees, const Rational& most) const {
  return first_that(steps_below(all_, most), [&](const Rational& unit) {
    return all_gather_allows(whole_units(network_, unit), Rational(trees));
  });
}

}  // namespace tutti::topology
