#include "drawing/scene.h"

#include "drawing/alike.h"
#include "drawing/forest.h"
#include "drawing/wires.h"
#include "topology/bandwidths.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace tutti::drawing {
namespace {

using topology::Facts;
using topology::kNone;
using topology::Node;
using topology::NodeKind;

constexpr int kRowsMax = 40;       ///< of a host, before what is alike is drawn once
constexpr int kRowsOfPair = 12;    ///< of two hosts that are both drawn although they are alike
constexpr int kProcessorRows = 3;  ///< that a NUMA node takes at least
constexpr int kHostsMax = 4;       ///< that are not alike
constexpr std::size_t kNamesMax = 6;

std::size_t at(int index) { return static_cast<std::size_t>(index); }

std::string size_text(std::uint64_t bytes) {
  constexpr double kUnit = 1024;
  double size = static_cast<double>(bytes) / kUnit;
  const char* unit = "KiB";
  for (const char* larger : {"MiB", "GiB", "TiB"}) {
    if (size < kUnit) break;
    size /= kUnit;
    unit = larger;
  }
  return fmt::format("{:.3g} {}", size, unit);
}

std::string names_text(const topology::Graph& graph, const std::vector<int>& nodes) {
  if (nodes.size() == 1) return graph.node(nodes.front()).name;
  return fmt::format("{} \xe2\x80\xa6 {}", graph.node(nodes.front()).name, graph.node(nodes.back()).name);
}

/// Makes the items of the hosts that are drawn.
class SceneMaker {
 public:
  explicit SceneMaker(const Subject& subject)
      : subject_(subject),
        graph_(subject.graph),
        scene_{.items = {}, .hosts = {}, .bars = {}, .remarks = {}, .marks = mark(subject)},
        forest_(plant(subject, scene_.marks)),
        alike_(subject, scene_.marks, forest_),
        owners_(graph_.nodes().size(), kNone) {}

  Scene make() {
    find_network_rates();
    for (const std::vector<int>& hosts : host_classes()) {
      if (scene_.hosts.size() < kHostsMax) {
        add_host(hosts);
      } else {
        not_drawn_.insert(not_drawn_.end(), hosts.begin(), hosts.end());
      }
    }
    if (!not_drawn_.empty()) say_not_drawn();
    add_wires(subject_, owners_, scene_);
    return std::move(scene_);
  }

 private:
  std::vector<std::vector<int>> host_classes() const {
    std::vector<std::vector<int>> classes;
    std::map<std::string, std::size_t> places;
    const int hosts = static_cast<int>(graph_.hosts().size());
    for (int host = 0; host < hosts; ++host) {
      if (forest_.roots[at(host)].empty() && hosts > 1 && !has_bars(host)) continue;
      // Two small ones are drawn both.
      const bool both =
          hosts == 2 && rows_of(forest_.roots[0]) <= kRowsOfPair && rows_of(forest_.roots[1]) <= kRowsOfPair;
      const std::string signature = both ? fmt::format("{}", host) : alike_.of_host(host);
      const auto [place, is_new] = places.try_emplace(signature, classes.size());
      if (is_new) classes.emplace_back();
      classes[place->second].push_back(host);
    }
    return classes;
  }

  bool has_bars(int host) const {
    return std::ranges::any_of(graph_.nodes(),
                               [&](const Node& node) { return node.host == host && (node.kind == NodeKind::kSwitch); });
  }

  void say_not_drawn() {
    int gpus = 0;
    for (const Node& node : graph_.nodes()) {
      if (node.kind == NodeKind::kGpu && std::ranges::find(not_drawn_, node.host) != not_drawn_.end()) ++gpus;
    }
    scene_.remarks.push_back(fmt::format("{} more hosts of other shapes, with {} GPUs, are not drawn: {}",
                                         not_drawn_.size(), gpus, host_names(not_drawn_)));
  }

  std::string host_names(const std::vector<int>& hosts) const {
    const auto name = [&](int host) { return graph_.hosts()[at(host)]; };
    std::string text;
    for (std::size_t i = 0; i < std::min(hosts.size(), kNamesMax); ++i)
      text += fmt::format("{}{}", i == 0 ? "" : ", ", name(hosts[i]));
    return hosts.size() > kNamesMax ? fmt::format("{} \xe2\x80\xa6 {}", text, name(hosts.back())) : text;
  }

  /// What a NIC has to networks.
  void find_network_rates() {
    network_rates_.assign(graph_.nodes().size(), 0);
    for (const Cable& cable : scene_.marks.cables) {
      if (cable.kind != topology::LinkKind::kNetwork) continue;
      network_rates_[at(cable.a)] += cable.widest();
      network_rates_[at(cable.b)] += cable.widest();
    }
  }

  void add_host(const std::vector<int>& hosts) {
    DrawnHost host;
    host.title = graph_.hosts()[at(hosts.front())];
    host.stands_for = static_cast<int>(hosts.size());
    if (hosts.size() > 1) {
      const std::vector<int> others(hosts.begin() + 1, hosts.end());
      host.alike =
          fmt::format("{} like this: also {}", hosts.size() == 2 ? "2 hosts" : fmt::format("{} hosts", hosts.size()),
                      host_names(others));
    }
    const std::vector<int>& roots = forest_.roots[at(hosts.front())];
    keep_ = kRowsMax;
    for (const int fewer : {4, 3, 2, 1}) {
      if (rows_of(roots) <= kRowsMax) break;
      keep_ = fewer;
    }
    rows_left_ = kRowsMax + 8;
    host.roots = items_of(roots, kNone);
    scene_.hosts.push_back(std::move(host));
  }

  /// How many of a run are drawn themselves; the others, if they are more than one, become one item.
  int kept_of(int first, int length) const {
    const NodeKind kind = graph_.node(first).kind;
    const bool is_idle = (kind == NodeKind::kNuma || kind == NodeKind::kPackage) &&
                         forest_.children[at(first)].empty() && scene_.marks.rank[at(first)] == kNone;
    const int keep = kind == NodeKind::kCache || is_idle ? 1 : keep_;
    return length > keep + 1 ? keep : length;
  }

  static int run_length(const std::vector<int>& nodes, std::size_t from, const Alike& alike) {
    std::size_t to = from + 1;
    while (to < nodes.size() && alike.of_node(nodes[to]) == alike.of_node(nodes[from])) ++to;
    return static_cast<int>(to - from);
  }

  int rows_of(const std::vector<int>& nodes) const {
    int rows = 0;
    for (std::size_t i = 0; i < nodes.size();) {
      const int length = run_length(nodes, i, alike_);
      const int kept = kept_of(nodes[i], length);
      const NodeKind kind = graph_.node(nodes[i]).kind;
      const int least = kind == NodeKind::kNuma || kind == NodeKind::kPackage ? kProcessorRows : 1;
      rows += kept * std::max(least, rows_of(forest_.children[at(nodes[i])])) + (kept < length ? 1 : 0);
      i += at(length);
    }
    return rows;
  }

  std::vector<int> items_of(const std::vector<int>& nodes, int parent) {
    std::vector<int> items;
    for (std::size_t i = 0; i < nodes.size();) {
      if (rows_left_ <= 0 && i + 1 < nodes.size()) {
        items.push_back(add_more({nodes.begin() + static_cast<std::ptrdiff_t>(i), nodes.end()}, parent, false));
        break;
      }
      const int length = run_length(nodes, i, alike_);
      const int kept = std::min(kept_of(nodes[i], length), std::max(1, rows_left_));
      for (int k = 0; k < kept; ++k) items.push_back(add_item(nodes[i + at(k)], parent));
      const auto first = nodes.begin() + static_cast<std::ptrdiff_t>(i);
      if (length - kept == 1) items.push_back(add_item(*(first + kept), parent));
      if (length - kept > 1) items.push_back(add_more({first + kept, first + length}, parent, true));
      i += at(length);
    }
    return items;
  }

  int add_item(int node, int parent) {
    const int item = static_cast<int>(scene_.items.size());
    scene_.items.push_back(describe(node));
    scene_.items.back().parent = parent;
    owners_[at(node)] = item;
    const std::vector<int>& children = forest_.children[at(node)];
    if (children.empty()) --rows_left_;
    std::vector<int> inner = items_of(children, item);
    Item& self = scene_.items[at(item)];
    self.children = std::move(inner);
    if (!self.children.empty()) self.role = Role::kContainer;
    return item;
  }

  int add_more(const std::vector<int>& nodes, int parent, bool are_alike) {
    const int item = static_cast<int>(scene_.items.size());
    Item more = describe(nodes.front());
    more.role = Role::kMore;
    more.parent = parent;
    more.lines = {names_text(graph_, nodes),
                  are_alike ? fmt::format("{} more alike", nodes.size()) : fmt::format("{} not drawn", nodes.size())};
    if (!are_alike) more.block = kNoBlock;
    scene_.items.push_back(std::move(more));
    for (const int node : nodes) own(node, item);
    --rows_left_;
    return item;
  }

  void own(int node, int item) {
    owners_[at(node)] = item;
    for (const int child : forest_.children[at(node)]) own(child, item);
  }

  Item describe(int node) const {
    const Node& what = graph_.node(node);
    Item item{.kind = what.kind, .lines = {what.name}, .children = {}, .block = scene_.marks.block[at(node)]};
    const int rank = scene_.marks.rank[at(node)];
    item.computes = rank != kNone;
    const Facts& facts = what.facts;
    switch (what.kind) {
      case NodeKind::kGpu:
        item.left_out = !item.computes;
        item.lines.push_back(item.computes ? fmt::format("rank {}", rank) : "not chosen");
        break;
      case NodeKind::kNic:
        if (network_rates_[at(node)] > 0)
          item.lines.push_back(fmt::format("{} GB/s", rate_text(network_rates_[at(node)])));
        break;
      case NodeKind::kCache:
        if (facts.bytes > 0) item.lines.push_back(fmt::format("{} {}", facts.model, size_text(facts.bytes)));
        break;
      default:
        item.role = Role::kContainer;
        describe_processor(facts, what.kind, item);
        if (item.computes) item.lines.push_back(fmt::format("rank {}", rank));
    }
    return item;
  }

  static void describe_processor(const Facts& facts, NodeKind kind, Item& item) {
    if (kind == NodeKind::kPci) return;
    if (!facts.model.empty()) item.lines.push_back(facts.model);
    if (facts.cores > 0) item.lines.push_back(facts.cores == 1 ? "1 core" : fmt::format("{} cores", facts.cores));
    if (facts.bytes > 0) item.lines.push_back(size_text(facts.bytes));
    if (facts.memory > 0) item.lines.push_back(fmt::format("{} GB/s", rate_text(facts.memory)));
  }

  const Subject& subject_;
  const topology::Graph& graph_;
  Scene scene_;
  Forest forest_;
  Alike alike_;
  std::vector<int> owners_;  ///< by graph node: item; kNone: not drawn
  std::vector<topology::Bandwidth> network_rates_;
  std::vector<int> not_drawn_;  ///< hosts
  int keep_ = kRowsMax;
  int rows_left_ = 0;
};

}  // namespace

Scene make_scene(const Subject& subject) { return SceneMaker(subject).make(); }

bool is_to_bar(const Scene& scene, const Wire& wire) {
  return (scene.items[at(wire.a)].role == Role::kBar) != (scene.items[at(wire.b)].role == Role::kBar);
}

bool is_processor_arc(const Scene& scene, const Wire& wire) {
  const Item& a = scene.items[at(wire.a)];
  const Item& b = scene.items[at(wire.b)];
  const auto is_processor = [](const Item& item) {
    return item.kind == NodeKind::kNuma || item.kind == NodeKind::kPackage;
  };
  return is_processor(a) && is_processor(b) && a.parent != wire.b && b.parent != wire.a;
}

bool is_arc(const Scene& scene, const Wire& wire) {
  const Item& a = scene.items[at(wire.a)];
  const Item& b = scene.items[at(wire.b)];
  return a.role != Role::kBar && b.role != Role::kBar && a.parent != wire.b && b.parent != wire.a &&
         !is_processor_arc(scene, wire);
}

std::string_view words_for(topology::LinkKind kind) {
  using topology::LinkKind;
  switch (kind) {
    case LinkKind::kPci: return "PCIe";
    case LinkKind::kNvLink: return "NVLink";
    case LinkKind::kXgmi: return "xGMI";
    case LinkKind::kC2c: return "C2C";
    case LinkKind::kCpu: return "CPU link";
    case LinkKind::kMemory: return "memory";
    case LinkKind::kNetwork: return "network";
  }
  return "link";
}

std::string plural_for(topology::LinkKind kind) {
  const std::string word(words_for(kind));
  return word.ends_with("ink") ? word + "s" : word + " links";
}

std::string rate_text(topology::Bandwidth bandwidth) {
  const double rate = topology::gbps(bandwidth);
  if (rate >= 1000) return fmt::format("{:.0f}", rate);
  if (rate < 0.01) return fmt::format("{:.2g}", rate);
  std::string text = rate < 10 ? fmt::format("{:.2f}", rate) : fmt::format("{:.1f}", rate);
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text;
}

std::string wire_text(const Wire& wire, bool with_unit, const Arrows& arrows) {
  if (wire.least == topology::kDeviceBandwidth && !wire.differs && wire.there == wire.back) return "no limit";
  const std::string unit = with_unit ? " GB/s" : "";
  if (wire.there == 0 || wire.back == 0)
    return fmt::format("{} {}{}, one way", wire.there > 0 ? arrows.there : arrows.back,
                       rate_text(std::max(wire.there, wire.back)), unit);
  if (wire.differs)
    return fmt::format("{}{} {}, {} {}{}", wire.cables > 1 ? fmt::format("{} links: ", wire.cables) : "", arrows.there,
                       rate_text(wire.there), arrows.back, rate_text(wire.back), unit);
  if (wire.cables > 1 && wire.least != wire.most)
    return fmt::format("{} x {}\xe2\x80\x93{}{}", wire.cables, rate_text(wire.least), rate_text(wire.most), unit);
  if (wire.cables > 1) return fmt::format("{} x {}{}", wire.cables, rate_text(wire.most), unit);
  using topology::LinkKind;
  if (wire.kind == LinkKind::kPci && wire.count > 1)
    return fmt::format("x{}, {}{}", wire.count, rate_text(wire.most), unit);
  if (wire.count > 1) return fmt::format("{}x{}{}", wire.count, rate_text(wire.most / wire.count), unit);
  return rate_text(wire.most) + unit;
}

}  // namespace tutti::drawing
