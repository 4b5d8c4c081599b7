// libtutti-topology.so's side of machine_service.h.
#include "planner/machine_service.h"

#include "planner/between_hosts.h"
#include "planner/machine_trees.h"
#include "topology/bounds.h"
#include "topology/live.h"
#include "topology/merge.h"
#include "topology/nccl_xml.h"
#include "topology/source.h"
#include "topology/text_form.h"
#include "topology/view.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace tutti::planner {
namespace {

using topology::Graph;
using topology::GraphBuilder;
using topology::kNone;
using topology::Link;
using topology::LinkKind;
using topology::Node;
using topology::NodeKind;

Result<std::string> discover(const std::string& root) {
  topology::LiveOptions options;
  options.root = root;
  options.with_nvml = root.empty();
  TUTTI_TRY_ASSIGN(const Graph graph, topology::discover_live(options));
  return topology::to_text(graph);
}

Result<std::string> read_file(const std::string& path) {
  TUTTI_TRY_ASSIGN(const Graph graph, topology::read_file(path));
  return topology::to_text(graph);
}

/// "# rank 3: node17, numa0, gpu2, processors 0-3"
std::string place_line(const Graph& graph, const RankLook& look, const topology::Place& place) {
  std::string text = fmt::format("# rank {}: {}", look.rank, graph.hosts()[static_cast<std::size_t>(place.host)]);
  if (place.numa != kNone) text += ", " + graph.node(place.numa).name;
  if (place.gpu != kNone) text += ", " + graph.node(place.gpu).name;
  if (!look.seat.empty()) text += ", " + look.seat;
  std::ranges::replace_if(
      text, [](char c) { return static_cast<unsigned char>(c) < 0x20; }, '?');
  return text + "\n";
}

/// Graphs come from other processes: one that cannot be read says nothing.
topology::Look look_of(const RankLook& one) {
  topology::Look look{.rank = one.rank, .host = one.host, .numa = one.numa, .gpu = bus_id_of(one.gpu)};
  look.problem = one.problem;
  if (!one.graph.empty()) {
    auto graph = topology::parse_text(one.graph);
    if (graph.ok()) {
      look.graph = std::move(graph).value();
    } else {
      look.problem = graph.error().message;
    }
  }
  if (one.has_port) {
    constexpr topology::Bandwidth kMegabit = topology::kGigabyte / 8000;
    look.port = topology::Port{one.interface, one.megabits * kMegabit, one.loopback};
  }
  return look;
}

/// Where all looks together break the graph's rules, those that do so beside the ranks' before them are left out.
Result<topology::Merged> merge_what_goes(std::vector<topology::Look> looks) {
  auto all = topology::merge(looks);
  if (all.ok()) return all;
  std::vector<topology::Look> kept = looks;
  for (topology::Look& look : kept) look.graph.reset();
  for (std::size_t i = 0; i < looks.size(); ++i) {
    if (!looks[i].graph) continue;
    kept[i].graph = std::move(looks[i].graph);
    const auto so_far = topology::merge(kept);
    if (so_far.ok()) continue;
    kept[i].graph.reset();
    kept[i].problem = so_far.error().message;
  }
  return topology::merge(std::move(kept));
}

Result<std::string> merge(const std::vector<RankLook>& given) {
  std::vector<topology::Look> looks;
  for (const RankLook& one : given) looks.push_back(look_of(one));
  TUTTI_TRY_ASSIGN(const topology::Merged merged, merge_what_goes(std::move(looks)));
  std::string text = topology::to_text(merged.graph);
  for (const RankLook& one : given)
    text += place_line(merged.graph, one, merged.places[static_cast<std::size_t>(one.rank)]);
  return text;
}

Result<NcclXml> nccl_xml(const std::string& text) {
  TUTTI_TRY_ASSIGN(const Graph graph, topology::parse_text(text));
  NcclXml xml{topology::to_nccl_xml(graph), {}};
  xml.lost = topology::lost_in_nccl_xml(graph, xml.text);
  return xml;
}

std::string counted(std::size_t count, std::string_view one, std::string_view many) {
  return fmt::format("{} {}", count, count == 1 ? one : many);
}

/// "8 x nvlink 450 GB/s" for each kind and bandwidth, the most first.
std::string links_line(const Graph& graph) {
  std::map<std::pair<LinkKind, topology::Bandwidth>, int> counts;
  for (const Link& link : graph.links()) ++counts[{link.kind, link.bandwidth}];
  std::vector<std::pair<int, std::pair<LinkKind, topology::Bandwidth>>> sorted;
  for (const auto& [what, count] : counts) sorted.emplace_back(count, what);
  std::ranges::stable_sort(sorted, std::ranges::greater(), &decltype(sorted)::value_type::first);
  constexpr std::size_t kShown = 6;
  std::string text;
  for (std::size_t i = 0; i < std::min(sorted.size(), kShown); ++i) {
    const auto& [count, what] = sorted[i];
    text += fmt::format("{}{} x {} {:.4g} GB/s", text.empty() ? "" : ", ", count, name_of(what.first),
                        topology::gbps(what.second));
  }
  if (sorted.size() > kShown) text += fmt::format(" and {} kinds more", sorted.size() - kShown);
  return text.empty() ? "no links" : text;
}

Result<std::string> summary(const std::string& text) {
  TUTTI_TRY_ASSIGN(const Graph graph, topology::parse_text(text));
  std::string lines;
  for (std::size_t host = 0; host < graph.hosts().size(); ++host) {
    std::map<NodeKind, std::size_t> counts;
    int cores = 0;
    for (const Node& node : graph.nodes()) {
      if (node.host != static_cast<int>(host)) continue;
      ++counts[node.kind];
      if (node.kind == NodeKind::kNuma) cores += node.facts.cores;
    }
    lines +=
        fmt::format("host {}: {}, {}, {}, {}, {}\n", graph.hosts()[host],
                    counted(counts[NodeKind::kNuma], "NUMA node", "NUMA nodes"),
                    counted(static_cast<std::size_t>(cores), "core", "cores"),
                    counted(counts[NodeKind::kCache], "last-level cache", "last-level caches"),
                    counted(counts[NodeKind::kGpu], "GPU", "GPUs"), counted(counts[NodeKind::kNic], "NIC", "NICs"));
  }
  lines += fmt::format("links, one direction: {}\n", links_line(graph));
  for (const std::string& warning : graph.warnings()) lines += fmt::format("note: {}\n", warning);
  return lines;
}

bool is_wanted(const Node& node, const std::vector<int>& numas) {
  if (node.kind != NodeKind::kNuma || node.host != 0) return false;
  return numas.empty() ? node.facts.cores > 0 : std::ranges::find(numas, node.facts.numa) != numas.end();
}

/// The wanted NUMA nodes and the links between them alone: what is between GPUs carries nothing of host memory.
Result<Graph> processors_of(const Graph& graph, const std::vector<int>& numas) {
  GraphBuilder builder;
  builder.add_host(graph.hosts().front());
  std::vector<int> at(graph.nodes().size(), kNone);
  for (std::size_t i = 0; i < graph.nodes().size(); ++i) {
    const Node& node = graph.nodes()[i];
    if (!is_wanted(node, numas)) continue;
    at[i] = builder.add_node(NodeKind::kNuma, 0, kNone, node.name, node.facts);
    builder.facts(at[i]).cores = std::max(node.facts.cores, 1);  // ranks sit on it
  }
  for (const Link& link : graph.links()) {
    const int from = at[static_cast<std::size_t>(link.from)];
    const int to = at[static_cast<std::size_t>(link.to)];
    if (link.kind == LinkKind::kCpu && from != kNone && to != kNone)
      builder.add_link(from, to, link.kind, link.bandwidth, link.count, link.latency_ns);
  }
  return std::move(builder).finish();
}

std::string parts_text(const topology::PartitionBound& bound, const topology::View& view, const Graph& graph) {
  std::string text;
  for (const std::vector<int>& block : bound.blocks) {
    if (!text.empty()) text += " | ";
    for (std::size_t i = 0; i < block.size(); ++i) {
      const int node = view.nodes[static_cast<std::size_t>(block[i])];
      text += fmt::format("{}{}", i == 0 ? "" : " ", graph.node(node).name);
    }
  }
  return text;
}

Result<HostLinks> host_links(const std::string& text, const std::vector<int>& numas) {
  TUTTI_TRY_ASSIGN(const Graph whole, topology::parse_text(text));
  TUTTI_TRY_ASSIGN(const Graph graph, processors_of(whole, numas));
  HostLinks links;
  bool known = true;
  for (const Node& node : graph.nodes()) {
    links.memory_gbps += topology::gbps(node.facts.memory);
    known = known && node.facts.memory > 0;
  }
  if (!known) links.memory_gbps = 0;
  for (const Link& link : graph.links()) {
    const double gbps = topology::gbps(link.bandwidth);
    if (links.link_gbps == 0 || gbps < links.link_gbps) links.link_gbps = gbps;
  }
  TUTTI_TRY_ASSIGN(const topology::View view, topology::view_of(graph, {.chosen = {}, .all_links = true}));
  const topology::PartitionBound bound = topology::all_reduce_bound(view.network);
  const double rate = bound.rate.to_double() / topology::kGigabyte;
  // Nodes without known links between them say nothing.
  if (!bound.unlimited && rate > 0) {
    links.all_reduce_gbps = rate;
    links.binding = parts_text(bound, view, graph);
  }
  return links;
}

Result<BetweenHosts> between_hosts_of(const std::string& text, const std::vector<RankLook>& looks,
                                      Collective collective) {
  TUTTI_TRY_ASSIGN(const Graph graph, topology::parse_text(text));
  return between_hosts(graph, looks, collective);
}

Result<std::string> trees_of(const std::string& text, const RankPlaces& ranks, int lanes_most) {
  TUTTI_TRY_ASSIGN(const Graph graph, topology::parse_text(text));
  return machine_trees(graph, ranks, lanes_most);
}

Result<bool> gpus_apart_of(const std::string& text, const RankPlaces& ranks) {
  TUTTI_TRY_ASSIGN(const Graph graph, topology::parse_text(text));
  return gpus_apart(graph, ranks);
}

Result<std::vector<int>> gpu_ring_of(const std::string& text, const RankPlaces& ranks) {
  TUTTI_TRY_ASSIGN(const Graph graph, topology::parse_text(text));
  return gpu_ring(graph, ranks);
}

Result<std::vector<GpuDistance>> gpu_distances_of(const std::string& text, const RankPlaces& ranks) {
  TUTTI_TRY_ASSIGN(const Graph graph, topology::parse_text(text));
  return gpu_distances(graph, ranks);
}

constexpr MachineService kService{.version = kMachineServiceVersion,
                                  .discover = discover,
                                  .read_file = read_file,
                                  .merge = merge,
                                  .nccl_xml = nccl_xml,
                                  .summary = summary,
                                  .host_links = host_links,
                                  .between_hosts = between_hosts_of,
                                  .trees = trees_of,
                                  .gpus_apart = gpus_apart_of,
                                  .gpu_ring = gpu_ring_of,
                                  .gpu_distances = gpu_distances_of};

}  // namespace
}  // namespace tutti::planner

extern "C" __attribute__((visibility("default"))) const tutti::planner::MachineService* tutti_machine_service() {
  return &tutti::planner::kService;
}
