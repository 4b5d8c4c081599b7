#include "drawing/wires.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace tutti::drawing {
namespace {

using topology::kNone;
using topology::LinkKind;
using topology::NodeKind;

constexpr std::size_t kArcsMax = 36;          ///< between devices; more become a bar
constexpr std::size_t kFewArcs = 3;           ///< of a group that stay arcs among many
constexpr std::size_t kProcessorArcsMax = 6;  ///< between NUMA nodes: four of them

std::size_t at(int index) { return static_cast<std::size_t>(index); }

bool is_bar(NodeKind kind) { return kind == NodeKind::kSwitch || kind == NodeKind::kNetwork; }

class WireMaker {
 public:
  WireMaker(const Subject& subject, std::vector<int>& owners, Scene& scene)
      : subject_(subject), owners_(owners), scene_(scene), outside_(bars_outside(subject, scene.marks)) {
    host_of_item_.assign(scene.items.size(), kNone);
    for (std::size_t host = 0; host < scene.hosts.size(); ++host) {
      for (const int root : scene.hosts[host].roots) place(root, static_cast<int>(host));
    }
    for (std::size_t node = 0; node < owners.size(); ++node) {
      if (owners[node] != kNone) drawn_hosts_[subject.graph.nodes()[node].host] = host_of_item_[at(owners[node])];
    }
  }

  void make() {
    add_bars();
    merge_cables();
    for (std::size_t host = 0; host < scene_.hosts.size(); ++host) {
      gather(static_cast<int>(host), kArcsMax, false);
      gather(static_cast<int>(host), kProcessorArcsMax, true);
    }
  }

 private:
  void place(int item, int host) {
    host_of_item_[at(item)] = host;
    for (const int child : scene_.items[at(item)].children) place(child, host);
  }

  int add_bar(Item bar, int host) {
    const int item = static_cast<int>(scene_.items.size());
    scene_.items.push_back(std::move(bar));
    host_of_item_.push_back(host);
    (host == kNone ? scene_.bars : scene_.hosts[at(host)].bars).push_back(item);
    return item;
  }

  /// Switches with the same cables to the same nodes are one bar.
  void add_bars() {
    std::map<int, std::vector<std::string>> ends;
    for (const Cable& cable : scene_.marks.cables) {
      for (const auto& [self, other] : {std::pair(cable.a, cable.b), std::pair(cable.b, cable.a)}) {
        if (is_bar(subject_.graph.node(self).kind))
          ends[self].push_back(fmt::format("{} {} {}", other, name_of(cable.kind), cable.widest()));
      }
    }
    std::map<std::string, int> made;
    std::map<int, int> counts;  // by item
    const bool one_host = subject_.graph.hosts().size() == 1;
    for (auto& [node, texts] : ends) {
      const topology::Node& what = subject_.graph.node(node);
      if (one_host && what.kind == NodeKind::kNetwork) continue;  // a NIC says its rate itself
      const auto drawn = drawn_hosts_.find(what.host);
      const bool is_outside = outside_[at(node)] != 0;
      if (!is_outside && drawn == drawn_hosts_.end()) continue;
      std::ranges::sort(texts);
      const int host = is_outside ? kNone : drawn->second;
      const std::string key = fmt::format("{} {} {}", host, name_of(what.kind), fmt::join(texts, ";"));
      auto [place, is_new] = made.try_emplace(key, 0);
      if (is_new) {
        place->second = add_bar({.role = Role::kBar,
                                 .kind = what.kind,
                                 .lines = {what.name},
                                 .children = {},
                                 .block = scene_.marks.block[at(node)]},
                                host);
      }
      owners_[at(node)] = place->second;
      Item& bar = scene_.items[at(place->second)];
      if (++counts[place->second] > 1)
        bar.lines = {bar.lines.front(), fmt::format("and {} alike", counts[place->second] - 1)};
    }
  }

  static void add_cable(const Cable& cable, bool forwards, Wire& wire) {
    ++wire.cables;
    wire.count = wire.cables == 1 ? cable.count : std::max(wire.count, cable.count);
    wire.least = wire.cables == 1 ? cable.widest() : std::min(wire.least, cable.widest());
    wire.most = std::max(wire.most, cable.widest());
    wire.there += forwards ? cable.there : cable.back;
    wire.back += forwards ? cable.back : cable.there;
    wire.differs = wire.differs || cable.there != cable.back;
    wire.counted = wire.counted || cable.counted;
    wire.crossing = wire.crossing || cable.crossing;
  }

  void merge_cables() {
    std::map<std::tuple<int, int, LinkKind>, Wire> wires;
    std::map<std::tuple<int, int, LinkKind>, Wire> trunks;   // by drawn host and bar
    std::map<std::tuple<int, int, LinkKind>, Wire> between;  // of bars outside
    for (const Cable& cable : scene_.marks.cables) {
      if (cable.a == cable.b) continue;
      const int a = owners_[at(cable.a)];
      const int b = owners_[at(cable.b)];
      if (a == b && a != kNone) ++inside_[{a, cable.kind}];
      if (a == b) continue;
      const int host_a = a == kNone ? kNone : host_of_item_[at(a)];
      const int host_b = b == kNone ? kNone : host_of_item_[at(b)];
      if (a != kNone && b != kNone && host_a == kNone && host_b == kNone) {
        add_cable(cable, a < b, between[{std::min(a, b), std::max(a, b), cable.kind}]);
      } else if (a != kNone && b != kNone && host_a == host_b) {
        add_cable(cable, a < b, wires[{std::min(a, b), std::max(a, b), cable.kind}]);
      } else if (!is_missing_inside(cable)) {
        if (host_a != kNone) add_cable(cable, true, trunks[{host_a, bar_for(b, host_b), cable.kind}]);
        if (host_b != kNone) add_cable(cable, false, trunks[{host_b, bar_for(a, host_a), cable.kind}]);
      }
    }
    for (auto& [key, wire] : wires) {
      std::tie(wire.a, wire.b, wire.kind) = key;
      scene_.hosts[at(host_of_item_[at(wire.a)])].wires.push_back(wire);
    }
    for (auto& [key, wire] : trunks) {
      std::tie(std::ignore, wire.b, wire.kind) = key;
      scene_.hosts[at(std::get<0>(key))].trunks.push_back(wire);
    }
    for (const auto& [key, wire] : between) {
      scene_.remarks.push_back(fmt::format("{} to {}: {} GB/s", scene_.items[at(std::get<0>(key))].lines[0],
                                           scene_.items[at(std::get<1>(key))].lines[0], wire_text(wire, false)));
    }
  }

  /// One end is a node of a drawn host that is not drawn: a bridge that leads nowhere, or a network that NICs speak for.
  bool is_missing_inside(const Cable& cable) const {
    const int ends[] = {cable.a, cable.b};
    const bool same = subject_.graph.node(ends[0]).host == subject_.graph.node(ends[1]).host;
    return std::ranges::any_of(ends,
                               [&](int end) { return owners_[at(end)] == kNone && (same || outside_[at(end)] != 0); });
  }

  /// The bar that a host's cables lead to: what they end at, or one for all other hosts' own nodes.
  int bar_for(int item, int host) {
    if (item != kNone && host == kNone) return item;
    if (direct_bar_ == kNone) {
      direct_bar_ = add_bar(
          {.role = Role::kBar, .kind = NodeKind::kNetwork, .lines = {"links from host to host"}, .children = {}},
          kNone);
    }
    return direct_bar_;
  }

  /// Too many direct links to draw each become bars: one for each kind and each group that is joined.
  void gather(int host, std::size_t limit, bool of_processors) {
    std::vector<Wire>& wires = scene_.hosts[at(host)].wires;
    const auto is_one = [&](const Wire& wire) {
      return of_processors ? is_processor_arc(scene_, wire) : is_arc(scene_, wire);
    };
    if (static_cast<std::size_t>(std::ranges::count_if(wires, is_one)) <= limit) return;
    std::map<std::pair<LinkKind, int>, std::vector<Wire>> groups;
    for (const LinkKind kind : kinds_of(wires)) {
      const auto is_of_kind = [&](const Wire& wire) { return wire.kind == kind && is_one(wire); };
      std::map<int, int> group_of;  // by item: the least item of its group
      for (bool changed = true; changed;) {
        changed = false;
        for (const Wire& wire : wires) {
          if (!is_of_kind(wire)) continue;
          const int a = group_of.try_emplace(wire.a, wire.a).first->second;
          const int b = group_of.try_emplace(wire.b, wire.b).first->second;
          changed = changed || a != b;
          group_of[wire.a] = group_of[wire.b] = std::min(a, b);
        }
      }
      for (const Wire& wire : wires) {
        if (is_of_kind(wire)) groups[{kind, group_of[wire.a]}].push_back(wire);
      }
    }
    std::erase_if(wires, is_one);
    for (const auto& [which, group] : groups) {
      if (group.size() <= kFewArcs) {
        wires.insert(wires.end(), group.begin(), group.end());
      } else {
        add_links_bar(group, host, of_processors);
      }
    }
  }

  static std::set<LinkKind> kinds_of(const std::vector<Wire>& wires) {
    std::set<LinkKind> kinds;
    for (const Wire& wire : wires) kinds.insert(wire.kind);
    return kinds;
  }

  void add_links_bar(const std::vector<Wire>& group, int host, bool on_left) {
    const Wire sum = merged(group);
    int cables = sum.cables;
    std::set<int> ends;
    for (const Wire& wire : group) ends.insert({wire.a, wire.b});
    for (const int end : ends) cables += inside_[{end, sum.kind}];
    Item bar{.role = Role::kBar, .kind = NodeKind::kSwitch, .children = {}, .on_left = on_left};
    const std::string least = sum.least == sum.most ? "" : rate_text(sum.least) + "\xe2\x80\x93";
    bar.lines = {plural_for(sum.kind), fmt::format("{} pairs", cables),
                 fmt::format("{}{} GB/s{}", least, rate_text(sum.most), sum.differs ? ", the wider way" : "")};
    const int item = add_bar(std::move(bar), host);
    std::map<int, std::vector<Wire>> of_item;
    for (const Wire& wire : group) {
      of_item[wire.a].push_back(wire);
      of_item[wire.b].push_back(wire);
      std::swap(of_item[wire.b].back().there, of_item[wire.b].back().back);
    }
    for (const auto& [end, list] : of_item) {
      Wire wire = merged(list);
      wire.a = end;
      wire.b = item;
      scene_.hosts[at(host)].wires.push_back(wire);
    }
  }

  const Subject& subject_;
  std::vector<int>& owners_;
  Scene& scene_;
  std::vector<char> outside_;
  std::vector<int> host_of_item_;
  std::map<int, int> drawn_hosts_;                  ///< by graph host
  std::map<std::pair<int, LinkKind>, int> inside_;  ///< cables between nodes that one item stands for
  int direct_bar_ = kNone;
};

}  // namespace

void add_wires(const Subject& subject, std::vector<int>& owners, Scene& scene) {
  WireMaker(subject, owners, scene).make();
}

Wire merged(const std::vector<Wire>& wires) {
  Wire sum;
  for (const Wire& wire : wires) {
    sum.kind = wire.kind;
    sum.count = std::max(sum.count, wire.count);
    sum.least = sum.cables == 0 ? wire.least : std::min(sum.least, wire.least);
    sum.most = std::max(sum.most, wire.most);
    sum.cables += wire.cables;
    sum.there += wire.there;
    sum.back += wire.back;
    sum.differs = sum.differs || wire.differs;
    sum.counted = sum.counted || wire.counted;
    sum.crossing = sum.crossing || wire.crossing;
  }
  return sum;
}

}  // namespace tutti::drawing
