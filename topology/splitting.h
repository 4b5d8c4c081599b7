// Second step of packing trees: switches are removed by splitting off. Amounts that enter and leave a switch are joined to
// routes past it, such that as much as before can flow from the roots to every compute node. (Bang-Jensen, Frank and
// Jackson, Preserving and increasing local edge-connectivity in mixed graphs, 1995.)
#pragma once

#include "topology/orientation.h"

#include <optional>
#include <vector>

namespace tutti::topology {

/// An amount from one compute node to another through switches alone.
struct Route {
  Wide amount = 0;
  std::vector<int> path;  ///< with both ends; no node twice

  int from() const { return path.front(); }
  int to() const { return path.back(); }
};

/// What is to flow: `weights` (by node, 0 for switches) starts at each node, and their sum must reach every compute node.
struct Demand {
  std::vector<int> compute;
  std::vector<Wide> weights;
};

/// Routes that let the demand flow as the flows do. What enters each switch must leave it. Nothing if the demand cannot be
/// met even with the switches.
std::optional<std::vector<Route>> split_switches(int nodes, const std::vector<Flow>& flows, const Demand& demand);

}  // namespace tutti::topology
