// What tutti-topo prints: for people, and as JSON.
#pragma once

#include "planner/machine_plan.h"
#include "planner/machine_price.h"
#include "topology/graph.h"
#include "topology/view.h"

#include <string>
#include <vector>

namespace tutti::tools {

/// A machine with its plan.
struct Planned {
  std::string name;  ///< of the machine
  topology::Graph graph;
  topology::View view;
  planner::MachinePlan plan;
  double planning_ms = 0;

  /// Of a node of the view's network.
  const std::string& name_of(int node) const { return graph.node(view.nodes[static_cast<std::size_t>(node)]).name; }
  /// "gpu0 -> gpu1", or "memory": what limits the candidate.
  std::string full_first(const planner::MachineCandidate& candidate) const;
};

/// A few lines: the machine, the bound and what binds it, the plan.
std::string summary(const Planned& planned);
/// Limits beside the bound, 0 where there is none.
struct OtherLimits {
  double nvls_gbps = 0;       ///< of an all-reduce, if the one switch that joins all ranks adds and copies
  double nccl_nvls_gbps = 0;  ///< what NCCL's way of having it add and copy reaches
  double memory_gbps = 0;     ///< among NUMA nodes whose memories' bandwidths are known
  double hop_us = 0;          ///< of a line, between hosts where there are several
  int hops_at_once = 0;       ///< where each rank can read all others at once
  int hops_in_turn = 0;       ///< where it talks to one at a time
  double at_once_us = 0;
  double in_turn_us = 0;  ///< between hosts no more of them than there have to be
};
OtherLimits other_limits(const Planned& planned);
/// The machine's nodes and links, grouped.
std::string in_words(const Planned& planned);
/// The bound's arithmetic, the plan and why it.
std::string explanation(const Planned& planned);
/// Every algorithm beside the bound.
std::string comparison(const Planned& planned);
/// Which of them is the cheapest, by size.
std::string by_size(const Planned& planned);
/// What messages cross, for prices.
planner::Wire wire_of(const topology::View& view);
std::vector<planner::WireCosts> wire_costs_of(const Planned& planned);
/// "half", "4/5": what is left of a memory's bandwidth where each input is read and each output written once.
std::string part_of_memory(const Planned& planned);
std::string warnings_text(const Planned& planned);
std::string bandwidths_text();
/// A list of objects: link, gbps, source.
std::string bandwidths_json();

struct Simulated;

/// One object: gpus, nics, numa_nodes, ranks, compute, collective, bound_gbps, binding, plan, ring, planning_ms, warnings; and
/// simulation, where there is one.
std::string to_json(const Planned& planned, const Simulated* simulated = nullptr);
/// Of ranks on a host's memory: ranks, collective, simulation.
std::string to_json(const Simulated& simulated);

/// The whole machine with its plan as SVG.
std::string drawing(const Planned& planned);
/// "8 GPUs (H100), 4 NICs, 2 NUMA nodes"
std::string machine_line(const Planned& planned);
/// "8 GPUs"
std::string ranks_are(const topology::View& view);
/// "NVLink or xGMI alone, which joins them all"
std::string links_counted(const topology::View& view);

/// "gpu0-gpu3, gpu6": neighbours in rank order as ranges.
std::string names_text(const Planned& planned, const std::vector<int>& nodes);

}  // namespace tutti::tools
