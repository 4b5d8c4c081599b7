// How often a sum is rounded: counted from the schedule itself, and as docs/numerics.md says it, algorithm by algorithm.
#pragma once

#include "algorithm/algorithm.h"

namespace tutti::numbers {

/// The most that any one input goes through on its way to a result.
struct LongestPath {
  int operations = 0;  ///< additions (products) in the accumulator's precision
  int roundings = 0;   ///< to the data type

  friend bool operator==(const LongestPath&, const LongestPath&) = default;
};

/// Runs the schedule with counters for numbers. `wide_wire`: partial sums travel unrounded.
LongestPath counted_path(const algorithm::Algorithm& algorithm, const schedule::Request& request,
                         bool wide_wire = false);

/// docs/numerics.md's table, root 0.
LongestPath documented_path(const algorithm::Algorithm& algorithm, const schedule::Request& request,
                            bool wide_wire = false);

/// The rows of the table that reduce, in its order.
std::vector<const algorithm::Algorithm*> reducing_rows();

/// The collective of such a row.
Collective collective_of(const algorithm::Algorithm& row);

}  // namespace tutti::numbers
