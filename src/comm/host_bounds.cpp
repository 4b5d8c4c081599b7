#include "comm/host_bounds.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

namespace tutti::comm {
namespace {

bool holds(const std::vector<int>& ranks, std::uint32_t rank) {
  return std::ranges::binary_search(ranks, static_cast<int>(rank));
}

double us_of(std::uint64_t bytes, double gbps) { return gbps > 0 ? static_cast<double>(bytes) / (gbps * 1e3) : 0; }

/// The bound of all ranks together, which only some collectives have.
void bound_by_partition(const schedule::Request& request, std::uint64_t block_bytes,
                        const planner::BetweenHosts& between, Bound& bound) {
  if (between.gbps <= 0) return;
  const bool one_block = request.collective == Collective::kAllReduce;
  const std::uint64_t bytes = block_bytes * (one_block ? 1 : static_cast<std::uint64_t>(request.ranks));
  bound.links_us = us_of(bytes, between.gbps);
  bound.links_gbps = between.gbps;
  bound.links = fmt::format("links of the hosts: {} allow {:.4g} GB/s", between.binding, between.gbps);
}

}  // namespace

Crossing crossing(const schedule::Request& request, const std::vector<int>& members) {
  const auto inside = static_cast<std::uint64_t>(members.size());
  const std::uint64_t outside = static_cast<std::uint64_t>(request.ranks) - inside;
  if (inside == 0 || outside == 0) return {};
  const bool has_root = holds(members, request.root);
  switch (request.collective) {
    case Collective::kAllReduce: return {1, 1};
    case Collective::kReduce: return has_root ? Crossing{0, 1} : Crossing{1, 0};
    case Collective::kBroadcast: return has_root ? Crossing{1, 0} : Crossing{0, 1};
    case Collective::kReduceScatter: return {outside, inside};
    case Collective::kAllGather: return {inside, outside};
    case Collective::kAllToAll: return {inside * outside, inside * outside};
    case Collective::kGather: return has_root ? Crossing{0, outside} : Crossing{inside, 0};
    case Collective::kScatter: return has_root ? Crossing{outside, 0} : Crossing{0, inside};
    case Collective::kSend:
    case Collective::kReceive: break;
  }
  return {};
}

Bound bound_over_hosts(const schedule::Request& request, std::uint64_t block_bytes,
                       const planner::BetweenHosts& between, const std::vector<std::vector<int>>& hosts) {
  Bound bound;
  bound.over_hosts = true;
  bound_by_partition(request, block_bytes, between, bound);
  for (std::size_t i = 0; i < std::min(hosts.size(), between.hosts.size()); ++i) {
    const planner::HostLimits& host = between.hosts[i];
    const Crossing blocks = crossing(request, hosts[i]);
    for (const bool out : {true, false}) {
      const std::uint64_t bytes = (out ? blocks.leaving : blocks.entering) * block_bytes;
      const double gbps = out ? host.out_gbps : host.in_gbps;
      if (us_of(bytes, gbps) <= bound.links_us) continue;
      bound.links_us = us_of(bytes, gbps);
      bound.links_gbps = gbps;
      bound.links = fmt::format("links of the hosts: {} has to {} {}, and has {:.4g} GB/s", host.name,
                                out ? "send" : "receive", bytes_text(bytes), gbps);
    }
    std::uint64_t moved = 0;
    for (const int rank : hosts[i])
      moved += schedule::input_blocks(request, rank) + schedule::output_blocks(request, rank);
    if (us_of(moved * block_bytes, host.memory_gbps) <= bound.memory_us) continue;
    bound.bytes = moved * block_bytes;
    bound.memory_us = us_of(bound.bytes, host.memory_gbps);
    bound.memory_gbps = host.memory_gbps;
    bound.memory_host = host.name;
  }
  return bound;
}

}  // namespace tutti::comm
