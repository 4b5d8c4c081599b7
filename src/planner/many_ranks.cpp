#include "planner/many_ranks.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace tutti::planner {

namespace {

using topology::BlockCut;
using topology::Network;
using topology::Rational;

/// The rank by itself. Its least cut may be further out; this one is as valid.
std::vector<BlockCut> around_ranks(const Network& network) {
  std::vector<BlockCut> cuts;
  for (const int rank : network.compute) cuts.push_back({0, {rank}});
  for (const topology::Arc& arc : network.arcs) {
    if (static_cast<std::size_t>(arc.from) < cuts.size())
      cuts[static_cast<std::size_t>(arc.from)].capacity += arc.capacity;
  }
  return cuts;
}

std::vector<BlockCut> around_hosts(const Network& network, const std::vector<std::vector<int>>& hosts) {
  std::vector<BlockCut> cuts;
  for (std::vector<int> host : hosts) {
    std::ranges::sort(host);
    cuts.push_back(topology::block_cut(network, host));
  }
  return cuts;
}

std::vector<int> ranks_in(const std::vector<int>& nodes, std::size_t ranks) {
  std::vector<int> inside;
  std::ranges::copy_if(nodes, std::back_inserter(inside),
                       [&](int node) { return static_cast<std::size_t>(node) < ranks; });
  return inside;
}

topology::PartitionBound partition_into(std::vector<BlockCut> cuts, std::size_t ranks) {
  topology::PartitionBound bound;
  topology::Wide sum = 0;
  for (BlockCut& cut : cuts) {
    sum += cut.capacity;
    bound.blocks.push_back(ranks_in(cut.nodes, ranks));
    bound.sets.push_back(std::move(cut.nodes));
  }
  bound.rate = Rational(sum, 2 * (static_cast<topology::Wide>(cuts.size()) - 1));
  return bound;
}

/// All but the inside of a cut has to be left, or entered, by what belongs to it.
topology::CutBound least_cut(const std::vector<BlockCut>& cuts, const Network& network) {
  const std::size_t ranks = network.compute.size();
  const BlockCut* tightest = nullptr;
  topology::CutBound least;
  for (const BlockCut& cut : cuts) {
    const auto outside = static_cast<topology::Wide>(ranks - ranks_in(cut.nodes, ranks).size());
    const Rational rate(cut.capacity * static_cast<topology::Wide>(ranks), outside);
    if (tightest != nullptr && rate >= least.rate) continue;
    tightest = &cut;
    least.rate = rate;
  }
  std::vector<char> inside(static_cast<std::size_t>(network.nodes), 0);
  for (const int node : tightest->nodes) inside[static_cast<std::size_t>(node)] = 1;
  for (int node = 0; node < network.nodes; ++node) {
    if (inside[static_cast<std::size_t>(node)] == 0) least.nodes.push_back(node);
  }
  return least;
}

}  // namespace

Certificate certify_by_hosts(const Network& network, const std::vector<std::vector<int>>& hosts,
                             Collective collective) {
  Certificate certificate;
  certificate.by_hosts = true;
  const std::size_t ranks = network.compute.size();
  // What enters a set leaves the reversed network's.
  const Network counted = collective == Collective::kAllGather ? topology::reversed(network) : network;
  std::vector<BlockCut> of_ranks = around_ranks(counted);
  std::vector<BlockCut> of_hosts = around_hosts(counted, hosts);
  if (collective == Collective::kAllReduce) {
    topology::PartitionBound by_rank = partition_into(std::move(of_ranks), ranks);
    topology::PartitionBound by_host = partition_into(std::move(of_hosts), ranks);
    certificate.partition = by_host.rate < by_rank.rate ? std::move(by_host) : std::move(by_rank);
    certificate.gbps = certificate.partition.rate.to_double() / topology::kGigabyte;
    return certificate;
  }
  of_hosts.insert(of_hosts.end(), of_ranks.begin(), of_ranks.end());
  certificate.cut = least_cut(of_hosts, network);
  certificate.gbps = certificate.cut.rate.to_double() / topology::kGigabyte;
  return certificate;
}

}  // namespace tutti::planner
