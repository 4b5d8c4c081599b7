// What a machine loses on its way through NCCL's topology XML.
#include "topology/nccl_xml.h"

#include <fmt/format.h>

#include <map>

namespace tutti::topology {

namespace {

struct Sum {
  int links = 0;
  Bandwidth bandwidth = 0;
};

/// Links between CPUs are left out: readers compute them anew.
std::map<LinkKind, Sum> links_by_kind(const Graph& graph) {
  std::map<LinkKind, Sum> sums;
  for (const Link& link : graph.links()) {
    if (link.kind == LinkKind::kCpu || link.kind == LinkKind::kMemory) continue;
    Sum& sum = sums[link.kind];
    ++sum.links;
    sum.bandwidth += link.bandwidth;
  }
  return sums;
}

std::string in_words(const Sum& sum) {
  return sum.links == 0 ? "none" : fmt::format("{} with {:.6g} GB/s in all", sum.links, gbps(sum.bandwidth));
}

}  // namespace

std::vector<std::string> lost_in_nccl_xml(const Graph& graph, std::string_view written) {
  const Result<Graph> again = read_nccl_xml(written);
  if (!again.ok()) return {fmt::format("what is written cannot be read back: {}", again.error().message)};
  std::vector<std::string> lost;
  for (const NodeKind kind : {NodeKind::kGpu, NodeKind::kSwitch, NodeKind::kNic, NodeKind::kNuma}) {
    const std::size_t had = graph.nodes_of(kind).size();
    const std::size_t has = again.value().nodes_of(kind).size();
    if (has < had) lost.push_back(fmt::format("{} nodes of kind {} become {}", had, name_of(kind), has));
  }
  std::map<LinkKind, Sum> kept = links_by_kind(again.value());
  constexpr Bandwidth kRoundings = 100;  // one in so many: figures are written with some digits
  for (const auto& [kind, had] : links_by_kind(graph)) {
    const Sum& has = kept[kind];
    if (has.links >= had.links && has.bandwidth >= had.bandwidth - had.bandwidth / kRoundings) continue;
    lost.push_back(fmt::format("{} links of kind {} become {}", in_words(had), name_of(kind), in_words(has)));
  }
  return lost;
}

}  // namespace tutti::topology
