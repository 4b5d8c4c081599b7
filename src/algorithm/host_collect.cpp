// Gather and scatter by rails: each block crosses once, between the rank that has or wants it and the rank of its place on
// the root's host, which hands it on without storing it. So all of that host's ranks share what crosses, each by its own
// NIC, and each talks to one rank of every other host, where the root would talk to all of them.
//
// From: the relay through the GPU next to the NIC ("PXN") of NCCL 2.12's all-to-all, here at the root's host.
//
// All ranks take the blocks in one order: those that cross come last to a root that gathers, which has its own host's
// meanwhile, and leave first from one that scatters. In one order nobody waits in a circle, and one slot is enough.
#include "algorithm/host_rails.h"

#include <algorithm>
#include <vector>

namespace tutti::algorithm {

namespace {

std::vector<int> root_host_first(const HostRails& rails, int root) {
  std::vector<int> ranks;
  for (int distance = 0; distance < rails.hosts(); ++distance) {
    const std::vector<int>& group = rails.group(around(rails.host_of(root), distance, rails.hosts()));
    ranks.insert(ranks.end(), group.begin(), group.end());
  }
  return ranks;
}

/// The ranks that this one's block passes to the root, both included.
std::vector<int> way_to_root(const HostRails& rails, int rank, int root) {
  std::vector<int> way{rank};
  const auto pass = [&](int next) {
    if (next != way.back()) way.push_back(next);
  };
  if (rails.host_of(rank) != rails.host_of(root)) {
    pass(rails.carrier_towards(rails.host_of(rank), rank));
    pass(rails.carrier_towards(rails.host_of(root), rank));
  }
  pass(root);
  return way;
}

}  // namespace

LaneProgram collect_by_rails(const HostRails& rails, Collective collective, int root, int rank) {
  const bool gathers = collective == Collective::kGather;
  std::vector<int> ranks = root_host_first(rails, root);
  if (!gathers) std::ranges::reverse(ranks);
  LaneProgram lane;
  for (const int owner : ranks) {
    std::vector<int> way = way_to_root(rails, owner, root);
    if (!gathers) std::ranges::reverse(way);
    const auto at = std::ranges::find(way, rank);
    if (at == way.end()) continue;
    const Endpoint begin = input({gathers ? 0 : index(owner)});
    const Endpoint end = output({gathers ? index(owner) : 0});
    const auto hop = [&](int from, int peer) { return from == way.front() ? pull(peer, begin) : message(peer); };
    auto made = step(lane);
    made.from(rank == way.front() ? begin : hop(at[-1], at[-1]));
    made.to(rank == way.back() ? end : hop(rank, at[1]));
  }
  return lane;
}

}  // namespace tutti::algorithm
