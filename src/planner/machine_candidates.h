// What may be worth running on a machine: schedules with the paths that their messages take.
#pragma once

#include "planner/machine_plan.h"
#include "topology/rings.h"

#include <utility>
#include <vector>

namespace tutti::planner {

struct Proposal {
  MachineCandidate candidate;                           ///< without what it reaches
  std::vector<std::pair<int, std::vector<int>>> paths;  ///< with their lanes; without any, messages go the shortest way
};

/// Hosts told apart: by rank its host, all one where the question names none.
std::vector<int> host_of_ranks(const MachineQuestion& question, int ranks);

/// Packed trees of each kind. Two ranks or more.
/// `bound_rate`: of the collective, in kB/s; when it is near, no more lanes are tried.
std::vector<Proposal> propose_trees(const topology::Network& network, const MachineQuestion& question,
                                    double bound_rate);

/// All pairs and, for all-reduce, the double binary tree.
std::vector<Proposal> propose_rows(const topology::Network& network, const MachineQuestion& question);

/// The rings of the packing, which has some.
Proposal propose_rings(const topology::Network& network, const MachineQuestion& question,
                       const topology::RingPacking& packing);

}  // namespace tutti::planner
