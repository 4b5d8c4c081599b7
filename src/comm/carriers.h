// Which ranks carry between hosts what all ranks are to know: of any two hosts one rank each. Those between whose hosts it goes from the start
// have a connection for data from the start; other pairs of ranks get one when they need it (late_ties.h).
#pragma once

#include "comm/bootstrap.h"
#include "comm/line_routes.h"
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

/// The rank that carries between its own host and another. Between hosts of equally many ranks both are at the same place of their hosts.
inline int carrier(const HostRanks& hosts, int own_host, int other_host) {
  const std::vector<int>& here = hosts[static_cast<std::size_t>(own_host)];
  return here[static_cast<std::size_t>(own_host + other_host) % here.size()];
}

/// By which ways it goes from the start, and among more than kAllWithAllMax ranks ever after: directly as long as no rank carries to more than
/// two other hosts for each round that doubling has, and so to 2 log2 of all at most; else by doubling. By usual prices a message that a rank
/// sends after another takes half as long as one that waits for another.
LineRoutes first_routes(const HostRanks& hosts);

}  // namespace tutti::comm
