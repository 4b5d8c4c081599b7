// NCCL's graph XML (NCCL_GRAPH_FILE, NCCL_GRAPH_DUMP_FILE): the channels that a search chose on some machine. It holds no
// machine, only the part of one that the channels use, and the graph's warnings say so:
//   GPUs         the <gpu> of all channels, "gpu3"
//   links        between neighbours in a channel, in each direction the sum over the channels of a <graph>, and the largest
//                sum over the <graph>s, as one runs at a time; NVLink where typeintra is NVL or NVB, else PCI. A ring
//                (pattern 4) goes one way, without <net> also from last to first, at speedintra. A tree goes both ways, at
//                half of speedintra each: NCCL's search takes speedintra from the links once, for sums and results together
//   NICs         the <net> of all channels, joined to the GPU that data comes to or leaves from, in that direction, and to
//                the network, by speedinter
#pragma once

#include "topology/graph.h"

#include <string_view>

namespace tutti::topology {

/// kInvalidArgument with line, element and reason.
Result<Graph> read_nccl_graph_xml(std::string_view text);

}  // namespace tutti::topology
