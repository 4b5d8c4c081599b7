#include "topology/trees.h"

#include <algorithm>
#include <compare>
#include <map>
#include <utility>

namespace tutti::topology {

namespace {

struct Neighbour {
  int node = 0;
  std::vector<int> path;
};

using Neighbours = std::map<int, std::vector<Neighbour>>;

Neighbours neighbours_in(const TreeLane& lane) {
  Neighbours neighbours;
  for (const TreeEdge& edge : lane.edges) {
    neighbours[edge.parent].push_back({edge.child, edge.path});
    neighbours[edge.child].push_back({edge.parent, {edge.path.rbegin(), edge.path.rend()}});
  }
  return neighbours;
}

/// The edges breadth first from the root, which puts parents first.
std::vector<TreeEdge> edges_from(const Neighbours& neighbours, int root) {
  std::vector<TreeEdge> edges;
  std::vector<std::pair<int, int>> queue{{root, root}};  // a node and its parent
  for (std::size_t i = 0; i < queue.size(); ++i) {
    const auto [node, parent] = queue[i];
    const auto found = neighbours.find(node);
    if (found == neighbours.end()) continue;
    for (const Neighbour& next : found->second) {
      if (next.node == parent) continue;
      edges.push_back({node, next.node, next.path});
      queue.emplace_back(next.node, node);
    }
  }
  return edges;
}

int depth_of(const std::vector<TreeEdge>& edges) {
  std::map<int, int> depths;
  int deepest = 0;
  for (const TreeEdge& edge : edges) {
    depths[edge.child] = depths[edge.parent] + 1;
    deepest = std::max(deepest, depths[edge.child]);
  }
  return deepest;
}

bool is_spanning_tree(const Network& network, const TreeLane& lane) {
  if (lane.edges.size() + 1 != network.compute.size()) return false;
  std::vector<char> reached(network.nodes, 0);
  if (!std::ranges::binary_search(network.compute, lane.root)) return false;
  reached[lane.root] = 1;
  for (const TreeEdge& edge : lane.edges) {
    if (!std::ranges::binary_search(network.compute, edge.child)) return false;
    if (reached[edge.parent] == 0 || reached[edge.child] != 0) return false;
    reached[edge.child] = 1;
    const std::vector<int>& path = edge.path;
    if (path.size() < 2 || path.front() != edge.parent || path.back() != edge.child) return false;
    for (std::size_t i = 1; i + 1 < path.size(); ++i) {
      if (std::ranges::binary_search(network.compute, path[i])) return false;
    }
  }
  return true;
}

}  // namespace

void root_in_the_middle(TreeLane& lane) {
  const Neighbours neighbours = neighbours_in(lane);
  if (neighbours.empty()) return;
  // The middle of a longest way through the tree: the last node seen from anywhere is one of its ends.
  const int one_end = edges_from(neighbours, lane.root).back().child;
  const std::vector<TreeEdge> from_there = edges_from(neighbours, one_end);
  std::map<int, int> parents;
  for (const TreeEdge& edge : from_there) parents[edge.child] = edge.parent;
  int middle = from_there.back().child;
  for (int up = depth_of(from_there) / 2; up > 0; --up) middle = parents[middle];
  lane.root = middle;
  lane.edges = edges_from(neighbours, middle);
}

std::vector<TreeEdge> parents_first(std::vector<TreeEdge> edges, int root) {
  std::vector<TreeEdge> ordered;
  std::vector<int> queue{root};
  for (std::size_t i = 0; i < queue.size(); ++i) {
    for (TreeEdge& edge : edges) {
      if (edge.parent != queue[i] || edge.path.empty()) continue;
      queue.push_back(edge.child);
      ordered.push_back(std::exchange(edge, {}));
    }
  }
  return ordered;
}

int depth_of(const TreeLane& lane) { return depth_of(lane.edges); }

std::vector<TreeLane> merged(std::vector<TreeLane> lanes) {
  const auto shape = [](const TreeLane& lane) {
    std::vector<std::vector<int>> paths;
    for (const TreeEdge& edge : lane.edges) paths.push_back(edge.path);
    std::ranges::sort(paths);
    return std::pair(lane.root, paths);
  };
  std::map<decltype(shape(TreeLane())), std::size_t> places;
  std::vector<TreeLane> result;
  for (TreeLane& lane : lanes) {
    const auto [place, is_new] = places.try_emplace(shape(lane), result.size());
    if (is_new) {
      result.push_back(std::move(lane));
    } else {
      result[place->second].rate = result[place->second].rate + lane.rate;
      result[place->second].weight += lane.weight;
    }
  }
  return result;
}

Loads loads(const Network& network, const std::vector<TreeLane>& lanes, TreeUse use) {
  Loads sums;
  sums.arcs.assign(network.arcs.size(), Rational(0));
  std::map<std::pair<int, int>, std::size_t> places;
  for (std::size_t i = 0; i < network.arcs.size(); ++i) places[{network.arcs[i].from, network.arcs[i].to}] = i;
  const auto add = [&](int from, int to, const Rational& rate) {
    const auto place = places.find({from, to});
    if (place == places.end()) {
      sums.connected = false;
    } else {
      sums.arcs[place->second] = sums.arcs[place->second] + rate;
    }
  };
  for (const TreeLane& lane : lanes) {
    sums.connected = sums.connected && is_spanning_tree(network, lane);
    for (const TreeEdge& edge : lane.edges) {
      for (std::size_t i = 0; i + 1 < edge.path.size(); ++i) {
        if (use != TreeUse::kUp) add(edge.path[i], edge.path[i + 1], lane.rate);
        if (use != TreeUse::kDown) add(edge.path[i + 1], edge.path[i], lane.rate);
      }
    }
  }
  sums.hold = sums.connected;
  for (std::size_t i = 0; i < sums.arcs.size(); ++i)
    sums.hold = sums.hold && sums.arcs[i] <= Rational(network.arcs[i].capacity);
  return sums;
}

Rational headroom(const Network& network, const Loads& loads) {
  Rational factor(0);
  for (std::size_t i = 0; i < loads.arcs.size(); ++i) {
    if (loads.arcs[i] == Rational(0)) continue;
    const Rational here = Rational(network.arcs[i].capacity) / loads.arcs[i];
    if (factor == Rational(0) || here < factor) factor = here;
  }
  return factor;
}

}  // namespace tutti::topology
