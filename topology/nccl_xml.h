// NCCL's topology XML: what NCCL_TOPO_DUMP_FILE writes and NCCL_TOPO_FILE reads, vendors' templates for it, RCCL's files with
// xgmi links, and look-alikes.
//
// What becomes what:
//   <cpu>          a NUMA node; all of a host (one host_hash) are joined pair by pair
//   <pci>          the GPU or NIC in it, joined to what it is in by its link_width and link_speed; else a PCI node. Several
//                  <gpu> or <net> in one <pci> (ranks or partitions of one GPU, ports): a PCI node for the device, and they
//                  below it at 5000 GB/s; the GPUs' links are the device's, once
//   <gpu>          a GPU, named after its dev: "gpu3"; <apu> too
//   <net>          a NIC, named as it is, and joined to the one network by its speed; a <nic> without <net> is one NIC; net="0"
//                  (a port that NCCL merged into another NIC) is none
//   <nvlink>       to a GPU of the file: one direction, as the other GPU lists its own; to a switch: both, and all switches
//                  of the file are one; <xgmi>: the same between AMD GPUs; <c2c>: both directions, GPU and its NUMA node
// In a file without <gpu> (a template), PCI devices of class 0x03 and 0x12 that have nothing below them are the GPUs, and
// those of class 0x02 NICs. The network has no place within one host's bounds: it joins hosts.
//
// Bandwidths are those of bandwidths.h. Attributes that only Tutti writes, and NCCL passes over: gbps="370.8" of <pci>,
// <nvlink>, <xgmi> and <net> wins over the table; switch="h1.switch0" of <nvlink> tells switches apart; cores="64" and
// memory_gbps="204.8" of <cpu>. A file in which some <cpu> has cores may be of a machine without GPUs.
#pragma once

#include "topology/graph.h"

#include <string>
#include <string_view>
#include <vector>

namespace tutti::topology {

/// kInvalidArgument with line, element and reason if the file is beyond use; what it could be read in spite of is in the
/// graph's warnings.
Result<Graph> read_nccl_xml(std::string_view text);

/// The graph in the same form, for NCCL_TOPO_DUMP_FILE: NCCL and read_nccl_xml read it. What the form has no place for is
/// lost: packages, caches, several networks, latencies of all but NICs, CPU links (readers compute them anew).
std::string to_nccl_xml(const Graph& graph);

/// What read_nccl_xml finds less of in `written`, which to_nccl_xml has made of the graph: a sentence for each kind of node and link,
/// for people. Links of GPUs that share a PCI address are an example.
std::vector<std::string> lost_in_nccl_xml(const Graph& graph, std::string_view written);

}  // namespace tutti::topology
