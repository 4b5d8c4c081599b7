#include "planner/between_hosts.h"

#include "planner/machine_plan.h"
#include "planner/many_ranks.h"
#include "planner/seats.h"
#include "topology/bandwidths.h"
#include "topology/bounds.h"
#include "topology/capacities.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <map>
#include <set>
#include <utility>

namespace tutti::planner {
namespace {

using topology::Arc;
using topology::Bandwidth;
using topology::Capacities;
using topology::Graph;
using topology::kNone;
using topology::Node;
using topology::NodeKind;

/// What ranks are joined to where they sit with: a limit near this says nothing of the machine.
constexpr Bandwidth kNoLimit = topology::kDeviceBandwidth;

bool says_something(double gbps) { return gbps > 0 && gbps < topology::gbps(kNoLimit) / 2; }

/// By rank the graph's nodes that it sits on.
class Seats {
 public:
  Seats(const Graph& graph, const std::vector<RankLook>& looks) : graph_(graph) {
    for (const RankLook& look : looks) {
      const auto [found, added] = numbers_.try_emplace(look.host, static_cast<int>(hosts.size()));
      if (added) hosts.emplace_back();
      hosts[static_cast<std::size_t>(found->second)].push_back(look.rank);
      of_rank.push_back(seat_of(look, found->second));
    }
  }

  std::vector<std::vector<int>> hosts;
  std::vector<std::vector<int>> of_rank;

 private:
  std::vector<int> seat_of(const RankLook& look, int host) const {
    std::vector<int> numas;
    std::vector<int> all;
    bool cores = false;
    const std::string gpu = bus_id_of(look.gpu);
    for (std::size_t i = 0; i < graph_.nodes().size(); ++i) {
      const Node& node = graph_.nodes()[i];
      if (node.host != host || node.kind == NodeKind::kNetwork) continue;
      const auto index = static_cast<int>(i);
      if (node.kind == NodeKind::kGpu && !gpu.empty() && node.facts.bus_id == gpu) return {index};
      all.push_back(index);
      if (node.kind != NodeKind::kNuma) continue;
      numas.push_back(index);
      cores = cores || node.facts.cores > 0;
    }
    for (const int numa : numas)
      if (look.numa != kNone && graph_.node(numa).facts.numa == look.numa) return {numa};
    if (cores) std::erase_if(numas, [&](int numa) { return graph_.node(numa).facts.cores == 0; });
    return numas.empty() ? all : numas;
  }

  const Graph& graph_;
  std::map<std::string, int> numbers_;
};

Capacities capacities_of(const Graph& graph, const std::set<int>& seats) {
  const auto carries = [&](int index) { return graph.node(index).kind != NodeKind::kGpu || seats.contains(index); };
  Capacities capacities;
  for (const topology::Link& link : graph.links()) {
    if (carries(link.from) && carries(link.to)) capacities[{link.from, link.to}] += link.bandwidth;
  }
  topology::drop_dead_ends(capacities, seats);
  return capacities;
}

/// "eth0 -> network 1.25, ..." of the links that leave the set, the thickest first.
std::string links_leaving(const std::vector<std::vector<int>>& sets, const RankNetwork& ranks, const Graph& graph) {
  constexpr std::size_t kNamed = 4;
  std::vector<const Arc*> leaving;
  for (const std::vector<int>& set : sets) {
    const auto inside = [&](int node) { return std::ranges::binary_search(set, node); };
    for (const Arc& arc : ranks.network.arcs)
      if (inside(arc.from) && !inside(arc.to)) leaving.push_back(&arc);
  }
  std::ranges::stable_sort(leaving, std::ranges::greater(), &Arc::capacity);
  const auto name = [&](int node) {
    const int known = ranks.nodes[static_cast<std::size_t>(node)];
    return known == kNone ? fmt::format("rank {}", node) : graph.node(known).name;
  };
  std::string text;
  for (std::size_t i = 0; i < std::min(leaving.size(), kNamed); ++i)
    text += fmt::format("{}{} -> {} {:.4g}", i == 0 ? "" : ", ", name(leaving[i]->from), name(leaving[i]->to),
                        topology::gbps(leaving[i]->capacity));
  if (leaving.size() > kNamed) text += fmt::format(" and {} links more", leaving.size() - kNamed);
  return text;
}

std::string block_text(const std::vector<int>& block) {
  return fmt::format("{{{} {}}}", block.size() == 1 ? "rank" : "ranks", ranks_text(block));
}

std::string partition_text(const topology::PartitionBound& bound, const RankNetwork& ranks, const Graph& graph) {
  constexpr std::size_t kNamed = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(bound.blocks.size(), kNamed); ++i)
    text += (i == 0 ? "" : " | ") + block_text(bound.blocks[i]);
  if (bound.blocks.size() > kNamed) text += fmt::format(" and {} more", bound.blocks.size() - kNamed);
  // What enters is the least where the two directions differ: its links are not the ones that leave.
  if (bound.form == topology::PartitionBound::Form::kIn) return text;
  std::vector<std::vector<int>> sets = bound.sets;
  if (bound.form == topology::PartitionBound::Form::kCut) sets.resize(1);
  return text + ": " + links_leaving(sets, ranks, graph);
}

std::string cut_text(const std::vector<int>& set, bool leaving, const RankNetwork& ranks, const Graph& graph) {
  std::vector<int> inside, outside, rest;
  const auto count = static_cast<int>(ranks.network.compute.size());
  for (int node = 0; node < ranks.network.nodes; ++node) {
    const bool in = std::ranges::binary_search(set, node);
    if (!in) rest.push_back(node);
    if (node < count) (in ? inside : outside).push_back(node);
  }
  if (!leaving) std::swap(inside, outside);
  return fmt::format("{} to {}: {}", block_text(inside), block_text(outside),
                     links_leaving({leaving ? set : rest}, ranks, graph));
}

/// To the memories of the NUMA nodes that its ranks sit on, both ways; 0: some is not known.
double memory_of(const Graph& graph, const Seats& seats, const std::vector<int>& members) {
  std::set<int> numas;
  for (const int rank : members)
    for (const int seat : seats.of_rank[static_cast<std::size_t>(rank)]) numas.insert(seat);
  double sum = 0;
  for (const int node : numas) {
    if (graph.node(node).kind != NodeKind::kNuma || graph.node(node).facts.memory <= 0) return 0;
    sum += topology::gbps(graph.node(node).facts.memory);
  }
  return sum;
}

Result<RankNetwork> network_of(const Graph& graph, const Seats& seats) {
  RankNetwork ranks;
  ranks.hosts = seats.hosts;
  const int count = static_cast<int>(seats.of_rank.size());
  std::set<int> used;
  for (int rank = 0; rank < count; ++rank) {
    const std::vector<int>& seat = seats.of_rank[static_cast<std::size_t>(rank)];
    if (seat.empty())
      return error(Code::kInvalidArgument, fmt::format("nothing is known of the host of rank {}", rank));
    used.insert(seat.begin(), seat.end());
    ranks.network.compute.push_back(rank);
    ranks.nodes.push_back(kNone);
  }
  const Capacities capacities = capacities_of(graph, used);
  std::set<int> others = used;
  for (const auto& [ends, capacity] : capacities) others.insert({ends.first, ends.second});
  std::map<int, int> numbers;
  for (const int node : others) {
    numbers[node] = static_cast<int>(ranks.nodes.size());
    ranks.nodes.push_back(node);
  }
  ranks.network.nodes = static_cast<int>(ranks.nodes.size());
  for (int rank = 0; rank < count; ++rank) {
    for (const int node : seats.of_rank[static_cast<std::size_t>(rank)]) {
      ranks.network.arcs.push_back({rank, numbers[node], kNoLimit});
      ranks.network.arcs.push_back({numbers[node], rank, kNoLimit});
    }
  }
  for (const auto& [ends, capacity] : capacities)
    ranks.network.arcs.push_back({numbers[ends.first], numbers[ends.second], capacity});
  return ranks;
}

/// Else the exact bound, a minimum cut for each rank several times over, takes seconds: then single hosts and ranks are looked at.
bool is_small(const topology::Network& network) {
  constexpr std::size_t kRanksMax = 128;
  return network.compute.size() <= kRanksMax && network.nodes <= kPlannedNodesMax &&
         network.arcs.size() <= static_cast<std::size_t>(kPlannedArcsMax);
}

Status check(const Graph& graph, const std::vector<RankLook>& looks) {
  std::set<std::string> hosts;
  for (std::size_t i = 0; i < looks.size(); ++i) {
    if (looks[i].rank != static_cast<int>(i))
      return error(Code::kInvalidArgument, fmt::format("rank {} comes where rank {} is wanted", looks[i].rank, i));
    hosts.insert(looks[i].host);
  }
  if (hosts.size() != graph.hosts().size())
    return error(Code::kInvalidArgument,
                 fmt::format("the graph has {} hosts, the ranks are on {}", graph.hosts().size(), hosts.size()));
  return {};
}

}  // namespace

std::string bus_id_of(std::string_view text) {
  std::string id(text);
  std::ranges::transform(id, id.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return id;
}

Result<RankNetwork> rank_network(const Graph& graph, const std::vector<RankLook>& looks) {
  TUTTI_TRY(check(graph, looks));
  return network_of(graph, Seats(graph, looks));
}

Result<BetweenHosts> between_hosts(const Graph& graph, const std::vector<RankLook>& looks, Collective collective) {
  TUTTI_TRY(check(graph, looks));
  const Seats seats(graph, looks);
  TUTTI_TRY_ASSIGN(const RankNetwork ranks, network_of(graph, seats));
  if (ranks.network.nodes > kHostedNodesMax || ranks.network.arcs.size() > static_cast<std::size_t>(kHostedArcsMax))
    return error(Code::kInvalidArgument,
                 fmt::format("{} nodes: bounds are computed for at most {}", ranks.network.nodes, kHostedNodesMax));
  BetweenHosts found;
  const topology::Network back = topology::reversed(ranks.network);
  for (std::size_t host = 0; host < ranks.hosts.size(); ++host) {
    const std::vector<int>& members = ranks.hosts[host];
    const auto limit = [&](const topology::Network& network) {
      const double gbps = static_cast<double>(topology::block_cut(network, members).capacity) / topology::kGigabyte;
      return gbps < topology::gbps(kNoLimit) ? gbps : 0;
    };
    found.hosts.push_back({graph.hosts()[host], limit(ranks.network), limit(back), memory_of(graph, seats, members)});
  }
  const bool all_reduce = collective == Collective::kAllReduce;
  const bool all_gather = collective == Collective::kAllGather;
  if (!all_reduce && !all_gather && collective != Collective::kReduceScatter) return found;
  const Certificate certificate =
      is_small(ranks.network)
          ? certify(ranks.network, {.collective = collective, .lanes_max = 0, .hosts = ranks.hosts, .direct = false})
          : certify_by_hosts(ranks.network, ranks.hosts, collective);
  if (certificate.unlimited || !says_something(certificate.gbps)) return found;
  found.gbps = certificate.gbps;
  found.binding = all_reduce ? partition_text(certificate.partition, ranks, graph)
                             : cut_text(certificate.cut.nodes, all_gather, ranks, graph);
  return found;
}

}  // namespace tutti::planner
