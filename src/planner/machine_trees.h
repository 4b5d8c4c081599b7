// What communicators run of a machine's plans: the trees of packed trees and of packed pairs, for as many lanes as they have.
#pragma once

#include "base/result.h"
#include "planner/machine_service.h"
#include "topology/graph.h"

#include <string>
#include <vector>

namespace tutti::planner {

/// Text of algorithm/planned_trees.h, for each collective that packed trees, or pairs, are a candidate for. Ranks on GPUs are those of their
/// PCI addresses, if the machine has all of these. Where the machine has no GPUs and ranks sit on as many NUMA nodes, ranks are these. Else
/// the machine must have as many GPUs, or NUMA nodes with cores, as there are ranks, and ranks are these in order. kInvalidArgument: it has
/// not, or is several hosts. All-gathers and reduce-scatters of more than 16 ranks have fewer lanes: 8192 trees in all, or two lanes.
Result<std::string> machine_trees(const topology::Graph& graph, const RankPlaces& ranks, int lanes_most);

/// Of ranks on GPUs: whether some two have neither a link between them nor a switch (or root complex) that both are joined to.
/// kInvalidArgument: as above.
Result<bool> gpus_apart(const topology::Graph& graph, const RankPlaces& ranks);

/// In which order the best ring visits ranks on GPUs, from rank 0 on; empty: there is none. kInvalidArgument: as above, or more than 16 ranks.
Result<std::vector<int>> gpu_ring(const topology::Graph& graph, const RankPlaces& ranks);

/// Of ranks on GPUs, by rank and rank, row by row. By bus ids alone. kInvalidArgument: the graph does not have all of them, or is
/// several hosts.
Result<std::vector<GpuDistance>> gpu_distances(const topology::Graph& graph, const RankPlaces& ranks);

}  // namespace tutti::planner
