#include "comm/carriers.h"

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

}  // namespace tutti::comm
