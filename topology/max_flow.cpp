#include "topology/max_flow.h"

#include <algorithm>

namespace tutti::topology {

int FlowGraph::add_node() {
  heads_.push_back(-1);
  return nodes() - 1;
}

int FlowGraph::add_arc(int from, int to) {
  const int arc = arcs();
  ends_.push_back(to);
  next_.push_back(heads_[from]);
  heads_[from] = arc;
  ends_.push_back(from);
  next_.push_back(heads_[to]);
  heads_[to] = arc + 1;
  return arc;
}

/// Distances to the sink, so that no dead end beyond it is walked into. False if the source is cut off.
bool FlowGraph::layer(const Residual& residual, int source, int sink) {
  levels_.assign(heads_.size(), -1);
  queue_.clear();
  queue_.push_back(sink);
  levels_[sink] = 0;
  for (std::size_t i = 0; i < queue_.size(); ++i) {
    const int node = queue_[i];
    const int level = levels_[node];
    for (int arc = heads_[node]; arc >= 0; arc = next_[arc]) {
      const int from = ends_[arc];
      if (levels_[from] >= 0 || residual[arc ^ 1] <= 0) continue;
      levels_[from] = level + 1;
      if (from == source) return true;
      queue_.push_back(from);
    }
  }
  return false;
}

/// One path along falling levels, without recursion: networks may be long chains. 0 if there is none left.
Wide FlowGraph::push_path(Residual& residual, int source, int sink, Wide limit) {
  path_.clear();
  int node = source;
  while (node != sink) {
    int& arc = at_[node];
    while (arc >= 0 && (residual[arc] <= 0 || levels_[ends_[arc]] + 1 != levels_[node])) {
      arc = next_[arc];
    }
    if (arc >= 0) {
      path_.push_back(arc);
      node = ends_[arc];
      continue;
    }
    if (path_.empty()) return 0;
    node = ends_[path_.back() ^ 1];
    int& dead = at_[node];
    dead = next_[dead];
    path_.pop_back();
  }
  Wide amount = limit;
  for (const int arc : path_) amount = std::min(amount, residual[arc]);
  for (const int arc : path_) {
    residual[arc] -= amount;
    residual[arc ^ 1] += amount;
  }
  return amount;
}

Wide FlowGraph::augment(Residual& residual, int source, int sink, Wide limit) {
  Wide pushed = 0;
  if (source == sink) return limit;
  while (pushed < limit && layer(residual, source, sink)) {
    at_ = heads_;
    while (pushed < limit) {
      const Wide amount = push_path(residual, source, sink, limit - pushed);
      if (amount == 0) break;
      pushed += amount;
    }
  }
  return pushed;
}

std::vector<char> FlowGraph::reachable(const Residual& residual, int source) const {
  std::vector<char> seen(heads_.size(), 0);
  std::vector<int> stack{source};
  seen[source] = 1;
  while (!stack.empty()) {
    const int node = stack.back();
    stack.pop_back();
    for (int arc = heads_[node]; arc >= 0; arc = next_[arc]) {
      const int to = ends_[arc];
      if (seen[to] != 0 || residual[arc] <= 0) continue;
      seen[to] = 1;
      stack.push_back(to);
    }
  }
  return seen;
}

}  // namespace tutti::topology
