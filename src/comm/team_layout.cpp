#include "comm/team_layout.h"

#include "comm/carriers.h"
#include "comm/staged_rounds.h"

#include <algorithm>

namespace tutti::comm {

std::optional<TeamLayout> TeamLayout::of(const schedule::Groups& hosts, int rank) {
  const HostRanks by_host = ranks_of_hosts(hosts);
  const std::size_t ranks = by_host.front().size();
  const auto differs = [&](const std::vector<int>& host) { return host.size() != ranks; };
  if (by_host.size() < 2 || ranks < 2 || std::ranges::any_of(by_host, differs)) return std::nullopt;
  TeamLayout layout;
  for (std::size_t h = 0; h < by_host.size(); ++h) {
    const auto found = std::ranges::find(by_host[h], rank);
    if (found == by_host[h].end()) continue;
    layout.inside = by_host[h];
    layout.host = static_cast<int>(h);
    layout.place = static_cast<int>(found - by_host[h].begin());
  }
  for (const std::vector<int>& host : by_host) layout.across.push_back(host[static_cast<std::size_t>(layout.place)]);
  return layout;
}

std::vector<TeamPart> cut_for_teams(std::size_t count, DataType type, int ranks, std::size_t part_bytes) {
  const auto n = static_cast<std::size_t>(ranks);
  CallArgs shares;
  shares.collective = Collective::kReduceScatter;
  shares.type = type;
  const std::size_t share = elements_per_part(shares, ranks, part_bytes);
  std::vector<TeamPart> parts;
  for (std::size_t first = 0; first < count; first += n * share) {
    TeamPart part{.first = first, .count = std::min(n * share, count - first)};
    part.share = (part.count + n - 1) / n;
    part.is_ragged = part.count != n * part.share;
    parts.push_back(part);
  }
  return parts;
}

}  // namespace tutti::comm
