// Few trees, better rates: lanes that were packed in equal units get rates of their own, and the least useful tree is
// exchanged for one that the links' prices ask for, as long as that gains.
#pragma once

#include "topology/trees.h"

#include <vector>

namespace tutti::topology {

/// All-reduce lanes on a full-duplex network, at most `lanes_max`, together as fast as the given ones or faster, with whole
/// weights and exact rates. Stops at `enough`, the bound for example. A local search: no promise how close it comes.
std::vector<TreeLane> improved(const Network& network, std::vector<TreeLane> lanes, int lanes_max,
                               const Rational& enough);

}  // namespace tutti::topology
