// The state while hwloc's tree becomes a machine graph, shared by the three steps: processors and memory
// (hwloc_tree.cpp), PCI devices (hwloc_devices.cpp), link matrices (hwloc_matrices.cpp). For these files only.
#pragma once

#include "topology/hwloc_tree.h"

#include <string>
#include <vector>

namespace tutti::topology {

struct HwlocGraph {
  const HwlocTree& tree;
  GraphBuilder builder;
  std::vector<int> end;      ///< of each object: the index after its last descendant
  std::vector<int> numa_of;  ///< of each object: the NUMA object that it is beside, or kNone
  std::vector<int> node_of;  ///< of each object: its node in the graph, or kNone; of a GPU's PCI device what PCI joins
  std::vector<int> cores;    ///< of NUMA objects: cores that this process may use and that are nearest to it
  int host = 0;
  std::string prefix;                 ///< of names on this host: "" or "h1."
  int only_numa = kNone;              ///< the node of a machine that has no NUMA object
  int any_numa = kNone;               ///< a NUMA node of the machine
  std::vector<int> numas_with_cores;  ///< NUMA objects of the machine, ascending
  int network = kNone;                ///< what NICs of known rate are plugged into, once there is one
  int nv_switch = kNone;              ///< the host's one switch node, once there is one
  std::vector<char> with_xgmi;        ///< of each object: it is in a matrix of xGMI links

  explicit HwlocGraph(const HwlocTree& source) : tree(source) {}
  const HwlocObject& object(int index) const { return tree.objects[static_cast<std::size_t>(index)]; }
  int parent_of(int index) const { return object(index).parent; }
  int numa_of_object(int index) const { return index == kNone ? kNone : numa_of[static_cast<std::size_t>(index)]; }
  int node_of_object(int index) const { return index == kNone ? kNone : node_of[static_cast<std::size_t>(index)]; }
  /// The nearest object of the kind above `index`, or kNone.
  int ancestor(int index, HwlocObject::Kind kind) const;
  /// The node of the NUMA node to put a device at that hangs below `index`: one with cores, if there is one. Warns if
  /// several fit.
  int numa_near(int index, const std::string& what);
};

/// GPUs, NICs and what joins them to the NUMA nodes of the machine at `machine`.
void add_devices(HwlocGraph& graph, int machine);
/// NVLink and xGMI of the machine at `machine`. After its add_devices().
void add_matrices(HwlocGraph& graph, int machine);

}  // namespace tutti::topology
