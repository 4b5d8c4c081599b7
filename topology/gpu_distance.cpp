#include "topology/gpu_distance.h"

#include <algorithm>
#include <set>
#include <vector>

namespace tutti::topology {
namespace {

using Nodes = std::set<int>;

bool meet(const Nodes& a, const Nodes& b) {
  return std::ranges::any_of(a, [&](int node) { return b.contains(node); });
}

bool is_fast(LinkKind kind) { return kind == LinkKind::kNvLink || kind == LinkKind::kXgmi; }
bool is_slow(LinkKind kind) { return kind == LinkKind::kPci || kind == LinkKind::kC2c; }

bool is_host_bridge(const Node& node) { return node.facts.model == "host bridge"; }
bool is_switch(const Node& node) { return node.kind == NodeKind::kPci && !is_host_bridge(node); }

template <class Counts>
Nodes next_to(const Graph& graph, int from, const Counts& counts) {
  Nodes found;
  for (const Link& link : graph.links()) {
    if (link.from == from && counts(link.kind)) found.insert(link.to);
  }
  return found;
}

/// What a GPU comes to through PCI switches alone, or host bridges too: these, and NUMA nodes and packages at the end.
Nodes around(const Graph& graph, int gpu, bool with_host) {
  Nodes found;
  for (std::vector<int> open = {gpu}; !open.empty();) {
    const int at = open.back();
    open.pop_back();
    for (const int next : next_to(graph, at, is_slow)) {
      const Node& node = graph.node(next);
      const bool is_end = node.kind == NodeKind::kNuma || node.kind == NodeKind::kPackage;
      if (!is_switch(node) && !(with_host && (is_end || is_host_bridge(node)))) continue;
      if (found.insert(next).second && !is_end) open.push_back(next);
    }
  }
  return found;
}

}  // namespace

GpuDistance gpu_distance(const Graph& graph, int a, int b) {
  if (a == b) return GpuDistance::kSame;
  const auto next = [&](int gpu, auto counts, NodeKind kind) {
    Nodes found = next_to(graph, gpu, counts);
    std::erase_if(found, [&](int node) { return graph.node(node).kind != kind || is_host_bridge(graph.node(node)); });
    return found;
  };
  const bool linked = next_to(graph, a, is_fast).contains(b);
  if (linked || meet(next(a, is_fast, NodeKind::kSwitch), next(b, is_fast, NodeKind::kSwitch))) {
    return GpuDistance::kNvLink;
  }
  if (meet(next(a, is_slow, NodeKind::kPci), next(b, is_slow, NodeKind::kPci))) return GpuDistance::kSwitch;
  if (meet(around(graph, a, false), around(graph, b, false))) return GpuDistance::kSwitches;
  return meet(around(graph, a, true), around(graph, b, true)) ? GpuDistance::kHost : GpuDistance::kSystem;
}

}  // namespace tutti::topology
