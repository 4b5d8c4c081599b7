// Minimum cuts of a network between compute nodes that are pulled to one side or the other: what every bound and every
// packing asks for.
#pragma once

#include "topology/max_flow.h"
#include "topology/network.h"

#include <vector>

namespace tutti::topology {

/// Minimises, over node sets S, B+(S) plus the price of every node on the side that it does not want. Prices are set before
/// each solve() and forgotten by clear().
class Cuts {
 public:
  /// Capacities count `scale` times, so that fractions become whole.
  explicit Cuts(const Network& network, Wide scale = 1);

  void clear() { residual_ = capacities_; }
  /// The price of leaving the node out of S; kUnlimited forces it in. At most once for each node.
  void price_outside(int node, Wide price) { residual_[source_arcs_ + 2 * node] = price; }
  /// The price of having the node in S; kUnlimited forces it out. At most once for each node.
  void price_inside(int node, Wide price) { residual_[sink_arcs_ + 2 * node] = price; }

  /// The least sum. Stops early, with `limit`, if it is at least that.
  Wide solve(Wide limit = kUnlimited);
  /// After a solve() that did not stop early: the smallest S, one mark for each node.
  std::vector<char> inside() const;

 private:
  int nodes_;
  FlowGraph graph_;
  FlowGraph::Residual capacities_, residual_;
  int source_arcs_ = 0;  ///< of node 0; node i's is 2 i further
  int sink_arcs_ = 0;
};

}  // namespace tutti::topology
