#include "drawing/alike.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace tutti::drawing {
namespace {

using topology::kNone;
using topology::NodeKind;

constexpr int kSeveral = -2;

bool is_bar(NodeKind kind) { return kind == NodeKind::kSwitch || kind == NodeKind::kNetwork; }

std::size_t at(int index) { return static_cast<std::size_t>(index); }

}  // namespace

Alike::Alike(const Subject& subject, const Marks& marks, const Forest& forest)
    : subject_(subject),
      marks_(marks),
      forest_(forest),
      cables_at_(subject.graph.nodes().size()),
      outside_(bars_outside(subject, marks)) {
  for (const Cable& cable : marks.cables) {
    if (cable.a == cable.b) continue;
    cables_at_[at(cable.a)].push_back(&cable);
    cables_at_[at(cable.b)].push_back(&cable);
  }
  hosts_of_block_.assign(marks.block_sizes.size(), kNone);
  for (std::size_t node = 0; node < marks.rank.size(); ++node) {
    if (marks.rank[node] == kNone || marks.block[node] == kNoBlock) continue;
    int& host = hosts_of_block_[at(marks.block[node])];
    const int here = subject.graph.nodes()[node].host;
    host = host == kNone || host == here ? here : kSeveral;
  }
  signatures_.resize(subject.graph.nodes().size());
  for (const auto& roots : forest.roots) {
    for (const int root : roots) sign(root);
  }
}

std::string Alike::facts(int node) const {
  const topology::Node& what = subject_.graph.node(node);
  const topology::Facts& facts = what.facts;
  return fmt::format("{} {} {} {} {} {} {}", name_of(what.kind), facts.model, facts.cores, facts.memory, facts.bytes,
                     facts.sm, marks_.rank[at(node)] == kNone ? "out" : "in");
}

std::string Alike::cable_text(const Cable& cable, int from) const {
  const bool onwards = cable.a == from;
  return fmt::format("{} {} {} {} {} {}", name_of(cable.kind), cable.count, onwards ? cable.there : cable.back,
                     onwards ? cable.back : cable.there, cable.counted, cable.crossing);
}

void Alike::sign(int node) {
  std::string text = facts(node);
  const int block = marks_.block[at(node)];
  text += block != kNoBlock && marks_.block_sizes[at(block)] > 1 ? fmt::format(" block {}", block) : " alone";
  for (const int child : forest_.children[at(node)]) {
    sign(child);
    text += "(" + signatures_[at(child)] + ")";
  }
  std::vector<std::string> ends;
  for (const Cable* cable : cables_at_[at(node)]) {
    const int other = cable->a == node ? cable->b : cable->a;
    // Which bar matters; which of many equal neighbours does not.
    const NodeKind kind = subject_.graph.node(other).kind;
    ends.push_back(fmt::format("{} {}", cable_text(*cable, node), is_bar(kind) ? other : -1 - static_cast<int>(kind)));
  }
  std::ranges::sort(ends);
  signatures_[at(node)] = fmt::format("{}[{}]", text, fmt::join(ends, ";"));
}

std::string Alike::of_host(int host) const {
  std::map<int, int> numbers;  // of the host's nodes, in the order drawn
  std::map<int, int> blocks;
  std::vector<int> order(forest_.roots[at(host)].rbegin(), forest_.roots[at(host)].rend());
  std::string text;
  while (!order.empty()) {
    const int node = order.back();
    order.pop_back();
    numbers.try_emplace(node, static_cast<int>(numbers.size()));
    order.insert(order.end(), forest_.children[at(node)].rbegin(), forest_.children[at(node)].rend());
    text += fmt::format("{} in {}", facts(node),
                        forest_.parent[at(node)] == kNone ? -1 : numbers[forest_.parent[at(node)]]);
    const int block = marks_.block[at(node)];
    if (block == kNoBlock) continue;
    const int number = blocks.try_emplace(block, static_cast<int>(blocks.size())).first->second;
    text +=
        hosts_of_block_[at(block)] == kSeveral ? fmt::format(" across {}", block) : fmt::format(" block {}", number);
  }
  for (std::size_t i = 0; i < subject_.graph.nodes().size(); ++i) {
    const topology::Node& node = subject_.graph.nodes()[i];
    if (node.host == host && is_bar(node.kind) && outside_[i] == 0)
      numbers.try_emplace(static_cast<int>(i), static_cast<int>(numbers.size()));
  }
  std::vector<std::string> ends;
  for (const auto& [node, number] : numbers) {
    // A bar of one host may join many; what they have of it is said on their side.
    if (is_bar(subject_.graph.node(node).kind)) continue;
    for (const Cable* cable : cables_at_[at(node)]) {
      const int other = cable->a == node ? cable->b : cable->a;
      const auto inside = numbers.find(other);
      const bool is_own = inside != numbers.end();
      ends.push_back(fmt::format("{} {} {} {}", number, cable_text(*cable, node), is_own ? "own" : "outside",
                                 is_own ? inside->second : other));
    }
  }
  std::ranges::sort(ends);
  return fmt::format("{}[{}]", text, fmt::join(ends, ";"));
}

}  // namespace tutti::drawing
