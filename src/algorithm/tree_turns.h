// In which order each rank serves the trees of an all-gather: one tree for each rank, its root, whose block goes down it in units.
#pragma once

#include "algorithm/packed_trees.h"

#include <vector>

namespace tutti::algorithm {

/// A unit of the root's block, which a rank passes on to its children in the root's tree.
struct Turn {
  int unit = 0;
  int root = 0;
};

/// By rank; `trees` by root. With so many slots for each channel the order ends, whatever the timing; so does an all-gather
/// backwards, a reduce-scatter, with the reversed order.
std::vector<std::vector<Turn>> tree_turns(const std::vector<Parents>& trees, int units, int slots);

/// The most messages that a channel has in a turn, if no root waits for its turn.
int messages_in_turn(const std::vector<Parents>& trees);

}  // namespace tutti::algorithm
