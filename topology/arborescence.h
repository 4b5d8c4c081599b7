// The cheapest tree that leads from a root to everything, where ways there and back may cost differently.
#pragma once

#include <cstddef>
#include <vector>

namespace tutti::topology {

/// Prices from each of `count` nodes to each other one, row by row; infinite where there is no way.
struct PriceTable {
  std::size_t count = 0;
  std::vector<double> prices;

  double at(std::size_t from, std::size_t to) const { return prices[from * count + to]; }
};

/// The parent of each node, the root's its own; empty if some node cannot be reached. Contracts cycles of cheapest arcs (Chu
/// and Liu 1965, Edmonds 1967).
std::vector<std::size_t> cheapest_arborescence(const PriceTable& table, std::size_t root);

}  // namespace tutti::topology
