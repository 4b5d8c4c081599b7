// A bound for more ranks than can be looked at in every way: single hosts and single ranks.
#pragma once

#include "planner/machine_plan.h"

#include <vector>

namespace tutti::planner {

/// What no schedule can exceed, of an all-reduce by the partition into hosts or into ranks, of the others by the cut around one
/// host or one rank. Never below the exact bound; the partition or cut that it names does bind.
Certificate certify_by_hosts(const topology::Network& network, const std::vector<std::vector<int>>& hosts,
                             Collective collective);

}  // namespace tutti::planner
