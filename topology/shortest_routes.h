// Cheapest ways between compute nodes through switches alone, where every link has a price: what rings and trees are priced
// with (Dijkstra 1959, from every compute node).
#pragma once

#include "topology/network.h"

#include <cstddef>
#include <vector>

namespace tutti::topology {

class ShortestRoutes {
 public:
  explicit ShortestRoutes(const Network& network);

  /// Prices by the network's arcs, 0 or more. A small price on every hop keeps ways short where links are free.
  void update(const std::vector<double>& prices);

  /// Between the i-th and the j-th compute node; infinite if there is no way.
  double price(std::size_t i, std::size_t j) const { return prices_[i * count_ + j]; }
  /// The arcs on the way, first to last; none if there is no way.
  std::vector<int> arcs(std::size_t i, std::size_t j) const;
  /// The nodes of the arcs.
  std::vector<int> path(std::size_t i, std::size_t j) const;

 private:
  void from(std::size_t i, const std::vector<double>& prices);

  const Network& network_;
  std::size_t count_;
  std::vector<std::vector<int>> leaving_;  ///< arcs by node
  std::vector<char> computes_;
  std::vector<double> prices_;
  std::vector<std::vector<int>> before_;  ///< by compute node: the last arc on the way to each node
};

}  // namespace tutti::topology
