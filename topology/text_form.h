// Tutti's own text form of a machine graph: a line a node, a line a link. Any graph can be written by hand, and what
// to_text writes reads back as the same graph.
//
//   tutti-topology 1                           # the first line; from "#" to the end of a line is a comment
//   host node17                                # one line each, in order; without any there is one host, "host"
//   numa numa0 cores=56 memory=300 model="GenuineIntel 6/143"
//   pci pci0 in=numa0 bus=0000:16:00.0
//   gpu gpu0 in=pci0 sm=90 rank=0              # kinds: package numa cache pci gpu switch nic network
//   gpu h1.gpu0 host=1                         # on another host than the first
//   switch nvs
//   link gpu0 <-> nvs nvlink 370.8 count=18    # a cable: 370.8 GB/s in each direction, by 18 NVLinks
//   link gpu0 -> gpu1 nvlink 20                # one direction
//   link gpu0 <-> pci0 pci 48 count=16 latency_ns=350
//   warning "NVLink is not in the file"        # what the source of the graph had to guess
//
// Facts of a node are key=value: in (the node it is drawn in), host, bus, model, numa, rank, device, sm, gcn, cores,
// memory (GB/s), bytes, ports. A word that has anything but letters, digits and "_.:+/-" stands in double quotes, with
// \" \\ \n and \xHH inside.
#pragma once

#include "topology/graph.h"

#include <string>
#include <string_view>

namespace tutti::topology {

inline constexpr std::string_view kTextFormHeader = "tutti-topology 1";

/// kInvalidArgument with the line, what was found there and what was expected.
Result<Graph> parse_text(std::string_view text);

/// parse_text(to_text(graph)) is the same graph, warnings included.
std::string to_text(const Graph& graph);

}  // namespace tutti::topology
