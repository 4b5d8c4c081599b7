// What communicators run of a machine's plans: the trees of packed trees and of packed pairs, for as many lanes as they have.
#pragma once

#include "base/result.h"
#include "topology/graph.h"

#include <string>
#include <vector>

namespace tutti::planner {

/// Text of algorithm/planned_trees.h, for each collective that packed trees, or pairs, are a candidate for. `numas`, by rank: the system's number of the NUMA
/// node that it sits on, or -1. Where the machine has no GPUs and ranks sit on as many nodes, ranks are these; else the machine must have as
/// many GPUs, or NUMA nodes with cores, as there are ranks, and ranks are these in order. kInvalidArgument: it has not, or is
/// several hosts. All-gathers and reduce-scatters of more than 16 ranks have fewer lanes: 8192 trees in all, or two lanes.
Result<std::string> machine_trees(const topology::Graph& graph, const std::vector<int>& numas, int lanes_most);

}  // namespace tutti::planner
