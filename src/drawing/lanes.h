// The lanes of a plan, a sample of them: each a small tree, ring or star of messages in its colour.
#pragma once

#include "planner/machine_plan.h"
#include "plot/canvas.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

namespace tutti::drawing {

/// What a lane's messages look like.
struct LaneShape {
  enum class Form : std::uint8_t { kTree, kTreePair, kRing, kAllPairs };
  Form form = Form::kAllPairs;
  std::vector<int>
      ranks;  ///< kTree: by rank, its parent or -1; kTreePair: the tree that sums go up; kRing: the ranks in order; kAllPairs: nothing
  std::string name;  ///< "lanes 0, 8, 16"
  int first = 0;     ///< of these
  /// kAllPairs: who exchanges with whom, the lower rank first; empty: all do.
  std::set<std::pair<int, int>> chords = {};
  std::vector<int> down = {};  ///< kTreePair: the tree that results come down, of the same root
};

struct LaneSample {
  std::vector<LaneShape> shapes;  ///< at most kLanesDrawn
  std::string caption;            ///< how many there are, and what they do
};

inline constexpr int kLanesDrawn = 6;

LaneSample sample_lanes(const planner::MachinePlan& plan);

/// With what is between them.
inline constexpr double kLaneWidth = 206;
inline constexpr double kLaneHeight = 150;
/// Whether there is room for the ranks' numbers in it.
bool has_numbers(const LaneShape& shape, int ranks, const plot::Box& box);
/// `place`: which of the sample it is.
void draw_lane(const LaneShape& shape, int ranks, int place, const plot::Box& box, plot::Canvas& canvas);

}  // namespace tutti::drawing
