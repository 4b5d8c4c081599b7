// All-gather on networks with switches that more can enter than leave, or less: bundles of an out-tree from every compute
// node, with one rate. The best packing of such bundles by linear programme; read towards their roots on the reversed
// network, they are the reduce-scatter.
#pragma once

#include "topology/trees.h"

#include <vector>

namespace tutti::topology {

struct BundleLane {
  Rational rate;                ///< of each tree, kB/s
  int weight = 0;               ///< its part of all lanes' weights
  std::vector<TreeLane> trees;  ///< by compute node, its root
};

struct BundlePacking {
  Rational rate;       ///< of all trees together, exact
  double best = 0;     ///< what the programme reaches with as many lanes as it likes, kB/s
  bool exact = false;  ///< `best` is proved by the links' prices, to a millionth
  std::vector<BundleLane> lanes;
};

/// At most `lanes_max` bundles; the optimum over forests. For small machines, as tree_pairs.h. No lanes where some compute node
/// cannot reach another.
BundlePacking pack_bundles(const Network& network, int lanes_max);

/// What the bundles put on every arc.
Loads loads(const Network& network, const std::vector<BundleLane>& lanes);

}  // namespace tutti::topology
