#include "topology/view.h"

#include "topology/capacities.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace tutti::topology {

namespace {

bool is_fabric(const Link& link) { return link.kind == LinkKind::kNvLink || link.kind == LinkKind::kXgmi; }

/// What may carry data between the chosen nodes: not GPUs that were not chosen, no NICs where there is one host.
class Relays {
 public:
  Relays(const Graph& graph, const ComputeNodes& compute, const std::vector<int>& ranks)
      : allowed_(graph.nodes().size(), 1) {
    std::set<int> hosts;
    for (const int node : ranks) hosts.insert(graph.node(node).host);
    for (std::size_t i = 0; i < allowed_.size(); ++i) {
      const NodeKind kind = graph.nodes()[i].kind;
      const bool between_hosts = kind == NodeKind::kNic || kind == NodeKind::kNetwork;
      if (kind == NodeKind::kGpu || (between_hosts && hosts.size() == 1)) allowed_[i] = 0;
    }
    // Memory of a NUMA node that computes, but not here, is still on the way from its neighbours to others.
    if (compute.kind == ComputeKind::kGpu) {
      for (const int node : compute.nodes) allowed_[static_cast<std::size_t>(node)] = 0;
    }
    for (const int node : ranks) allowed_[static_cast<std::size_t>(node)] = 1;
  }
  bool allow(const Link& link) const {
    return allowed_[static_cast<std::size_t>(link.from)] != 0 && allowed_[static_cast<std::size_t>(link.to)] != 0;
  }

 private:
  std::vector<char> allowed_;
};

/// Between graph nodes, parallel links of several kinds added up.
Capacities capacities_of(const Graph& graph, const Relays& relays, bool fabric_only) {
  Capacities capacities;
  for (const Link& link : graph.links()) {
    if (relays.allow(link) && (!fabric_only || is_fabric(link))) capacities[{link.from, link.to}] += link.bandwidth;
  }
  return capacities;
}

using Neighbours = std::map<int, std::set<int>>;

/// What `start` reaches.
std::set<int> reached_from(const Neighbours& neighbours, int start) {
  std::set<int> reached{start};
  std::vector<int> queue{start};
  for (std::size_t i = 0; i < queue.size(); ++i) {
    const auto found = neighbours.find(queue[i]);
    if (found == neighbours.end()) continue;
    for (const int next : found->second) {
      if (reached.insert(next).second) queue.push_back(next);
    }
  }
  return reached;
}

/// Whether each rank reaches each other one.
bool joins(const Capacities& capacities, const std::vector<int>& ranks) {
  Neighbours there;
  Neighbours back;
  for (const auto& [ends, capacity] : capacities) {
    there[ends.first].insert(ends.second);
    back[ends.second].insert(ends.first);
  }
  for (const Neighbours& neighbours : {there, back}) {
    const std::set<int> reached = reached_from(neighbours, ranks.front());
    if (!std::ranges::all_of(ranks, [&](const int rank) { return reached.contains(rank); })) return false;
  }
  return true;
}

void number_nodes(const Capacities& capacities, const std::vector<int>& ranks, View& view) {
  std::map<int, int> numbers;
  view.nodes = ranks;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    numbers[ranks[rank]] = static_cast<int>(rank);
    view.network.compute.push_back(static_cast<int>(rank));
  }
  std::set<int> others;
  for (const auto& [ends, capacity] : capacities) others.insert({ends.first, ends.second});
  for (const int node : others) {
    if (numbers.try_emplace(node, static_cast<int>(view.nodes.size())).second) view.nodes.push_back(node);
  }
  view.network.nodes = static_cast<int>(view.nodes.size());
  for (const auto& [ends, capacity] : capacities)
    view.network.arcs.push_back({numbers[ends.first], numbers[ends.second], capacity});
}

Result<std::vector<int>> choose(const ComputeNodes& compute, const std::vector<int>& chosen) {
  if (chosen.empty()) return compute.nodes;
  const int count = static_cast<int>(compute.nodes.size());
  std::set<int> places;
  for (const int place : chosen) {
    if (place < 0 || place >= count) {
      return error(Code::kInvalidArgument,
                   fmt::format("{} {} is not there: the machine has {} ({})", name_of(compute.kind), place, count,
                               count == 1 ? "0" : fmt::format("0 to {}", count - 1)));
    }
    if (!places.insert(place).second)
      return error(Code::kInvalidArgument, fmt::format("{} {} is chosen twice", name_of(compute.kind), place));
  }
  std::vector<int> ranks;
  for (const int place : places) ranks.push_back(compute.nodes[static_cast<std::size_t>(place)]);
  return ranks;
}

/// By host, then by the GPUs' numbers on hosts where each has its own.
void order_gpus(const Graph& graph, std::vector<int>& gpus) {
  std::map<int, std::set<int>> numbers;
  std::map<int, std::size_t> counts;
  for (const int gpu : gpus) {
    const Node& node = graph.node(gpu);
    ++counts[node.host];
    if (node.facts.device != kNone) numbers[node.host].insert(node.facts.device);
  }
  std::ranges::stable_sort(gpus, {}, [&](const int gpu) {
    const Node& node = graph.node(gpu);
    const bool numbered = numbers[node.host].size() == counts[node.host];
    return std::pair(node.host, numbered ? node.facts.device : 0);
  });
}

}  // namespace

std::string_view name_of(ComputeKind kind) { return kind == ComputeKind::kGpu ? "gpu" : "numa"; }

ComputeNodes compute_nodes(const Graph& graph) {
  ComputeNodes compute{ComputeKind::kGpu, graph.nodes_of(NodeKind::kGpu)};
  order_gpus(graph, compute.nodes);
  if (!compute.nodes.empty()) return compute;
  compute = {ComputeKind::kNuma, graph.nodes_of(NodeKind::kNuma)};
  const auto has_cores = [&](const int node) { return graph.node(node).facts.cores > 0; };
  // Sources that say nothing of cores say it of no NUMA node.
  if (std::ranges::any_of(compute.nodes, has_cores))
    std::erase_if(compute.nodes, [&](const int node) { return !has_cores(node); });
  std::ranges::stable_sort(compute.nodes, {}, [&](const int node) { return graph.node(node).host; });
  return compute;
}

Result<View> view_of(const Graph& graph, const ViewOptions& options) {
  const ComputeNodes compute = compute_nodes(graph);
  if (compute.nodes.empty()) {
    return error(Code::kInvalidArgument,
                 "nothing on this machine computes: there is no GPU and no NUMA node with cores in its description");
  }
  TUTTI_TRY_ASSIGN(const std::vector<int> ranks, choose(compute, options.chosen));
  View view;
  view.compute = compute.kind;
  view.warnings = graph.warnings();
  const Relays relays(graph, compute, ranks);
  Capacities capacities = capacities_of(graph, relays, true);
  if (options.all_links || ranks.size() < 2 || !joins(capacities, ranks)) {
    view.counted = options.all_links ? LinksCounted::kAllAsked : LinksCounted::kAll;
    capacities = capacities_of(graph, relays, false);
  } else {
    view.counted = LinksCounted::kNvLink;
  }
  drop_dead_ends(capacities, {ranks.begin(), ranks.end()});
  number_nodes(capacities, ranks, view);
  return view;
}

std::vector<std::vector<int>> ranks_by_host(const Graph& graph, const View& view) {
  std::map<int, std::vector<int>> by_host;
  for (const int rank : view.network.compute)
    by_host[graph.node(view.nodes[static_cast<std::size_t>(rank)]).host].push_back(rank);
  std::vector<std::vector<int>> hosts;
  for (auto& [host, ranks] : by_host) hosts.push_back(std::move(ranks));
  return hosts;
}

}  // namespace tutti::topology
