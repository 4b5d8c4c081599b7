// The long answers of tutti-topo: the machine in words, and why the bound is what it is.
#include "tools/topo_report.h"

#include "topology/bandwidths.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace tutti::tools {
namespace {

using planner::MachineCandidate;
using planner::MachinePlan;
using topology::Bandwidth;
using topology::Graph;
using topology::Link;

constexpr int kLinesMax = 24;  ///< of one list

std::string gbps_text(double gbps) {
  if (gbps < 0.1 && gbps > 0) return fmt::format("{:.3g}", gbps);
  std::string text = fmt::format("{:.2f}", gbps);
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text;
}

/// "12", "12 each", or "no limit", for which sources and this library have a number, too.
std::string link_text(Bandwidth bandwidth, std::size_t links) {
  if (bandwidth == topology::kDeviceBandwidth) return "no limit";
  return gbps_text(topology::gbps(bandwidth)) + (links > 1 ? " each" : "");
}

std::string hops_text(int hops) { return hops == 1 ? "1 hop" : fmt::format("{} hops", hops); }

/// What a node is joined to, by kind and bandwidth: "nvlink 25 each to gpu1 gpu2; pci 12 to pci0; pci no limit to nic0".
std::string links_text(const Graph& graph, const std::vector<const Link*>& links) {
  std::map<std::pair<topology::LinkKind, Bandwidth>, std::vector<const Link*>> groups;
  for (const Link* link : links) groups[{link->kind, link->bandwidth}].push_back(link);
  std::string text;
  for (const auto& [how, group] : groups) {
    constexpr std::size_t kNamesMax = 8;
    std::string names;
    for (std::size_t i = 0; i < std::min(group.size(), kNamesMax); ++i)
      names += (i == 0 ? "" : " ") + graph.node(group[i]->to).name;
    if (group.size() > kNamesMax) names += fmt::format(" and {} more", group.size() - kNamesMax);
    text += fmt::format("{}{} {} to {}", text.empty() ? "" : "; ", name_of(how.first),
                        link_text(how.second, group.size()), names);
  }
  return text;
}

/// The links between the inside and the outside of a set, by their ends' names: "gpu0 -> nvs 450".
std::string crossing_text(const Planned& planned, const std::vector<int>& set, bool leaving) {
  const std::set<int> inside(set.begin(), set.end());
  std::string text;
  int shown = 0;
  int left_out = 0;
  for (const topology::Arc& arc : planned.view.network.arcs) {
    const bool crosses = leaving ? inside.contains(arc.from) && !inside.contains(arc.to)
                                 : inside.contains(arc.to) && !inside.contains(arc.from);
    if (!crosses) continue;
    constexpr int kShownMax = 8;
    if (++shown > kShownMax) {
      ++left_out;
      continue;
    }
    text += fmt::format("{}{} -> {} {}{}", text.empty() ? "" : ", ", planned.name_of(arc.from), planned.name_of(arc.to),
                        gbps_text(topology::gbps(arc.capacity)),
                        arc.capacity == topology::kDeviceBandwidth ? " (as good as no limit)" : "");
  }
  if (left_out > 0) text += fmt::format(" and {} more", left_out);
  return text;
}

double crossing(const Planned& planned, const std::vector<int>& set, bool leaving) {
  const std::set<int> inside(set.begin(), set.end());
  double sum = 0;
  for (const topology::Arc& arc : planned.view.network.arcs) {
    const bool crosses = leaving ? inside.contains(arc.from) && !inside.contains(arc.to)
                                 : inside.contains(arc.to) && !inside.contains(arc.from);
    if (crosses) sum += topology::gbps(arc.capacity);
  }
  return sum;
}

std::string partition_arithmetic(const Planned& planned) {
  const topology::PartitionBound& bound = planned.plan.certificate.partition;
  using Form = topology::PartitionBound::Form;
  if (bound.form == Form::kCut) {
    return fmt::format("  What {{{}}} has must leave it: {}.\n  That is {} GB/s for each byte once: the bound.\n",
                       names_text(planned, bound.blocks.front()), crossing_text(planned, bound.sets.front(), true),
                       gbps_text(crossing(planned, bound.sets.front(), true)));
  }
  const bool leaving = bound.form == Form::kOut;
  std::string text = fmt::format(
      "  To add up and spread one byte over k blocks, 2 (k - 1) bytes must {} blocks. The links of each block:\n",
      leaving ? "leave" : "enter");
  double sum = 0;
  const std::size_t blocks = bound.sets.size();
  for (std::size_t i = 0; i < blocks; ++i) {
    const double capacity = crossing(planned, bound.sets[i], leaving);
    sum += capacity;
    if (i < kLinesMax) {
      text += fmt::format("    {:>8}  {{{}}}: {}\n", gbps_text(capacity), names_text(planned, bound.blocks[i]),
                          crossing_text(planned, bound.sets[i], leaving));
    }
  }
  if (blocks > kLinesMax) text += fmt::format("    and {} blocks more\n", blocks - kLinesMax);
  text += fmt::format("  {} / (2 ({} - 1)) = {} GB/s. {}\n", gbps_text(sum), blocks,
                      gbps_text(planned.plan.certificate.over_links_gbps()),
                      planned.plan.certificate.by_hosts ? "Of so many ranks, only the partitions into hosts and into "
                                                          "single ranks were looked at."
                                                        : "No other partition allows less.");
  return text;
}

std::string cut_arithmetic(const Planned& planned) {
  const topology::CutBound& bound = planned.plan.certificate.cut;
  const bool leaves = planned.plan.question.collective == Collective::kAllGather;
  const auto inside = std::ranges::count_if(bound.nodes, [&](int node) { return node < planned.plan.ranks; });
  return fmt::format(
      "  {} of {} ranks, with {} of all bytes, are in {{{}}}.\n"
      "  {} must {} through {}.\n  {} x {} / {} = {} GB/s. {}\n",
      inside, planned.plan.ranks, fmt::format("{}/{}", inside, planned.plan.ranks), names_text(planned, bound.nodes),
      leaves ? "What they have" : "Their sums", leaves ? "leave" : "enter", crossing_text(planned, bound.nodes, leaves),
      planned.plan.ranks, gbps_text(crossing(planned, bound.nodes, leaves)), inside,
      gbps_text(planned.plan.certificate.over_links_gbps()),
      planned.plan.certificate.by_hosts ? "Of so many ranks, only the cuts around one host and one rank were looked at."
                                        : "No other cut allows less.");
}

/// Limits of other kinds: inside switches, of memory, and for small messages.
std::string other_bounds(const Planned& planned) {
  const OtherLimits limits = other_limits(planned);
  std::string text;
  if (limits.nvls_gbps > 0)
    text += fmt::format(
        "  A switch that adds and copies itself (NVLS) would allow {0} GB/s; as NCCL uses it, {0} x {1} / {2} = {3}.\n",
        gbps_text(limits.nvls_gbps), planned.plan.ranks, planned.plan.ranks + 1, gbps_text(limits.nccl_nvls_gbps));
  if (limits.memory_gbps > 0)
    text +=
        fmt::format("  Memory that reads each input and writes each output once allows {} GB/s: {} of the slowest.\n",
                    gbps_text(limits.memory_gbps), part_of_memory(planned));
  text += fmt::format(
      "  Small messages need {} if each rank can read all others at once, {} if one at a time: {} us and "
      "{} us,\n  at {} us a hop.\n",
      hops_text(limits.hops_at_once), hops_text(limits.hops_in_turn), gbps_text(limits.at_once_us),
      gbps_text(limits.in_turn_us), gbps_text(limits.hop_us));
  return text;
}

std::string lanes_text(int lanes) { return lanes == 1 ? "1 lane" : fmt::format("{} lanes", lanes); }

std::string why(const Planned& planned) {
  const MachinePlan& plan = planned.plan;
  const MachineCandidate& chosen = plan.chosen();
  const std::string first = planned.full_first(chosen);
  std::string text =
      fmt::format("  {} with {}, {}: {} GB/s, {:.1f}% of the bound; {} is full first.\n", chosen.label(),
                  lanes_text(chosen.lanes), hops_text(chosen.hops), gbps_text(chosen.gbps), 100 * chosen.ratio, first);
  if (chosen.waits) text += "  Its rounds wait for one another, so that it comes to less: --simulate says to what.\n";
  for (const MachineCandidate& candidate : plan.candidates) {
    if (candidate.most_gbps > 0)
      text +=
          fmt::format("  {}: with any number of lanes {} GB/s{}.\n", candidate.label(), gbps_text(candidate.most_gbps),
                      candidate.most_is_proved ? ", the most that trees can" : ", or more");
  }
  for (const MachineCandidate& other : plan.candidates) {
    if (&other == &chosen) continue;
    const bool equal = other.gbps >= chosen.gbps * 0.999;
    const bool waits = equal && other.waits && !chosen.waits;
    text += fmt::format("  {} {} GB/s{}.\n", other.label(), gbps_text(other.gbps),
                        waits   ? ", if its rounds did not wait for one another"
                        : equal ? fmt::format(": no more, in {} and {}", hops_text(other.hops), lanes_text(other.lanes))
                                : "");
  }
  for (const std::string& reason : plan.left_out) text += fmt::format("  {}.\n", reason);
  if (plan.question.collective == Collective::kAllReduce) {
    const double factor = 2.0 * (plan.ranks - 1) / plan.ranks;
    text += fmt::format("  As bus bandwidth (times 2 (n - 1) / n, as nccl-tests count): bound {}, plan {}.\n",
                        gbps_text(plan.certificate.gbps * factor), gbps_text(chosen.gbps * factor));
  }
  return text;
}

}  // namespace

std::string in_words(const Planned& planned) {
  const Graph& graph = planned.graph;
  std::map<int, std::vector<const Link*>> leaving;
  for (const Link& link : graph.links()) leaving[link.from].push_back(&link);
  std::string text = "The machine, GB/s in one direction:\n";
  int lines = 0;
  for (std::size_t i = 0; i < graph.nodes().size(); ++i) {
    const topology::Node& node = graph.nodes()[i];
    if (++lines > 2 * kLinesMax) {
      text += fmt::format("  and {} nodes more\n", graph.nodes().size() - i);
      break;
    }
    const std::string links = links_text(graph, leaving[static_cast<int>(i)]);
    text += fmt::format("  {:<11} {}\n", node.name, links.empty() ? "no links" : links);
  }
  return text;
}

std::string explanation(const Planned& planned) {
  const planner::Certificate& certificate = planned.plan.certificate;
  if (certificate.unlimited || certificate.gbps == 0) return "";
  const bool all_reduce = planned.plan.question.collective == Collective::kAllReduce;
  return fmt::format("The bound, {} GB/s:\n{}{}\nThe plan:\n{}", gbps_text(certificate.gbps),
                     all_reduce ? partition_arithmetic(planned) : cut_arithmetic(planned), other_bounds(planned),
                     why(planned));
}

}  // namespace tutti::tools
