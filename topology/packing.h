// Trees that together move as much as the links allow: for all-reduce spanning trees with free roots, each adding up towards
// its root and copying back at its rate; for all-gather and reduce-scatter out-trees, an equal rate from every root.
// Exact: the rates add up to the bound. Three steps: orientation.h, splitting.h, branchings.h.
#pragma once

#include "topology/bounds.h"
#include "topology/network.h"
#include "topology/rational.h"
#include "topology/trees.h"

#include <vector>

namespace tutti::topology {

struct TreePacking {
  Rational rate;                ///< the sum over the lanes
  std::vector<TreeLane> lanes;  ///< none if some compute node cannot be reached, or there are fewer than two
};

/// Spanning trees at the all-reduce bound. A network that is not full duplex is first cut down to what its links have in
/// both directions; there the rate may be far below the bound, and tree_pairs.h does better.
TreePacking pack_all_reduce(const Network& network);

/// At most `lanes_max` trees with small whole weights, as close to the bound as that allows: trees of equal units are packed
/// exactly where capacities are rounded down to units.
TreePacking pack_all_reduce(const Network& network, int lanes_max);

/// Out-trees at the all-gather bound; read towards their roots on the reversed network, they are the reduce-scatter. A
/// network with a switch that more can enter than leave, or less, is first cut down to both directions.
TreePacking pack_all_gather(const Network& network);

/// At most `lanes_max` lanes of equal shares: so many out-trees from each compute node, with small whole weights, as close to
/// the bound as that allows. The network is cut down to both directions.
TreePacking pack_all_gather(const Network& network, int lanes_max);

/// The network with each link at the lesser of its two directions.
Network both_ways(const Network& network);

}  // namespace tutti::topology
