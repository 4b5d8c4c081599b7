// What bounds and packings are computed on: capacities between numbered nodes, some of which compute. Made from a machine
// graph (view.h) or by hand in tests; knows nothing of GPUs.
#pragma once

#include "topology/graph.h"

#include <vector>

namespace tutti::topology {

struct Arc {
  int from = 0;
  int to = 0;
  Bandwidth capacity = 0;
};

struct Network {
  int nodes = 0;
  std::vector<int> compute;  ///< ascending; the other nodes are switches, which neither copy nor add
  std::vector<Arc> arcs;     ///< at most one for each (from, to), none from a node to itself, capacities above 0

  /// Whether every arc has one of the same capacity back.
  bool full_duplex() const;
};

}  // namespace tutti::topology
