#include "tools/topo_report.h"

#include "planner/machine_links.h"
#include "topology/bandwidths.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>

namespace tutti::tools {
namespace {

using planner::MachineCandidate;
using planner::MachinePlan;
using topology::NodeKind;

std::string counted(std::size_t count, std::string_view one, std::string_view many) {
  return fmt::format("{} {}", count, count == 1 ? one : many);
}

/// Slow links have rates too.
std::string number(double gbps) {
  return gbps < 0.1 && gbps > 0 ? fmt::format("{:.3g}", gbps) : fmt::format("{:.1f}", gbps);
}

/// The models of the GPUs, once each.
std::string gpu_models(const topology::Graph& graph) {
  std::vector<std::string> models;
  for (const int gpu : graph.nodes_of(NodeKind::kGpu)) {
    const topology::Facts& facts = graph.node(gpu).facts;
    std::string model = facts.model;
    if (model.empty() && facts.sm > 0) model = fmt::format("sm {}", facts.sm);
    if (model.empty()) model = facts.gcn;
    if (!model.empty() && std::ranges::find(models, model) == models.end()) models.push_back(std::move(model));
  }
  constexpr std::size_t kShownMax = 2;
  if (models.size() > kShownMax) return fmt::format(" ({} kinds)", models.size());
  return models.empty() ? "" : fmt::format(" ({})", fmt::join(models, ", "));
}

std::string block_text(const Planned& planned, const std::vector<std::vector<int>>& blocks) {
  const bool single = std::ranges::all_of(blocks, [](const auto& block) { return block.size() == 1; });
  if (single) return fmt::format("{} blocks, each rank by itself", blocks.size());
  std::string text = fmt::format("{} blocks: ", blocks.size());
  constexpr std::size_t kBlocksMax = 16;
  for (std::size_t i = 0; i < std::min(blocks.size(), kBlocksMax); ++i)
    text += fmt::format("{}{{{}}}", i == 0 ? "" : " ", names_text(planned, blocks[i]));
  if (blocks.size() > kBlocksMax) text += fmt::format(" and {} more", blocks.size() - kBlocksMax);
  return text;
}

std::string binding_text(const Planned& planned) {
  const planner::Certificate& certificate = planned.plan.certificate;
  if (certificate.by_memory()) return fmt::format("bound by {} of the slowest memory", part_of_memory(planned));
  if (planned.plan.question.collective == Collective::kAllReduce)
    return "bound by the partition into " + block_text(planned, certificate.partition.blocks);
  const bool leaves = planned.plan.question.collective == Collective::kAllGather;
  return fmt::format("bound by what can {} {{{}}}", leaves ? "leave" : "enter",
                     names_text(planned, certificate.cut.nodes));
}

/// "8 B", "64 KB"
std::string bytes_text(std::uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KB", "MB", "GB"};
  std::size_t unit = 0;
  for (; unit + 1 < std::size(kUnits) && bytes >= 1024; ++unit) bytes /= 1024;
  return fmt::format("{} {}", bytes, kUnits[unit]);
}

std::string plan_line(const MachineCandidate& candidate) {
  return fmt::format("{}, {}", candidate.label(), counted(static_cast<std::size_t>(candidate.lanes), "lane", "lanes"));
}

std::string rings_line(const MachinePlan& plan) {
  if (!plan.with_rings) return "  rings      -          not looked for among so many ranks\n";
  const std::string limit =
      plan.rings_are_best() ? "" : fmt::format("; no rings exceed {} GB/s", number(plan.ring_limit_gbps));
  if (plan.ring_gbps == 0)
    return fmt::format("  rings      none       no ring {}{}\n",
                       limit.empty() ? "goes through all ranks" : "through all ranks was found", limit);
  return fmt::format("  rings  {:>8} GB/s  the best {}: {:.1f}% of the bound{}\n", number(plan.ring_gbps),
                     limit.empty() ? "there are" : "found", 100 * plan.ring_gbps / plan.certificate.gbps, limit);
}

}  // namespace

std::string machine_line(const Planned& planned) {
  const topology::Graph& graph = planned.graph;
  const auto count = [&](NodeKind kind) { return graph.nodes_of(kind).size(); };
  std::string line;
  if (graph.hosts().size() > 1) line += counted(graph.hosts().size(), "host", "hosts") + ", ";
  line += counted(count(NodeKind::kGpu), "GPU", "GPUs") + gpu_models(graph);
  if (count(NodeKind::kSwitch) > 0) line += ", " + counted(count(NodeKind::kSwitch), "NVSwitch", "NVSwitches");
  line += ", " + counted(count(NodeKind::kNic), "NIC", "NICs");
  line += ", " + counted(count(NodeKind::kNuma), "NUMA node", "NUMA nodes");
  return line;
}

std::string links_counted(const topology::View& view) {
  switch (view.counted) {
    case topology::LinksCounted::kNvLink: return "NVLink or xGMI alone, which joins them all";
    case topology::LinksCounted::kAllAsked: return "all links";
    case topology::LinksCounted::kAll: break;
  }
  return "all links";
}

std::string ranks_are(const topology::View& view) {
  const auto ranks = static_cast<std::size_t>(view.ranks());
  return view.compute == topology::ComputeKind::kGpu ? counted(ranks, "GPU", "GPUs")
                                                     : counted(ranks, "NUMA node", "NUMA nodes");
}

std::string names_text(const Planned& planned, const std::vector<int>& nodes) {
  std::string text;
  constexpr int kNamesMax = 32;
  int named = 0;
  for (std::size_t i = 0; i < nodes.size();) {
    if (++named > kNamesMax) return text + fmt::format(" and {} more", nodes.size() - i);
    std::size_t last = i;
    while (last + 1 < nodes.size() && nodes[last + 1] == nodes[last] + 1 && nodes[last + 1] < planned.plan.ranks)
      ++last;
    if (last < i + 2) last = i;  // two are named
    text += fmt::format("{}{}", text.empty() ? "" : " ", planned.name_of(nodes[i]));
    if (last > i) text += fmt::format("..{}", planned.name_of(nodes[last]));
    i = last + 1;
  }
  return text;
}

std::string summary(const Planned& planned) {
  const MachinePlan& plan = planned.plan;
  std::string text = fmt::format("{}: {}\n", planned.name, machine_line(planned));
  text += fmt::format("{} of {} over {}\n\n", name_of(plan.question.collective), ranks_are(planned.view),
                      links_counted(planned.view));
  if (plan.certificate.unlimited) {
    text += "  One rank: nothing has to move, so there is no bound and nothing to plan.\n";
    return text;
  }
  if (plan.certificate.gbps == 0) {
    text += fmt::format("  More than {} ranks: neither bound nor plan is worked out.\n", planner::kPlannedRanksMax);
    return text;
  }
  const MachineCandidate& chosen = plan.chosen();
  text += fmt::format("  bound  {:>8} GB/s  {}\n", number(plan.certificate.gbps), binding_text(planned));
  text += fmt::format("  plan   {:>8} GB/s  {}: {:.1f}% of the bound{}\n", number(chosen.gbps), plan_line(chosen),
                      100 * chosen.ratio, chosen.waits ? ", if its rounds did not wait for one another" : "");
  return text + rings_line(plan);
}

std::string comparison(const Planned& planned) {
  const MachinePlan& plan = planned.plan;
  if (plan.certificate.unlimited || plan.certificate.gbps == 0) return "";
  std::size_t width = 12;
  for (const MachineCandidate& candidate : plan.candidates) width = std::max(width, candidate.label().size());
  std::string text = fmt::format("  {:<{}}{:>8}{:>7}{:>10}{:>11}  {}\n", "algorithm", width, "lanes", "hops", "GB/s",
                                 "of bound", "full first");
  for (const MachineCandidate& candidate : plan.candidates) {
    text += fmt::format("  {:<{}}{:>8}{:>7}{:>10}{:>10.1f}%  {}{}\n", candidate.label(), width, candidate.lanes,
                        candidate.hops, number(candidate.gbps), 100 * candidate.ratio, planned.full_first(candidate),
                        &candidate == &plan.chosen() ? "   the plan" : "");
  }
  const MachineCandidate* ring = plan.find("ring");
  if (ring != nullptr && plan.ring_gbps > 1.01 * ring->gbps) {
    text += fmt::format("  {:<{}}{:>8}{:>7}{:>10}{:>10.1f}%  with any number of lanes{}\n", "rings", width, "any",
                        ring->hops, number(plan.ring_gbps), 100 * plan.ring_gbps / plan.certificate.gbps,
                        plan.rings_are_best() ? "" : ", or more");
  }
  text +=
      fmt::format("  {:<{}}{:>8}{:>7}{:>10}{:>10.1f}%\n", "bound", width, "", "", number(plan.certificate.gbps), 100.0);
  if (!plan.question.direct)
    text +=
        "  Across hosts, rounds of oneshot, twoshot, tree and hierarchical plans wait for one another: they come to "
        "less.\n";
  for (const std::string& reason : plan.left_out) text += fmt::format("  left out: {}\n", reason);
  return text + "\n" + by_size(planned);
}

std::string Planned::full_first(const planner::MachineCandidate& candidate) const {
  if (candidate.fullest < 0) return "memory";
  const topology::Arc& arc = view.network.arcs[static_cast<std::size_t>(candidate.fullest)];
  return fmt::format("{} -> {}", name_of(arc.from), name_of(arc.to));
}

planner::Wire wire_of(const topology::View& view) {
  if (view.compute == topology::ComputeKind::kNuma) return planner::Wire::kMemory;
  return view.counted == topology::LinksCounted::kNvLink ? planner::Wire::kNvLink : planner::Wire::kPci;
}

std::vector<planner::WireCosts> wire_costs_of(const Planned& planned) {
  return planner::wire_costs(wire_of(planned.view), planner::link_table(planned.graph, planned.view));
}

std::string part_of_memory(const Planned& planned) {
  if (planned.plan.question.collective == Collective::kAllReduce) return "half";
  return fmt::format("{}/{}", planned.plan.ranks, planned.plan.ranks + 1);
}

std::string by_size(const Planned& planned) {
  std::string text = "  The cheapest by size, latency and bandwidth counted:\n";
  for (const planner::SizeChoice& choice : choices_by_size(planned.plan, wire_costs_of(planned))) {
    const MachineCandidate& candidate = planned.plan.candidates[choice.candidate];
    text += fmt::format("    from {:>6}  {}, {}: {:.3g} us\n", bytes_text(choice.from_bytes), candidate.label(),
                        counted(static_cast<std::size_t>(candidate.lanes), "lane", "lanes"), choice.us);
  }
  return text;
}

std::string warnings_text(const Planned& planned) {
  std::string text;
  for (const std::string& warning : planned.view.warnings) text += fmt::format("  note: {}\n", warning);
  return text.empty() ? text : "\n" + text;
}

std::string bandwidths_text() {
  const std::vector<topology::BandwidthRow> rows = topology::bandwidth_table();
  std::size_t width = 0;
  for (const topology::BandwidthRow& row : rows) width = std::max(width, row.item.size());
  std::string text = fmt::format("{:<{}}  {:>10}  {}\n", "link, one direction", width, "GB/s", "counted as");
  for (const topology::BandwidthRow& row : rows)
    text += fmt::format("{:<{}}  {:>10.2f}  {}\n", row.item, width, topology::gbps(row.bandwidth), row.source);
  return text;
}

}  // namespace tutti::tools
