#include "topology/graph.h"

#include "base/assert.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace tutti::topology {

Bandwidth from_gbps(double gbps) {
  constexpr double kGbpsMax = 1e6;
  if (!(gbps > 0) || gbps > kGbpsMax) return 0;
  return std::llround(gbps * kGigabyte);
}

std::string_view name_of(NodeKind kind) {
  switch (kind) {
    case NodeKind::kPackage: return "package";
    case NodeKind::kNuma: return "numa";
    case NodeKind::kCache: return "cache";
    case NodeKind::kPci: return "pci";
    case NodeKind::kGpu: return "gpu";
    case NodeKind::kSwitch: return "switch";
    case NodeKind::kNic: return "nic";
    case NodeKind::kNetwork: return "network";
  }
  return "unknown";
}

std::string_view name_of(LinkKind kind) {
  switch (kind) {
    case LinkKind::kPci: return "pci";
    case LinkKind::kNvLink: return "nvlink";
    case LinkKind::kXgmi: return "xgmi";
    case LinkKind::kC2c: return "c2c";
    case LinkKind::kCpu: return "cpu";
    case LinkKind::kMemory: return "memory";
    case LinkKind::kNetwork: return "network";
  }
  return "unknown";
}

std::vector<int> Graph::nodes_of(NodeKind kind) const {
  std::vector<int> found;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].kind == kind) found.push_back(static_cast<int>(i));
  }
  return found;
}

int Graph::find(std::string_view name) const {
  const auto found = std::ranges::find(nodes_, name, &Node::name);
  return found == nodes_.end() ? kNone : static_cast<int>(found - nodes_.begin());
}

const Link* Graph::find_link(int from, int to, LinkKind kind) const {
  const auto found = std::ranges::find_if(
      links_, [&](const Link& link) { return link.from == from && link.to == to && link.kind == kind; });
  return found == links_.end() ? nullptr : &*found;
}

std::string printable(std::string text) {
  std::ranges::replace_if(
      text, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, '?');
  return text;
}

std::string printable_sentence(std::string text) {
  constexpr std::string_view kLeftOut = " [...] ";
  constexpr std::size_t kEnd = kSentenceBytesMax / 2;
  constexpr std::size_t kBegin = kSentenceBytesMax - kEnd - kLeftOut.size();
  if (text.size() > kSentenceBytesMax) {
    // Between characters of UTF-8.
    const auto goes_on = [&](std::size_t at) { return (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80; };
    std::size_t first = kBegin;
    std::size_t last = text.size() - kEnd;
    while (first > 0 && goes_on(first)) --first;
    while (last < text.size() && goes_on(last)) ++last;
    text.replace(first, last - first, kLeftOut);
  }
  return printable(std::move(text));
}

int GraphBuilder::add_host(std::string name) {
  graph_.hosts_.push_back(printable(std::move(name)));
  return static_cast<int>(graph_.hosts_.size()) - 1;
}

int GraphBuilder::add_node(NodeKind kind, int host, int parent, std::string name, Facts facts) {
  name = printable(std::move(name));
  for (std::string* text : {&facts.model, &facts.bus_id, &facts.gcn}) *text = printable(std::move(*text));
  const int index = static_cast<int>(graph_.nodes_.size());
  if (index >= kNodesMax) {
    if (problem_.empty()) problem_ = fmt::format("more than {} nodes", kNodesMax);
    return index - 1;
  }
  int& of_kind = counts_[{static_cast<int>(kind), host}];
  if (name.empty()) {
    name = host == 0 ? "" : fmt::format("h{}.", host);
    name += fmt::format("{}{}", name_of(kind), of_kind);
  }
  ++of_kind;
  std::string unique = name;
  // Each name remembers its last suffix, so that a file which gives all nodes one name costs no more than another.
  while (!names_.insert(unique).second)
    unique = fmt::format("{}.{}", name, ++suffixes_.try_emplace(name, 1).first->second);
  graph_.nodes_.push_back({kind, host, parent, std::move(unique), std::move(facts)});
  return index;
}

void GraphBuilder::connect(int a, int b, LinkKind kind, Bandwidth bandwidth, int count, int latency_ns) {
  add_link(a, b, kind, bandwidth, count, latency_ns);
  add_link(b, a, kind, bandwidth, count, latency_ns);
}

void GraphBuilder::add_link(int from, int to, LinkKind kind, Bandwidth bandwidth, int count, int latency_ns) {
  const auto [found, is_new] = links_.try_emplace({from, to, static_cast<int>(kind)}, graph_.links_.size());
  if (!is_new) {
    Link& link = graph_.links_[found->second];
    // A file may say so many that the sums do not fit; what is beyond the limit is refused at the end.
    constexpr std::int64_t kCountMax = std::numeric_limits<int>::max();
    link.count = static_cast<int>(std::min(std::int64_t{link.count} + count, kCountMax));
    link.bandwidth = std::min(link.bandwidth + std::min(bandwidth, kBandwidthMax + 1), kBandwidthMax + 1);
    link.latency_ns = std::max(link.latency_ns, latency_ns);
    return;
  }
  if (graph_.links_.size() >= static_cast<std::size_t>(kLinksMax)) {
    if (problem_.empty()) problem_ = fmt::format("more than {} links", kLinksMax);
    links_.erase(found);
    return;
  }
  graph_.links_.push_back({from, to, kind, count, bandwidth, latency_ns});
}

void GraphBuilder::warn(std::string sentence) {
  sentence = printable_sentence(std::move(sentence));
  if (std::ranges::find(graph_.warnings_, sentence) != graph_.warnings_.end()) return;
  if (graph_.warnings_.size() < static_cast<std::size_t>(kWarningsMax - 1)) {
    graph_.warnings_.push_back(std::move(sentence));
  } else {
    ++warnings_left_out_;
    last_warning_ = std::move(sentence);
  }
}

namespace {

std::string wrong_with(const Graph& graph, const Link& link) {
  const int nodes = static_cast<int>(graph.nodes().size());
  if (link.from < 0 || link.from >= nodes || link.to < 0 || link.to >= nodes)
    return fmt::format("a link from node {} to node {} of {}", link.from, link.to, nodes);
  const std::string& from = graph.node(link.from).name;
  if (link.from == link.to) return fmt::format("a {} link of {} to itself", name_of(link.kind), from);
  if (link.bandwidth > 0 && link.bandwidth <= kBandwidthMax && link.count > 0 && link.latency_ns >= 0) return "";
  if (link.bandwidth > kBandwidthMax)
    return fmt::format("the {} links from {} to {} have more than {} GB/s together", name_of(link.kind), from,
                       graph.node(link.to).name, kBandwidthMax / kGigabyte);
  return fmt::format("the {} link from {} to {} has bandwidth {} kB/s, count {} and latency {} ns", name_of(link.kind),
                     from, graph.node(link.to).name, link.bandwidth, link.count, link.latency_ns);
}

std::string wrong_with(const Graph& graph, int index) {
  const Node& node = graph.node(index);
  const int nodes = static_cast<int>(graph.nodes().size());
  if (node.host < 0 || node.host >= static_cast<int>(graph.hosts().size()))
    return fmt::format("{} is on host {}, which is not there", node.name, node.host);
  if (node.parent == kNone) return "";
  if (node.parent < 0 || node.parent >= nodes)
    return fmt::format("{} has no node {} as parent", node.name, node.parent);
  if (graph.node(node.parent).host != node.host)
    return fmt::format("{} is on another host than its parent {}", node.name, graph.node(node.parent).name);
  return "";
}

/// A node whose parents form a circle, or kNone. Each node is looked at once.
int in_a_circle(const std::vector<Node>& nodes) {
  enum : char { kNew, kOnTheWay, kDone };
  std::vector<char> state(nodes.size(), kNew);
  std::vector<int> way;
  for (std::size_t start = 0; start < nodes.size(); ++start) {
    int at = static_cast<int>(start);
    while (at != kNone && state[static_cast<std::size_t>(at)] == kNew) {
      state[static_cast<std::size_t>(at)] = kOnTheWay;
      way.push_back(at);
      at = nodes[static_cast<std::size_t>(at)].parent;
    }
    if (at != kNone && state[static_cast<std::size_t>(at)] == kOnTheWay) return at;
    for (const int done : way) state[static_cast<std::size_t>(done)] = kDone;
    way.clear();
  }
  return kNone;
}

/// A node with more than kDepthMax nodes around it, or kNone. For parents without a circle.
int too_deep(const std::vector<Node>& nodes) {
  std::vector<int> depths(nodes.size(), 0);  // from 1; 0: not known yet
  std::vector<int> way;
  for (std::size_t start = 0; start < nodes.size(); ++start) {
    int at = static_cast<int>(start);
    for (; at != kNone && depths[static_cast<std::size_t>(at)] == 0; at = nodes[static_cast<std::size_t>(at)].parent)
      way.push_back(at);
    int depth = at == kNone ? 0 : depths[static_cast<std::size_t>(at)];
    for (; !way.empty(); way.pop_back()) {
      if (++depth > kDepthMax) return way.back();
      depths[static_cast<std::size_t>(way.back())] = depth;
    }
  }
  return kNone;
}

}  // namespace

Result<Graph> GraphBuilder::finish() && {
  const auto refuse = [](const std::string& why) { return error(Code::kInvalidArgument, "the machine graph: " + why); };
  if (!problem_.empty()) return refuse(problem_);
  if (graph_.nodes_.empty()) return refuse("there is no node");
  for (std::size_t i = 0; i < graph_.nodes_.size(); ++i) {
    if (const std::string wrong = wrong_with(graph_, static_cast<int>(i)); !wrong.empty()) return refuse(wrong);
  }
  if (const int at = in_a_circle(graph_.nodes_); at != kNone)
    return refuse(fmt::format("{} is inside itself", graph_.node(at).name));
  if (const int at = too_deep(graph_.nodes_); at != kNone)
    return refuse(fmt::format("{} is inside more than {} nodes", graph_.node(at).name, kDepthMax));
  for (const Link& link : graph_.links_) {
    if (const std::string wrong = wrong_with(graph_, link); !wrong.empty()) return refuse(wrong);
  }
  if (warnings_left_out_ > 0)
    graph_.warnings_.push_back(
        warnings_left_out_ == 1 ? last_warning_ : fmt::format("{} more warnings are left out", warnings_left_out_));
  return std::move(graph_);
}

}  // namespace tutti::topology
