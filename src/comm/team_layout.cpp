#include "comm/team_layout.h"

#include <algorithm>
#include <iterator>

namespace tutti::comm {
namespace {

/// As far apart as can be: ranks that follow each other are likely to be on GPUs with the same way to the network.
std::vector<int> with_spread_first(const std::vector<int>& host, std::size_t shares) {
  std::vector<int> chosen;
  for (std::size_t i = 0; i < shares; ++i) chosen.push_back(host[i * host.size() / shares]);
  std::vector<int> all = chosen;
  std::ranges::set_difference(host, chosen, std::back_inserter(all));
  return all;
}

}  // namespace

std::optional<TeamLayout> TeamLayout::of(const schedule::Groups& of_rank, int rank) {
  TeamLayout layout{.hosts = ranks_of_hosts(of_rank)};
  const auto size = [](const std::vector<int>& host) { return host.size(); };
  layout.shares = std::ranges::min(layout.hosts, {}, size).size();
  layout.longest = std::ranges::max(layout.hosts, {}, size).size();
  if (layout.hosts.size() < 2 || layout.longest < 2) return std::nullopt;
  for (auto& host : layout.hosts) host = with_spread_first(host, layout.shares);
  layout.host = layout.host_of(rank);
  layout.place = layout.place_of(rank);
  layout.inside = layout.hosts[static_cast<std::size_t>(layout.host)];
  const auto place = static_cast<std::size_t>(layout.place);
  if (place >= layout.shares) return layout;
  for (const auto& host : layout.hosts) layout.across.push_back(host[place]);
  return layout;
}

std::size_t TeamLayout::ranks() const {
  std::size_t all = 0;
  for (const auto& host : hosts) all += host.size();
  return all;
}

int TeamLayout::host_of(int rank) const {
  const auto has = [&](const std::vector<int>& host) { return std::ranges::find(host, rank) != host.end(); };
  return static_cast<int>(std::ranges::find_if(hosts, has) - hosts.begin());
}

int TeamLayout::place_of(int rank) const {
  const std::vector<int>& host = hosts[static_cast<std::size_t>(host_of(rank))];
  return static_cast<int>(std::ranges::find(host, rank) - host.begin());
}

}  // namespace tutti::comm
