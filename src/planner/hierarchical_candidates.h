// Hierarchical plans for a machine of several hosts: every pattern that can go across.
#pragma once

#include "planner/machine_candidates.h"
#include "planner/routes.h"

#include <vector>

namespace tutti::planner {

/// With what each reaches. Empty where the question names fewer than two hosts. Where the ranks of a host are not equally
/// near to the others, also with the nearest alone talking to them.
std::vector<Proposal> propose_hierarchical(const topology::Network& network, const MachineQuestion& question);

/// What it reaches; nothing if some message has no route. Makes the ranks' programs one by one, so that none is kept.
std::optional<SteadyState> hierarchical_state(const MachineCandidate& candidate, Routes& routes);

}  // namespace tutti::planner
