// What links have between the nodes of a graph, on the way to a network (network.h).
#pragma once

#include "topology/graph.h"

#include <map>
#include <set>
#include <utility>

namespace tutti::topology {

/// By the two ends of a link, parallel links added up.
using Capacities = std::map<std::pair<int, int>, Bandwidth>;

/// Removes, again and again, what is not kept and has fewer than two neighbours: nothing passes through it.
void drop_dead_ends(Capacities& capacities, const std::set<int>& kept);

}  // namespace tutti::topology
