// First step of packing trees: the directions in which a full-duplex network's links are used, so that enough flows from
// one root to every compute node. (Frank, Connections in Combinatorial Optimization, section 9.4: orientations with
// given in-degrees.)
#pragma once

#include "topology/network.h"
#include "topology/rational.h"

#include <optional>
#include <vector>

namespace tutti::topology {

/// A directed amount, in the packer's units.
struct Flow {
  int from = 0;
  int to = 0;
  Wide amount = 0;
};

/// Shares out each link's capacity, counted once and `scale` times, between its two directions: what enters a switch leaves
/// it, and `rate` can flow from the root to each compute node, one at a time. The network is full duplex, and scale times
/// what leaves any switch is even. Nothing if some partition does not allow the rate.
std::optional<std::vector<Flow>> orient(const Network& network, Wide scale, Wide rate, int root);

}  // namespace tutti::topology
