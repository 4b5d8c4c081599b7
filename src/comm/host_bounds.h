// What a call of ranks on several hosts takes at least: by what each host has to send and to receive, and by what its ranks read and write.
#pragma once

#include "comm/certificate.h"
#include "comm/comm.h"
#include "planner/machine_service.h"
#include "schedule/schedule.h"

#include <cstdint>
#include <vector>

namespace tutti::comm {

/// Blocks of the call that have to leave and to enter the memory of `members` (ranks, ascending), whatever the schedule.
struct Crossing {
  std::uint64_t leaving = 0;
  std::uint64_t entering = 0;
};
Crossing crossing(const schedule::Request& request, const std::vector<int>& members);

/// `hosts`: ranks by host, as between.hosts has them.
Bound bound_over_hosts(const schedule::Request& request, std::uint64_t block_bytes,
                       const planner::BetweenHosts& between, const std::vector<std::vector<int>>& hosts);

}  // namespace tutti::comm
