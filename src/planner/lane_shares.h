// Trees and rings of many rates, shared out to a few lanes of equal shares.
#pragma once

#include "topology/network.h"
#include "topology/rings.h"
#include "topology/tree_bundles.h"
#include "topology/tree_pairs.h"
#include "topology/trees.h"

#include <vector>

namespace tutti::planner {

/// Whole numbers that add up to `lanes` and are nearest to the rates' parts of it, by largest remainders.
std::vector<int> parts_of(const std::vector<double>& rates, int lanes);

struct RootedLanes {
  std::vector<std::vector<const topology::TreeLane*>> lanes;  ///< by lane and rank, its root
  double rate = 0;                                            ///< kB/s in all, as the trees' together
};

/// A tree from each rank in each lane. Of the numbers of lanes up to lanes_max it takes the one with which the links allow
/// most, a smaller one where more bring next to nothing. No lanes if there are no trees. The trees must outlive what is
/// returned.
RootedLanes share_out(const topology::Network& network, const std::vector<topology::TreeLane>& trees, int lanes_max);

/// Lanes of equal shares, each of them one of the trees, pairs or bundles that were packed.
template <class Packed>
struct SharedLanes {
  std::vector<const Packed*> lanes;
  double rate = 0;  ///< kB/s, of all trees together
};
using SpanningLanes = SharedLanes<topology::TreeLane>;

/// Spanning trees for all-reduce, each path both ways. As many lanes as the trees' weights say, where that is no more than
/// lanes_max; else as above.
SpanningLanes share_out_spanning(const topology::Network& network, const std::vector<topology::TreeLane>& trees,
                                 int lanes_max);

/// The same for pairs of trees, for bundles of a tree from each rank, and for rings, which have no weights.
SharedLanes<topology::PairLane> share_out(const topology::Network& network,
                                          const std::vector<topology::PairLane>& pairs, int lanes_max);
SharedLanes<topology::BundleLane> share_out(const topology::Network& network,
                                            const std::vector<topology::BundleLane>& bundles, int lanes_max);
SharedLanes<topology::Ring> share_out(const topology::Network& network, const std::vector<topology::Ring>& rings,
                                      int lanes_max);

}  // namespace tutti::planner
