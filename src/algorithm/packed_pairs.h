// Packed pairs of trees, for links that differ in their two directions: in each lane sums go up one tree, and the result comes
// down another one of the same root. Which shapes use all that a machine's links have is the planner's matter
// (topology/tree_pairs.h).
#pragma once

#include "algorithm/packed_trees.h"

#include <vector>

namespace tutti::algorithm {

struct TreePair {
  Parents up;  ///< of the same root
  Parents down;

  friend bool operator==(const TreePair&, const TreePair&) = default;
};

/// All-reduce. As packed_trees, a round has `units` units that follow each other: a rank sends unit u + d up before it waits
/// for unit u to come down, d its hops up to the root and down from it. The shares of all lanes are equal. Needs two slots.
schedule::Schedule packed_pairs(const std::vector<TreePair>& lanes, int units = 1);

/// The units that a round needs to lose little between rounds.
int units_for(const std::vector<TreePair>& lanes);

}  // namespace tutti::algorithm
