#include "topology/arborescence.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tutti::topology {

namespace {

/// The nodes of a cycle that following parents leads into, or none.
std::vector<std::size_t> cycle_in(const std::vector<std::size_t>& parents, std::size_t root) {
  constexpr std::size_t kUnseen = std::numeric_limits<std::size_t>::max();
  std::vector<std::size_t> seen_from(parents.size(), kUnseen);
  for (std::size_t start = 0; start < parents.size(); ++start) {
    std::size_t node = start;
    while (node != root && seen_from[node] == kUnseen) {
      seen_from[node] = start;
      node = parents[node];
    }
    if (node == root || seen_from[node] != start) continue;
    std::vector<std::size_t> cycle{node};
    for (std::size_t next = parents[node]; next != node; next = parents[next]) cycle.push_back(next);
    return cycle;
  }
  return {};
}

}  // namespace

std::vector<std::size_t> cheapest_arborescence(const PriceTable& table, std::size_t root) {
  const std::size_t count = table.count;
  std::vector<std::size_t> parents(count, root);
  std::vector<double> least(count, std::numeric_limits<double>::infinity());
  for (std::size_t from = 0; from < count; ++from) {  // row by row, as they lie in memory
    const double* const row = table.prices.data() + from * count;
    for (std::size_t node = 0; node < count; ++node) {
      if (from == node || row[node] >= least[node]) continue;
      least[node] = row[node];
      parents[node] = from;
    }
  }
  for (std::size_t node = 0; node < count; ++node) {
    if (node != root && !std::isfinite(least[node])) return {};
  }
  parents[root] = root;
  const std::vector<std::size_t> cycle = cycle_in(parents, root);
  if (cycle.empty()) return parents;

  // One node, the last, stands for the cycle. To enter it at a node costs what that saves inside.
  std::vector<char> in_cycle(count, 0);
  for (const std::size_t node : cycle) in_cycle[node] = 1;
  std::vector<std::size_t> outside;
  for (std::size_t node = 0; node < count; ++node) {
    if (in_cycle[node] == 0) outside.push_back(node);
  }
  PriceTable less{outside.size() + 1, {}};
  less.prices.assign(less.count * less.count, std::numeric_limits<double>::infinity());
  std::vector<std::size_t> entered_at(outside.size(), cycle.front());
  std::vector<std::size_t> left_at(outside.size(), cycle.front());
  for (std::size_t i = 0; i < outside.size(); ++i) {
    for (std::size_t j = 0; j < outside.size(); ++j) less.prices[i * less.count + j] = table.at(outside[i], outside[j]);
    double& enter = less.prices[i * less.count + outside.size()];
    double& leave = less.prices[outside.size() * less.count + i];
    for (const std::size_t node : cycle) {
      const double entering = table.at(outside[i], node) - table.at(parents[node], node);
      if (entering < enter) {
        enter = entering;
        entered_at[i] = node;
      }
      if (table.at(node, outside[i]) < leave) {
        leave = table.at(node, outside[i]);
        left_at[i] = node;
      }
    }
  }
  const auto less_root = static_cast<std::size_t>(std::ranges::find(outside, root) - outside.begin());
  const std::vector<std::size_t> found = cheapest_arborescence(less, less_root);
  if (found.empty()) return {};
  for (std::size_t i = 0; i < outside.size(); ++i) {
    if (i != less_root) parents[outside[i]] = found[i] == outside.size() ? left_at[i] : outside[found[i]];
  }
  const std::size_t from = found[outside.size()];
  parents[entered_at[from]] = outside[from];
  return parents;
}

}  // namespace tutti::topology
