// What ranks on several hosts have between them: the machine graph as a network whose compute nodes are the ranks, wherever these
// sit, several in one place or all of a host, and its bounds.
#pragma once

#include "planner/machine_service.h"
#include "topology/graph.h"
#include "topology/network.h"

#include <string>
#include <string_view>
#include <vector>

namespace tutti::planner {

/// As graphs have it: "0000:C1:00.0" in lower case.
std::string bus_id_of(std::string_view text);

struct RankNetwork {
  topology::Network network;            ///< rank r is node r
  std::vector<int> nodes;               ///< by network node: the graph's; topology::kNone for ranks
  std::vector<std::vector<int>> hosts;  ///< ranks by host, in order of their lowest ranks
};

/// A rank is joined without limit to its GPU, else to its NUMA node, else, where that is not known or not in the graph, to all NUMA nodes of its
/// host. GPUs on which no rank sits carry nothing. kInvalidArgument: the graph has other hosts, or ranks are not 0 to looks - 1 in order.
Result<RankNetwork> rank_network(const topology::Graph& graph, const std::vector<RankLook>& looks);

Result<BetweenHosts> between_hosts(const topology::Graph& graph, const std::vector<RankLook>& looks,
                                   Collective collective);

}  // namespace tutti::planner
