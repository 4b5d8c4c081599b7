// From what the ranks see to one graph over all their hosts, and to where each rank sits in it. A pure function of the
// looks: whatever their order, every rank that has them comes to the same graph.
//
// Ranks of a host may see different parts of it (containers, device lists). What the lowest rank sees comes first; the others add
// what it lacks. Nodes are the same if they have the same PCI address, for NUMA nodes the same number of the system's, else if
// they are equally many of their kind before them. A host at which nobody has looked has only the NUMA nodes that its ranks sit on.
//
// Networks are shared by all hosts. A host of several whose looks have no NIC of known speed is joined to the network by the
// interface that its ranks reach the others through.
#pragma once

#include "base/result.h"
#include "topology/graph.h"

#include <optional>
#include <string>
#include <vector>

namespace tutti::topology {

/// A network interface that leads to other hosts.
struct Port {
  std::string interface;    ///< "eth0"
  Bandwidth bandwidth = 0;  ///< in one direction; 0: not known
  bool loopback = false;    ///< the others are on the same machine, made to look like hosts: no wire is between
};

/// What one rank says.
struct Look {
  int rank = 0;
  std::string host = {};  ///< equal for ranks of one host, and only for them
  int numa = kNone;       ///< the system's number of the NUMA node it sits on; kNone: on several, or not known
  std::string gpu = {};   ///< PCI address of the GPU it computes on; empty: none
  std::optional<Graph> graph = {};  ///< what it sees; nothing: it has not looked, or:
  std::string problem = {};         ///< why what it sees is not known; for a warning
  std::optional<Port> port = {};    ///< nothing: there are no other hosts, or it does not say
};

struct Place {
  int host = 0;
  int numa = kNone;  ///< the node
  int gpu = kNone;   ///< the node; ranks may share it

  friend bool operator==(const Place&, const Place&) = default;
};

struct Merged {
  Graph graph;                ///< warnings say where the looks disagree, and which seats are not in it
  std::vector<Place> places;  ///< by rank
};

/// A graph of several hosts (a file) stands for the one of the rank: that of its name, else the one with the same place among the
/// hosts, else the first.
/// kInvalidArgument if the ranks are not 0 to looks - 1, each once, or the graph would break its rules (graph.h).
Result<Merged> merge(std::vector<Look> looks);

}  // namespace tutti::topology
