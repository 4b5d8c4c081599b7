#include "topology/cuts.h"

#include <algorithm>
#include <unordered_map>

namespace tutti::topology {

Cuts::Cuts(const Network& network, Wide scale) : nodes_(network.nodes), graph_(network.nodes + 2) {
  std::unordered_map<std::int64_t, int> pairs;  // opposite arcs share one pair: half the arcs to search
  for (const Arc& arc : network.arcs) {
    const std::int64_t key =
        static_cast<std::int64_t>(std::min(arc.from, arc.to)) * nodes_ + std::max(arc.from, arc.to);
    const auto [found, is_new] = pairs.try_emplace(key, graph_.arcs());
    if (is_new) {
      graph_.add_arc(std::min(arc.from, arc.to), std::max(arc.from, arc.to));
      capacities_.resize(capacities_.size() + 2, 0);
    }
    capacities_[found->second + (arc.from < arc.to ? 0 : 1)] += scale * arc.capacity;
  }
  source_arcs_ = graph_.arcs();
  for (int node = 0; node < nodes_; ++node) graph_.add_arc(nodes_, node);
  sink_arcs_ = graph_.arcs();
  for (int node = 0; node < nodes_; ++node) graph_.add_arc(node, nodes_ + 1);
  capacities_.resize(graph_.arcs(), 0);
  clear();
}

Wide Cuts::solve(Wide limit) { return graph_.augment(residual_, nodes_, nodes_ + 1, limit); }

std::vector<char> Cuts::inside() const {
  std::vector<char> marks = graph_.reachable(residual_, nodes_);
  marks.resize(nodes_);
  return marks;
}

}  // namespace tutti::topology
