// All-gather on networks with switches that more can enter than leave, or less: bundles of an out-tree from every compute
// node, with one rate. The best packing of such bundles by linear programme; read towards their roots on the reversed
// network, they are the reduce-scatter.
#pragma once

#include "topology/lane_programme.h"
#include "topology/trees.h"

#include <vector>

namespace tutti::topology {

struct BundleLane {
  Rational rate;                ///< of each tree, kB/s
  int weight = 0;               ///< its part of all lanes' weights
  std::vector<TreeLane> trees;  ///< by compute node, its root
};

/// `best` is the rate of one bundle: of each tree.
using BundlePacking = LanePacking<BundleLane>;

/// The optimum over forests. For small machines, as tree_pairs.h. No lanes where some compute node cannot reach another.
BundlePacking pack_bundles(const Network& network);

/// At most `lanes_max` of them, with whole weights and exact rates.
std::vector<BundleLane> lanes_of(const Network& network, const BundlePacking& packing, int lanes_max);

/// What the bundles put on every arc.
Loads loads(const Network& network, const std::vector<BundleLane>& lanes);

}  // namespace tutti::topology
