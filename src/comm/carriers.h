// Which ranks carry between hosts what all ranks are to know: of any two hosts one rank each. They have a connection for data from the start;
// other pairs of ranks get one when they need it (late_ties.h).
#pragma once

#include "comm/bootstrap.h"
#include "schedule/schedule.h"

#include <vector>

namespace tutti::comm {

/// Over hosts up to so many ranks all watch each other, and calls may be one-way, in which each rank speaks with each: both take a connection
/// for each pair.
inline constexpr int kAllWithAllMax = 16;

/// By rank: its host, numbered by their lowest ranks.
schedule::Groups hosts_of(const std::vector<Peer>& peers);

/// By host, in rank order.
using HostRanks = std::vector<std::vector<int>>;
HostRanks ranks_of_hosts(const schedule::Groups& hosts);

/// The rank that carries between its own host and another.
inline int carrier(const HostRanks& hosts, int own_host, int other_host) {
  const std::vector<int>& here = hosts[static_cast<std::size_t>(own_host)];
  return here[static_cast<std::size_t>(other_host) % here.size()];
}

}  // namespace tutti::comm
