#include "topology/capacities.h"

#include <vector>

namespace tutti::topology {

void drop_dead_ends(Capacities& capacities, const std::set<int>& kept) {
  std::map<int, std::set<int>> neighbours;
  for (const auto& [ends, capacity] : capacities) {
    neighbours[ends.first].insert(ends.second);
    neighbours[ends.second].insert(ends.first);
  }
  std::vector<int> queue;
  for (const auto& [node, around] : neighbours) queue.push_back(node);
  while (!queue.empty()) {
    const int node = queue.back();
    queue.pop_back();
    const auto found = neighbours.find(node);
    if (found == neighbours.end() || found->second.size() > 1 || kept.contains(node)) continue;
    for (const int next : found->second) {
      neighbours[next].erase(node);
      capacities.erase({node, next});
      capacities.erase({next, node});
      queue.push_back(next);
    }
    neighbours.erase(found);
  }
}

}  // namespace tutti::topology
