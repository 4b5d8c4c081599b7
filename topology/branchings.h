// Third step of packing trees: spanning trees, grown an arc at a time from their roots, that together use no more than the
// routes have. (Edmonds' disjoint branchings with capacities: Lovász 1976; Schrijver, Combinatorial Optimization, 53.9;
// ForestColl, arXiv 2402.06787, section 5.4.)
#pragma once

#include "topology/splitting.h"

#include <optional>
#include <vector>

namespace tutti::topology {

/// A tree that leads away from its root to every compute node.
struct Branching {
  Wide amount = 0;
  int root = 0;
  std::vector<Route> edges;  ///< parents first; each with the tree's amount
};

/// As much from each root as its weight, by branchings of at most `amount_max` each: large ones make few, small ones flatter.
/// Nothing if the routes do not let the demand flow.
std::optional<std::vector<Branching>> pack_branchings(int nodes, std::vector<Route> routes, const Demand& demand,
                                                      Wide amount_max);

}  // namespace tutti::topology
