// From the machine graph to the network that bounds and schedules are computed on: which nodes compute, and which links
// count.
//
// The compute nodes are the GPUs or, where there are none, the NUMA nodes with cores. Where NVLink or xGMI joins all of them
// it is counted alone, as a collective uses one kind of link at a time; where it does not, or on demand, every link counts.
// CPUs, PCI switches and NVSwitches relay. NICs and networks count only between hosts.
#pragma once

#include "base/result.h"
#include "topology/graph.h"
#include "topology/network.h"

#include <string>
#include <string_view>
#include <vector>

namespace tutti::topology {

enum class ComputeKind : unsigned char { kGpu, kNuma };
std::string_view name_of(ComputeKind kind);  ///< "gpu"

enum class LinksCounted : unsigned char {
  kAll,       ///< as nothing else joins them all
  kAllAsked,  ///< as ViewOptions says
  kNvLink,    ///< NVLink and xGMI
};

struct ViewOptions {
  std::vector<int> chosen;  ///< places in compute_nodes(), in any order; none: all of them
  bool all_links = false;
};

struct View {
  ComputeKind compute = ComputeKind::kGpu;
  LinksCounted counted = LinksCounted::kAll;
  Network network;         ///< rank r is node r; switches follow, but for those that lie on no path between ranks
  std::vector<int> nodes;  ///< by network node: the graph's
  std::vector<std::string> warnings;  ///< the graph's, and what the view had to decide

  int ranks() const { return static_cast<int>(network.compute.size()); }
};

/// The nodes that compute, in the order that ranks have: by host, and on a host by the numbers that CUDA or HIP gives its GPUs
/// where all of them have one, else as in the graph.
struct ComputeNodes {
  ComputeKind kind = ComputeKind::kGpu;
  std::vector<int> nodes;
};
ComputeNodes compute_nodes(const Graph& graph);

/// kInvalidArgument if nothing computes, or a chosen place is not there or twice there.
Result<View> view_of(const Graph& graph, const ViewOptions& options = {});

/// By host, in order, its ranks in the view.
std::vector<std::vector<int>> ranks_by_host(const Graph& graph, const View& view);

}  // namespace tutti::topology
