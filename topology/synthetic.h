// A machine in one line: "host:4 switch:1 gpu:8 nvlink:450 nic:8x50". Words in any order, each once, KEY:VALUE; bandwidths
// are GB/s in one direction.
//
//   host:4        hosts, all alike; 1 if it is left out
//   gpu:8         GPUs of each host; gpu:7+8 gives each host its own number, and then the number of hosts
//   sm:90         their compute capability
//   switch:1      NVSwitches of each host; switch:pod is one over all hosts
//   nvlink:450    with switch: from each GPU to all its switches together
//   mesh:100      links between all GPUs of a host, each pair; ring:50 in a circle; line:50 in a line
//   kind:xgmi     what mesh, ring and line are made of; nvlink if it is left out
//   nic:8x50      NICs of each host and the speed of each; all are on one network
//   numa:2        NUMA nodes of each host, over which GPUs, bridges and NICs are dealt in order
//   cpu:40        between any two NUMA nodes; 40 if it is left out
//   cores:32      of each NUMA node; memory:200 from it to its memory
//   pci:24        from each GPU to its bridge or NUMA node; if it is left out 24, or the GPU's share of the NICs if more
//   bridge:2x48   PCI switches of each host and what each has to its NUMA node; as pci if only the number is given
//
// NUMA nodes and PCI are in the machine where one of nic, numa, cores, memory, pci and bridge is given, or where nothing
// else joins the GPUs.
#pragma once

#include "topology/graph.h"

#include <string_view>

namespace tutti::topology {

/// kInvalidArgument names the word, its place in the line and what was expected.
Result<Graph> parse_synthetic(std::string_view line);

}  // namespace tutti::topology
