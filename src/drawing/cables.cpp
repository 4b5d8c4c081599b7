#include "drawing/cables.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace tutti::drawing {
namespace {

using topology::kNone;
using topology::Link;
using topology::LinkKind;

/// Node sets of the network that what crosses them is limited by, and which way.
struct Binding {
  std::vector<std::vector<int>> sets;
  bool leaving = true;
};

Binding binding_of(const planner::MachinePlan& plan) {
  const planner::Certificate& certificate = plan.certificate;
  if (certificate.unlimited) return {};
  if (plan.question.collective != Collective::kAllReduce)
    return {{certificate.cut.nodes}, plan.question.collective == Collective::kAllGather};
  using Form = topology::PartitionBound::Form;
  const topology::PartitionBound& partition = certificate.partition;
  if (partition.form == Form::kCut) return {{partition.sets.front()}, true};
  return {partition.sets, partition.form == Form::kOut};
}

/// The network's arcs that cross, by graph nodes.
std::set<std::pair<int, int>> crossing_arcs(const Subject& subject) {
  const Binding binding = binding_of(subject.plan);
  std::set<std::pair<int, int>> crossing;
  for (const std::vector<int>& set : binding.sets) {
    std::vector<char> inside(static_cast<std::size_t>(subject.view.network.nodes), 0);
    for (const int node : set) inside[static_cast<std::size_t>(node)] = 1;
    for (const topology::Arc& arc : subject.view.network.arcs) {
      const bool from = inside[static_cast<std::size_t>(arc.from)] != 0;
      const bool to = inside[static_cast<std::size_t>(arc.to)] != 0;
      if (binding.leaving ? (from && !to) : (to && !from)) {
        crossing.insert({subject.view.nodes[static_cast<std::size_t>(arc.from)],
                         subject.view.nodes[static_cast<std::size_t>(arc.to)]});
      }
    }
  }
  return crossing;
}

std::vector<Cable> cables_of(const Subject& subject) {
  std::set<std::pair<int, int>> counted;
  for (const topology::Arc& arc : subject.view.network.arcs) {
    counted.insert(
        {subject.view.nodes[static_cast<std::size_t>(arc.from)], subject.view.nodes[static_cast<std::size_t>(arc.to)]});
  }
  const std::set<std::pair<int, int>> crossing = crossing_arcs(subject);
  const bool fabric_only = subject.view.counted == topology::LinksCounted::kNvLink;
  std::vector<Cable> cables;
  std::map<std::tuple<int, int, LinkKind>, std::size_t> places;
  for (const Link& link : subject.graph.links()) {
    const auto [low, high] = std::minmax(link.from, link.to);
    const auto [place, is_new] = places.try_emplace({low, high, link.kind}, cables.size());
    if (is_new) cables.push_back({.a = low, .b = high, .kind = link.kind, .count = link.count});
    Cable& cable = cables[place->second];
    (link.from == low ? cable.there : cable.back) = link.bandwidth;
    cable.count = std::max(cable.count, link.count);
    const bool kind_counts = !fabric_only || link.kind == LinkKind::kNvLink || link.kind == LinkKind::kXgmi;
    if (!kind_counts || !counted.contains({link.from, link.to})) continue;
    cable.counted = true;
    cable.crossing = cable.crossing || crossing.contains({link.from, link.to});
  }
  return cables;
}

/// Ranks belong to their block, other nodes to the one whose set has them, if it is one.
void mark_blocks(const Subject& subject, Marks& marks) {
  const planner::MachinePlan& plan = subject.plan;
  if (plan.certificate.unlimited || plan.certificate.gbps == 0) return;  // nothing binds, or nobody knows what
  const auto node = [&](int place) {
    return static_cast<std::size_t>(subject.view.nodes[static_cast<std::size_t>(place)]);
  };
  if (plan.question.collective != Collective::kAllReduce) {
    for (std::size_t i = 0; i < subject.view.nodes.size(); ++i) marks.block[node(static_cast<int>(i))] = 1;
    for (const int place : plan.certificate.cut.nodes) marks.block[node(place)] = 0;
    const auto inside =
        std::ranges::count_if(plan.certificate.cut.nodes, [&](int place) { return place < plan.ranks; });
    marks.block_sizes = {static_cast<int>(inside), plan.ranks - static_cast<int>(inside)};
    return;
  }
  const topology::PartitionBound& partition = plan.certificate.partition;
  std::vector<int> times(marks.block.size(), 0);
  for (std::size_t block = 0; block < partition.blocks.size(); ++block) {
    marks.block_sizes.push_back(static_cast<int>(partition.blocks[block].size()));
    if (block >= partition.sets.size()) continue;
    for (const int place : partition.sets[block]) {
      marks.block[node(place)] = static_cast<int>(block);
      ++times[node(place)];
    }
  }
  for (std::size_t i = 0; i < times.size(); ++i) {
    if (times[i] > 1) marks.block[i] = kNoBlock;
  }
  for (std::size_t block = 0; block < partition.blocks.size(); ++block) {
    for (const int place : partition.blocks[block]) marks.block[node(place)] = static_cast<int>(block);
  }
  marks.all_single = std::ranges::all_of(marks.block_sizes, [](int size) { return size == 1; });
}

bool is_bar(const topology::Node& node) {
  return node.kind == topology::NodeKind::kSwitch || node.kind == topology::NodeKind::kNetwork;
}

}  // namespace

std::vector<char> bars_outside(const Subject& subject, const Marks& marks) {
  const auto& nodes = subject.graph.nodes();
  std::vector<char> outside(nodes.size(), 0);
  if (subject.graph.hosts().size() < 2) return outside;
  std::vector<std::set<int>> hosts(nodes.size());
  for (const Cable& cable : marks.cables) {
    const auto a = static_cast<std::size_t>(cable.a);
    const auto b = static_cast<std::size_t>(cable.b);
    if (!is_bar(nodes[b])) hosts[a].insert(nodes[b].host);
    if (!is_bar(nodes[a])) hosts[b].insert(nodes[a].host);
  }
  for (std::size_t i = 0; i < nodes.size(); ++i)
    outside[i] = is_bar(nodes[i]) && (nodes[i].kind == topology::NodeKind::kNetwork || hosts[i].size() != 1) ? 1 : 0;
  return outside;
}

Marks mark(const Subject& subject) {
  Marks marks;
  marks.cables = cables_of(subject);
  marks.rank.assign(subject.graph.nodes().size(), kNone);
  marks.block.assign(subject.graph.nodes().size(), kNoBlock);
  for (int rank = 0; rank < subject.view.ranks(); ++rank)
    marks.rank[static_cast<std::size_t>(subject.view.nodes[static_cast<std::size_t>(rank)])] = rank;
  mark_blocks(subject, marks);
  return marks;
}

}  // namespace tutti::drawing
