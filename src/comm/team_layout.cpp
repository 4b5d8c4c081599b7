#include "comm/team_layout.h"

#include <algorithm>
#include <cstddef>

namespace tutti::comm {

std::optional<TeamLayout> TeamLayout::of(const schedule::Groups& of_rank, int rank) {
  TeamLayout layout{.hosts = ranks_of_hosts(of_rank)};
  const std::size_t ranks = layout.hosts.front().size();
  const auto differs = [&](const std::vector<int>& host) { return host.size() != ranks; };
  if (layout.hosts.size() < 2 || ranks < 2 || std::ranges::any_of(layout.hosts, differs)) return std::nullopt;
  layout.host = layout.host_of(rank);
  layout.place = layout.place_of(rank);
  layout.inside = layout.hosts[static_cast<std::size_t>(layout.host)];
  for (const auto& host : layout.hosts) layout.across.push_back(host[static_cast<std::size_t>(layout.place)]);
  return layout;
}

int TeamLayout::host_of(int rank) const {
  const auto has = [&](const std::vector<int>& host) { return std::ranges::binary_search(host, rank); };
  return static_cast<int>(std::ranges::find_if(hosts, has) - hosts.begin());
}

int TeamLayout::place_of(int rank) const {
  const std::vector<int>& host = hosts[static_cast<std::size_t>(host_of(rank))];
  return static_cast<int>(std::ranges::find(host, rank) - host.begin());
}

}  // namespace tutti::comm
