// What libtutti.so asks its plug-in, libtutti-topology.so, which has hwloc, the XML readers, the machine graph and its bounds: text in,
// text out. So the library itself depends on none of these, and runs without them (docs/decisions/0008-topology-plug-in.md).
//
// Graphs go as topology/text_form.h's text.
#pragma once

#include "base/dtype.h"
#include "base/gpu_distance.h"
#include "base/result.h"

#include <string>
#include <vector>

namespace tutti::planner {

/// Both sides must be built with the same one: what is passed are C++ types.
inline constexpr const char* kMachineServiceVersion = "Tutti 0.1.0, machine service 7";

/// What a rank says of itself and sees (topology/merge.h).
struct RankLook {
  int rank = 0;
  std::string host;
  int numa = -1;          ///< the system's number; -1: none, or several
  std::string gpu;        ///< PCI address; empty: none
  std::string seat;       ///< for people: "processors 0-3"
  std::string graph;      ///< empty: it has not looked, or:
  std::string problem;    ///< why what it sees is not known; for a warning in the graph
  bool has_port = false;  ///< there are other hosts, and:
  std::string interface;  ///< the network interface that leads there; empty: not known
  int megabits = 0;       ///< its speed; 0: not known
  bool loopback = false;  ///< the others are on this machine, made to look like hosts
};

/// Where a host's ranks are, by rank.
struct RankPlaces {
  std::vector<int> numas;         ///< as in RankLook
  std::vector<std::string> gpus;  ///< as in RankLook; none at all: ranks are no GPUs
};

/// What the NUMA nodes that host ranks sit on have between them.
struct HostLinks {
  double memory_gbps = 0;  ///< to their memories together, both ways; 0: some node's is not known
  double link_gbps = 0;    ///< the least between two of them, one direction; 0: fewer than two nodes
  double all_reduce_gbps =
      0;                ///< no all-reduce among ranks on all of them has a higher algorithm bandwidth; 0: no limit
  std::string binding;  ///< the partition that says so: "numa0 | numa1"
};

/// What a host has towards the others, and to its ranks' memory. 0: no limit is known.
struct HostLimits {
  std::string name;
  double out_gbps = 0;
  double in_gbps = 0;
  double memory_gbps = 0;
};

/// What ranks on several hosts have between them: no schedule is faster.
struct BetweenHosts {
  /// Algorithm bandwidth of an all-reduce, all-gather or reduce-scatter (topology/bounds.h); 0: no limit is known, or another collective.
  double gbps = 0;
  std::string binding;            ///< "{ranks 0-6} | {ranks 7-14}: eth0 -> network 1.25, h1.eth0 -> network 1.25"
  std::vector<HostLimits> hosts;  ///< in order of their lowest ranks
};

/// A graph as NCCL's topology XML.
struct NcclXml {
  std::string text;
  std::vector<std::string> lost;  ///< what the form has no place for, a sentence each (topology::lost_in_nccl_xml)
};

struct MachineService {
  const char* version = nullptr;

  /// This machine. `root`: HWLOC_FSROOT, or empty; the GPUs' own driver is asked only without one. kSystem: hwloc fails.
  Result<std::string> (*discover)(const std::string& root) = nullptr;
  /// A file of any known form (topology/source.h). kSystem: it cannot be read; kInvalidArgument: line, element and reason.
  Result<std::string> (*read_file)(const std::string& path) = nullptr;
  /// The graph of all, with a comment line for each rank: where it sits. A look that is no such text, or does not go with the
  /// others, is left out with a warning. kInvalidArgument: as topology::merge.
  Result<std::string> (*merge)(const std::vector<RankLook>& looks) = nullptr;
  /// For NCCL_TOPO_DUMP_FILE.
  Result<NcclXml> (*nccl_xml)(const std::string& graph) = nullptr;
  /// A few lines for people.
  Result<std::string> (*summary)(const std::string& graph) = nullptr;
  /// `numas`: the system's numbers of those of the first host that ranks sit on; empty: all with cores.
  Result<HostLinks> (*host_links)(const std::string& graph, const std::vector<int>& numas) = nullptr;
  /// `graph`: what merge made of these ranks' looks. kInvalidArgument: it is no such graph.
  Result<BetweenHosts> (*between_hosts)(const std::string& graph, const std::vector<RankLook>& looks,
                                        Collective collective) = nullptr;
  /// Text of algorithm/planned_trees.h: what a plan for the graph sends large messages through, in so many lanes.
  /// kInvalidArgument: the graph's compute nodes are not the ranks (machine_trees.h).
  Result<std::string> (*trees)(const std::string& graph, const RankPlaces& ranks, int lanes_most) = nullptr;
  /// Whether some two of the ranks, which are GPUs, have neither a link nor a switch in common. kInvalidArgument: as trees.
  Result<bool> (*gpus_apart)(const std::string& graph, const RankPlaces& ranks) = nullptr;
  /// In which order the best ring visits ranks on GPUs, from rank 0 on; empty: there is none. At most 16. kInvalidArgument: as trees.
  Result<std::vector<int>> (*gpu_ring)(const std::string& graph, const RankPlaces& ranks) = nullptr;
  /// Of ranks on GPUs, each on one of its own: by rank and rank, row by row. kInvalidArgument: as trees.
  Result<std::vector<GpuDistance>> (*gpu_distances)(const std::string& graph, const RankPlaces& ranks) = nullptr;
};

/// The plug-in's one exported function: a MachineService that lives as long as the plug-in.
inline constexpr const char* kMachineServiceSymbol = "tutti_machine_service";
using MachineServiceEntry = const MachineService* (*)();

}  // namespace tutti::planner
