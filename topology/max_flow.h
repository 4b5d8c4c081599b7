// Maximum flow and minimum cut (Dinic 1970). Own code rather than Boost.Graph's: bounds and packings change a few capacities
// and go on from the flow they have, keep one flow per sink over the same arcs, stop at a limit, and count in 128 bits.
#pragma once

#include "topology/rational.h"

#include <cstddef>
#include <vector>

namespace tutti::topology {

/// More than any sum of capacities, and sums of thousands of it still fit.
inline constexpr Wide kUnlimited = static_cast<Wide>(1) << 110;

/// The arcs, in pairs: arc a and a ^ 1 join the same nodes in opposite directions. What a flow leaves of them is held by
/// the caller, one number for each arc, so that several flows can share the arcs.
class FlowGraph {
 public:
  using Residual = std::vector<Wide>;

  explicit FlowGraph(int nodes) : heads_(static_cast<std::size_t>(nodes), -1) {}

  int nodes() const { return static_cast<int>(heads_.size()); }
  int arcs() const { return static_cast<int>(ends_.size()); }
  int add_node();
  /// The index of the arc from -> to, even; the one after it leads back.
  int add_arc(int from, int to);
  int end(int arc) const { return ends_[static_cast<std::size_t>(arc)]; }

  /// Pushes up to `limit` more from source to sink and returns how much went.
  Wide augment(Residual& residual, int source, int sink, Wide limit = kUnlimited);
  /// 1 for each node that something can still be pushed to from `source`: after an augment without limit the smallest
  /// source side of a minimum cut.
  std::vector<char> reachable(const Residual& residual, int source) const;

 private:
  bool layer(const Residual& residual, int source, int sink);
  Wide push_path(Residual& residual, int source, int sink, Wide limit);

  std::vector<int> heads_;  ///< by node: its newest arc
  std::vector<int> next_;   ///< by arc: the next one that leaves the same node
  std::vector<int> ends_;   ///< by arc
  std::vector<int> levels_, at_, queue_, path_;
};

}  // namespace tutti::topology
