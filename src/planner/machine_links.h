// A machine as the simulator wants it: the table of its links, and the links that each message crosses.
#pragma once

#include "planner/machine_plan.h"
#include "planner/routes.h"
#include "schedule/protocol_figures.h"
#include "schedule/simulator.h"
#include "topology/graph.h"
#include "topology/view.h"

namespace tutti::planner {

/// By arc of the view's network: bandwidth, class and latency of the graph's links there. Between NUMA nodes all are memory.
LinkTable link_table(const topology::Graph& graph, const topology::View& view);
/// Whether each rank may reach the others' buffers: no network is between them (MachineQuestion::direct).
bool may_be_direct(const LinkTable& table);

/// What a candidate's messages cross, with a protocol's latencies. A message whose ranks no path joins takes the links of
/// none; has_all_routes says beforehand.
class MachineLinks {
 public:
  MachineLinks(const topology::Network& network, LinkTable table);

  bool has_all_routes(const MachineCandidate& candidate);
  /// Whether some message of the candidate crosses a network.
  bool crosses_network(const MachineCandidate& candidate);
  /// For simulate(), with the call's figures but its size. The machine refers to this object and to the protocol; until the
  /// next call of any function here.
  schedule::SimulatedMachine machine(const MachineCandidate& candidate, const schedule::ProtocolFigures& protocol);
  static schedule::SimulatedCall call(const MachineCandidate& candidate, const schedule::ProtocolFigures& protocol);

  /// What a candidate's messages cross; nothing if they have no route.
  LinkPath crossed(const MachineCandidate& candidate, int lane, int from, int to);

  const LinkTable& table() const { return table_; }

 private:
  void take_paths(const MachineCandidate& candidate);
  schedule::MessagePath path(int lane, int from, int to, const schedule::ProtocolFigures& protocol, bool branching);

  LinkTable table_;
  Routes routes_;
};

/// Ranks that share a host's memory, a core each: what a step copies crosses its rank's core and the memory.
schedule::SimulatedMachine host_machine(int ranks, double core_gbps, double memory_gbps,
                                        const schedule::ProtocolFigures& protocol);

}  // namespace tutti::planner
