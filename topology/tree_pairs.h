// All-reduce on networks whose links are not full duplex: pairs of an in-tree, along which values are added up, and an
// out-tree of the same root, along which the sum is copied. The best packing of such pairs by linear programme.
#pragma once

#include "topology/lane_programme.h"
#include "topology/trees.h"

#include <vector>

namespace tutti::topology {

struct PairLane {
  Rational rate;   ///< kB/s
  int weight = 0;  ///< its part of all lanes' weights
  int root = 0;
  std::vector<TreeEdge> down;  ///< parents first; paths from parent to child
  std::vector<TreeEdge> up;    ///< parents first; paths from child to parent
};

using PairPacking = LanePacking<PairLane>;

/// The optimum over pairs of trees, not proved best among all schemes: the bound (bounds.h) may be out of their reach. Column
/// generation, with cheapest arborescences from every root; for small machines (some 16 compute nodes), beyond that it ends
/// early and says so. No lanes where some compute node cannot reach another.
PairPacking pack_pairs(const Network& network);

/// At most `lanes_max` of them, with whole weights and exact rates.
std::vector<PairLane> lanes_of(const Network& network, const PairPacking& packing, int lanes_max);

/// What the pairs put on every arc.
Loads loads(const Network& network, const std::vector<PairLane>& lanes);

}  // namespace tutti::topology
