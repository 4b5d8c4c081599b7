// What tutti-topo prints: for people, and as JSON.
#pragma once

#include "planner/machine_plan.h"
#include "topology/graph.h"
#include "topology/view.h"

#include <string>

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
};

/// A few lines: the machine, the bound and what binds it, the plan.
std::string summary(const Planned& planned);
/// The machine's nodes and links, grouped.
std::string in_words(const Planned& planned);
/// The bound's arithmetic, the plan and why it.
std::string explanation(const Planned& planned);
/// Every algorithm beside the bound.
std::string comparison(const Planned& planned);
std::string warnings_text(const Planned& planned);
std::string bandwidths_text();

/// One object: gpus, nics, numa_nodes, ranks, compute, collective, bound_gbps, binding, plan, ring, planning_ms, warnings.
std::string to_json(const Planned& planned);

/// "gpu0-gpu3, gpu6": neighbours in rank order as ranges.
std::string names_text(const Planned& planned, const std::vector<int>& nodes);

}  // namespace tutti::tools
