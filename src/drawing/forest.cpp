#include "drawing/forest.h"

#include <algorithm>
#include <numeric>

namespace tutti::drawing {
namespace {

using topology::kNone;

using topology::Node;
using topology::NodeKind;

bool is_bar(const Node& node) { return node.kind == NodeKind::kSwitch || node.kind == NodeKind::kNetwork; }

int order_of(NodeKind kind) {
  switch (kind) {
    case NodeKind::kPackage:
    case NodeKind::kNuma: return 0;
    case NodeKind::kPci: return 2;
    case NodeKind::kCache: return 1;
    case NodeKind::kGpu: return 3;
    default: return 4;
  }
}

class Planter {
 public:
  Planter(const Subject& subject, Marks& marks)
      : nodes_(subject.graph.nodes()), marks_(marks), cables_at_(nodes_.size()), relays_(nodes_.size(), 0) {
    for (const int node : subject.view.nodes) relays_[at(node)] = 1;
    for (std::size_t i = 0; i < marks.cables.size(); ++i) {
      cables_at_[at(marks.cables[i].a)].push_back(i);
      cables_at_[at(marks.cables[i].b)].push_back(i);
    }
  }

  Forest plant(std::size_t hosts) {
    take_parents();
    infer_parents();
    find_depths();
    find_drawn();
    collapse();
    find_depths();
    contract();
    Forest forest{parent_, std::vector<std::vector<int>>(nodes_.size()), std::vector<std::vector<int>>(hosts), drawn_};
    std::vector<int> order(nodes_.size());
    std::iota(order.begin(), order.end(), 0);
    std::vector<char> has_devices(nodes_.size(), 0);
    for (const int node : by_depth_) {
      if (drawn_[at(node)] == 0 || parent_[at(node)] == kNone) continue;
      if (has_devices[at(node)] != 0 || order_of(nodes_[at(node)].kind) > 1) has_devices[at(parent_[at(node)])] = 1;
    }
    // What has devices comes before its like that has none.
    std::ranges::stable_sort(order, {}, [&](int node) {
      const int kind = order_of(nodes_[at(node)].kind);
      return std::pair(kind, kind == 0 && marks_.rank[at(node)] == kNone && has_devices[at(node)] == 0);
    });
    for (const int node : order) {
      if (drawn_[at(node)] == 0) continue;
      const int parent = parent_[at(node)];
      (parent == kNone ? forest.roots[at(nodes_[at(node)].host)] : forest.children[at(parent)]).push_back(node);
    }
    return forest;
  }

 private:
  static std::size_t at(int node) { return static_cast<std::size_t>(node); }
  int other_end(std::size_t cable, int node) const {
    return marks_.cables[cable].a == node ? marks_.cables[cable].b : marks_.cables[cable].a;
  }

  void take_parents() {
    parent_.assign(nodes_.size(), kNone);
    std::vector<int> inner(nodes_.size(), 0);
    for (const Node& node : nodes_) {
      if (node.parent != kNone && !is_bar(node)) ++inner[at(node.parent)];
    }
    // A package around one thing alone says nothing that this does not say.
    const auto is_shell = [&](int node) {
      return nodes_[at(node)].kind == NodeKind::kPackage && inner[at(node)] == 1 && cables_at_[at(node)].empty();
    };
    shell_.assign(nodes_.size(), 0);
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (is_bar(nodes_[i])) continue;
      int parent = nodes_[i].parent;
      while (parent != kNone && (is_shell(parent) || is_bar(nodes_[at(parent)]))) parent = nodes_[at(parent)].parent;
      parent_[i] = parent;
      shell_[i] = is_shell(static_cast<int>(i)) ? 1 : 0;
    }
  }

  bool is_within(int node, int ancestor) const {
    for (; node != kNone; node = parent_[at(node)]) {
      if (node == ancestor) return true;
    }
    return false;
  }

  /// Devices that nothing says the place of are put below what they are linked to, from NUMA nodes outwards.
  void infer_parents() {
    std::vector<char> reached(nodes_.size(), 0);
    const auto is_device = [&](int node) {
      const NodeKind kind = nodes_[at(node)].kind;
      return kind == NodeKind::kPci || kind == NodeKind::kGpu || kind == NodeKind::kNic;
    };
    const auto spread = [&](std::vector<int> queue) {
      for (const int node : queue) reached[at(node)] = 1;
      for (std::size_t i = 0; i < queue.size(); ++i) {
        for (const std::size_t cable : cables_at_[at(queue[i])]) {
          const int next = other_end(cable, queue[i]);
          if (reached[at(next)] != 0 || !is_device(next) || nodes_[at(next)].host != nodes_[at(queue[i])].host)
            continue;
          if (parent_[at(next)] == kNone && !is_within(queue[i], next)) parent_[at(next)] = queue[i];
          reached[at(next)] = 1;
          if (nodes_[at(next)].kind == NodeKind::kPci) queue.push_back(next);
        }
      }
    };
    std::vector<int> processors;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i].kind == NodeKind::kPackage || nodes_[i].kind == NodeKind::kNuma)
        processors.push_back(static_cast<int>(i));
    }
    spread(std::move(processors));
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i].kind == NodeKind::kPci && reached[i] == 0) spread({static_cast<int>(i)});
    }
  }

  int depth_of(int node) const {
    int depth = 0;
    for (node = parent_[at(node)]; node != kNone; node = parent_[at(node)]) ++depth;
    return depth;
  }

  void find_depths() {
    depth_.resize(nodes_.size());
    for (std::size_t i = 0; i < nodes_.size(); ++i) depth_[i] = depth_of(static_cast<int>(i));
    by_depth_.resize(nodes_.size());
    std::iota(by_depth_.begin(), by_depth_.end(), 0);
    std::ranges::stable_sort(by_depth_, [&](int a, int b) { return depth_[at(a)] > depth_[at(b)]; });
  }

  void contract() {
    std::vector<int> owner(nodes_.size());
    std::iota(owner.begin(), owner.end(), 0);
    for (auto node = by_depth_.rbegin(); node != by_depth_.rend(); ++node) {
      const int parent = parent_[at(*node)];
      if (parent == kNone || drawn_[at(*node)] == 0) continue;
      parent_[at(*node)] = owner[at(parent)];
      if (depth_[at(*node)] < kNestingMax || nodes_[at(*node)].kind != NodeKind::kPci) continue;
      owner[at(*node)] = owner[at(parent)];
      drawn_[at(*node)] = 0;
    }
    for (Cable& cable : marks_.cables) {
      cable.a = owner[at(cable.a)];
      cable.b = owner[at(cable.b)];
    }
  }

  void find_drawn() {
    drawn_.assign(nodes_.size(), 0);
    for (const int node : by_depth_) {
      const Node& what = nodes_[at(node)];
      if (is_bar(what) || shell_[at(node)] != 0) continue;
      const bool is_passage = what.kind == NodeKind::kPci && relays_[at(node)] == 0;
      if (!is_passage) drawn_[at(node)] = 1;
      if (drawn_[at(node)] != 0 && parent_[at(node)] != kNone) drawn_[at(parent_[at(node)])] = 1;
    }
  }

  void collapse() {
    std::vector<std::vector<int>> inner(nodes_.size());
    for (const int node : by_depth_) {
      if (drawn_[at(node)] != 0 && parent_[at(node)] != kNone) inner[at(parent_[at(node)])].push_back(node);
    }
    for (const int node : by_depth_) {
      if (nodes_[at(node)].kind != NodeKind::kPci || drawn_[at(node)] == 0 || inner[at(node)].size() != 1) continue;
      const int child = inner[at(node)][0];
      const int parent = parent_[at(node)];
      if (!only_joins(node, child, parent)) continue;
      join(node, child, parent);
      drawn_[at(node)] = 0;
      parent_[at(child)] = parent;
      if (parent != kNone) std::ranges::replace(inner[at(parent)], node, child);
    }
  }

  bool only_joins(int node, int child, int parent) const {
    return std::ranges::all_of(cables_at_[at(node)], [&](std::size_t cable) {
      const int other = other_end(cable, node);
      return other == child || other == parent || (drawn_[at(other)] == 0 && !is_bar(nodes_[at(other)]));
    });
  }

  void join(int node, int child, int parent) {
    Cable* to_child = nullptr;
    Cable* to_parent = nullptr;
    for (const std::size_t place : cables_at_[at(node)]) {
      const int other = other_end(place, node);
      if (other == child) to_child = &marks_.cables[place];
      if (other == parent) to_parent = &marks_.cables[place];
    }
    if (to_child == nullptr || to_parent == nullptr) return;
    const Cable& narrow = to_child->widest() < to_parent->widest() ? *to_child : *to_parent;
    Cable joined = narrow;
    const bool is_upwards = narrow.a == child || narrow.b == parent;
    joined.a = child;
    joined.b = parent;
    if (!is_upwards) std::swap(joined.there, joined.back);
    joined.counted = to_child->counted && to_parent->counted;
    joined.crossing = to_child->crossing || to_parent->crossing;
    *to_child = joined;
    to_parent->a = to_parent->b = node;  // nothing is between a box and itself
    const auto place = static_cast<std::size_t>(to_child - marks_.cables.data());
    cables_at_[at(parent)].push_back(place);
  }

  const std::vector<Node>& nodes_;
  Marks& marks_;
  std::vector<std::vector<std::size_t>> cables_at_;
  std::vector<char> relays_;
  std::vector<int> parent_;
  std::vector<int> depth_;
  std::vector<int> by_depth_;  ///< the deepest first
  std::vector<char> shell_;
  std::vector<char> drawn_;
};

}  // namespace

Forest plant(const Subject& subject, Marks& marks) {
  return Planter(subject, marks).plant(subject.graph.hosts().size());
}

}  // namespace tutti::drawing
