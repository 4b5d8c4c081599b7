// Packed trees: lanes that are trees over all ranks, of shapes that the caller gives. Which shapes use all that a machine's
// links have is the planner's matter (topology/packing.h).
#pragma once

#include "schedule/schedule.h"

#include <cstddef>
#include <vector>

namespace tutti::algorithm {

inline constexpr int kNoParent = -1;

/// By rank: its parent. Exactly one rank, the root, has none, and every rank leads there.
using Parents = std::vector<int>;

inline constexpr int kAheadPerHop = 4;

/// All-reduce: in each lane sums go up the lane's tree and the result comes down it. A round has `units` units that follow
/// each other through the tree: a rank sends unit u + d up before it waits for unit u to come down, d `ahead_per_hop` for each
/// hop to the root. Two would do if messages took no time beside their bytes; four, if latency takes as long as the bytes.
/// Rounds do not overlap, so a round costs units + 2 depth messages in time: many units use the links well.
/// The shares of all lanes are equal. Needs as many slots as `ahead_per_hop`, and two.
schedule::Schedule packed_trees(const std::vector<Parents>& lanes, int units = 1, int ahead_per_hop = kAheadPerHop);

/// The units that a round needs to lose little between rounds: kUnitsPerHop for each hop of the deepest tree.
inline constexpr int kUnitsPerHop = 128;
int units_for(const std::vector<Parents>& lanes);

/// A tree for every rank, by rank, its root.
using RootedTrees = std::vector<Parents>;

/// All-gather: in each lane each root's block goes down its tree, in `units` units in a round that follow each other through all
/// trees (tree_turns.h). Ends with so many slots for each channel, or more.
inline constexpr int kTreeSlots = 8;
schedule::Schedule packed_out_trees(const std::vector<RootedTrees>& lanes, int units = 1, int slots = kTreeSlots);

/// Reduce-scatter: the same trees backwards; the root's block is summed up it.
schedule::Schedule packed_in_trees(const std::vector<RootedTrees>& lanes, int units = 1, int slots = kTreeSlots);

/// Slots of a channel that the links need to be busy all the time: two turns' messages, from kTreeSlots to kTreeSlotsMost.
inline constexpr int kTreeSlotsMost = 32;
int slots_for(const std::vector<RootedTrees>& lanes);

/// As above, but units wait one turn for each hop only. Fewer where trees are so many that a round would have more than
/// kTurnsMost turns of all ranks.
inline constexpr int kRootedUnitsPerHop = 32;
inline constexpr std::size_t kTurnsMost = 500'000;
int units_for(const std::vector<RootedTrees>& lanes);

/// Hops from each rank to the root.
std::vector<int> depths_of(const Parents& parents);

}  // namespace tutti::algorithm
