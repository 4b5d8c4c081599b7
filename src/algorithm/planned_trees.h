// The trees of a machine's plan as text, which one rank of a communicator makes and all read, and as the schedule that runs.
//
//   trees all_reduce ranks 4 lanes 2         then a line for each lane: by rank its parent, "-" for the root
//   - 0 1 1
//   1 - 1 2
//   trees all_gather ranks 4 lanes 1         then for each lane a line for each root, in order
//   ...
//   pairs all_reduce ranks 4 lanes 1         then for each lane a line for the tree that sums go up, and one for results
//   - 0 1 1
//   - 0 0 0
#pragma once

#include "algorithm/packed_pairs.h"
#include "algorithm/packed_trees.h"
#include "base/dtype.h"
#include "base/result.h"
#include "schedule/schedule.h"

#include <string>
#include <string_view>
#include <vector>

namespace tutti::algorithm {

/// Packing is quick for so many ranks.
inline constexpr int kTreeRanksMax = 64;
/// As many as tutti-topo's plans have, unless they need more.
inline constexpr int kTreeLanesMax = 32;

struct PlannedTrees {
  Collective collective = Collective::kAllReduce;  ///< or all_gather, reduce_scatter
  std::vector<Parents> lanes;                      ///< of an all-reduce
  std::vector<RootedTrees> rooted;                 ///< of the others, by lane
  std::vector<TreePair> pairs;                     ///< of an all-reduce, in place of `lanes`

  friend bool operator==(const PlannedTrees&, const PlannedTrees&) = default;
};

std::string to_text(const PlannedTrees& trees);

/// Any number of them. kInvalidArgument, with the line: not such a text, trees for another number of ranks or of more lanes,
/// or something that is no tree.
Result<std::vector<PlannedTrees>> parse_trees(std::string_view text, int ranks, int lanes_most);

/// A round has so many units for each hop of the deepest tree: calls of a communicator are of any size.
inline constexpr int kPlannedUnitsPerHop = 8;
schedule::Schedule schedule_of(const PlannedTrees& trees, int slots);

}  // namespace tutti::algorithm
