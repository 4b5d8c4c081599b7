#include "comm/carriers.h"

#include <algorithm>
#include <map>
#include <string_view>

namespace tutti::comm {

schedule::Groups hosts_of(const std::vector<Peer>& peers) {
  std::map<std::string_view, int> numbers;
  schedule::Groups hosts;
  for (const Peer& peer : peers) {
    hosts.push_back(numbers.try_emplace(peer.host, static_cast<int>(numbers.size())).first->second);
  }
  return hosts;
}

HostRanks ranks_of_hosts(const schedule::Groups& hosts) {
  HostRanks ranks;
  for (int rank = 0; rank < static_cast<int>(hosts.size()); ++rank) {
    const auto host = static_cast<std::size_t>(hosts[static_cast<std::size_t>(rank)]);
    if (host >= ranks.size()) ranks.resize(host + 1);
    ranks[host].push_back(rank);
  }
  return ranks;
}

LineRoutes first_routes(const HostRanks& hosts) {
  std::size_t ranks = 0;
  std::size_t fewest = hosts.front().size();
  for (const std::vector<int>& host : hosts) {
    ranks += host.size();
    fewest = std::min(fewest, host.size());
  }
  const auto count = static_cast<int>(hosts.size());
  const LineRoutes doubling(count, LineRoutes::Pattern::kDoubling);
  const std::size_t carried_to = (hosts.size() + fewest - 1) / fewest;
  const bool few = ranks <= kAllWithAllMax || carried_to <= 2 * static_cast<std::size_t>(doubling.rounds());
  return few ? LineRoutes(count, LineRoutes::Pattern::kDirect) : doubling;
}

}  // namespace tutti::comm
