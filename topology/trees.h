// Spanning trees over compute nodes with their paths through switches, and what they put on the links: the check on every
// packing, which knows nothing of how it was made.
#pragma once

#include "topology/network.h"
#include "topology/rational.h"

#include <vector>

namespace tutti::topology {

struct TreeEdge {
  int parent = 0;
  int child = 0;
  std::vector<int> path;  ///< from parent to child with both, switches between
};

struct TreeLane {
  Rational rate;                ///< kB/s
  int weight = 0;               ///< its part of all lanes' weights, where these are limited; 0 otherwise
  int root = 0;                 ///< all-reduce: the middle of the tree
  std::vector<TreeEdge> edges;  ///< parents first
};

/// Makes the node the root that the fewest edges lie beyond, and orders the edges from there.
void root_in_the_middle(TreeLane& lane);

/// The edges in an order in which each comes after the one that leads to its parent.
std::vector<TreeEdge> parents_first(std::vector<TreeEdge> edges, int root);

/// Edges between the root and the node farthest from it.
int depth_of(const TreeLane& lane);

/// Lanes of the same root and edges become one with the sum of their rates and weights.
std::vector<TreeLane> merged(std::vector<TreeLane> lanes);

/// How trees use links.
enum class TreeUse {
  kUpAndDown,  ///< all-reduce: every path in both directions
  kDown,       ///< all-gather
  kUp,         ///< reduce-scatter
};

struct Loads {
  std::vector<Rational> arcs;  ///< by the network's arcs, kB/s
  bool connected = true;  ///< every lane is a spanning tree, every path leads along arcs and through switches alone
  bool hold = true;       ///< and no arc carries more than its capacity
};

/// Adds up what the lanes put on every arc.
Loads loads(const Network& network, const std::vector<TreeLane>& lanes, TreeUse use);

/// The largest factor by which all rates can grow before a link is full: 1 where one is full already.
Rational headroom(const Network& network, const Loads& loads);

}  // namespace tutti::topology
