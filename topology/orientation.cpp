#include "topology/orientation.h"

#include "topology/cuts.h"
#include "topology/max_flow.h"

#include <algorithm>

namespace tutti::topology {

namespace {

/// What each compute node takes in more than it gives, the least in turn. With m(v) what v takes in, every orientation lets
/// m(X) - (capacity inside X) into X, so it is enough that this is `rate` or more for all X with compute nodes but without the
/// root, and not negative for the others. Both conditions bound a supermodular function from above; for those, taking the
/// least in turn ends with the least sum. In terms of n = 2 m - degree they read: cut(X) + n(X) >= 2 rate, or 0.
std::vector<Wide> surpluses(const Network& network, Wide scale, Wide rate, int root) {
  std::vector<int> order = network.compute;
  std::erase(order, root);
  order.insert(order.begin(), root);
  std::vector<Wide> surplus(network.nodes, 0);
  Cuts cuts(network, scale);
  const auto least = [&](std::size_t at, bool root_outside) {
    cuts.clear();
    Wide negative = 0;
    for (std::size_t j = 0; j < order.size(); ++j) {
      const int node = order[j];
      if (j == at) {
        cuts.price_outside(node, kUnlimited);
      } else if (j > at || (root_outside && node == root)) {
        cuts.price_inside(node, kUnlimited);
      } else if (surplus[node] >= 0) {
        cuts.price_inside(node, surplus[node]);
      } else {
        cuts.price_outside(node, -surplus[node]);
        negative += surplus[node];
      }
    }
    return cuts.solve() + negative;
  };
  for (std::size_t at = 0; at < order.size(); ++at) {
    surplus[order[at]] = -least(at, false);
    if (at > 0) surplus[order[at]] = std::max(surplus[order[at]], 2 * rate - least(at, true));
  }
  return surplus;
}

}  // namespace

std::optional<std::vector<Flow>> orient(const Network& network, Wide scale, Wide rate, int root) {
  const std::vector<Wide> surplus = surpluses(network, scale, rate, root);
  Wide total = 0;
  for (const Wide amount : surplus) total += amount;
  if (total != 0) return std::nullopt;
  // Start from halves, then turn links around along paths until every node has its surplus.
  const int source = network.nodes;
  const int sink = network.nodes + 1;
  FlowGraph graph(network.nodes + 2);
  FlowGraph::Residual residual;
  std::vector<Wide> excess(network.nodes);
  for (int node = 0; node < network.nodes; ++node) excess[node] = -surplus[node];
  std::vector<Flow> flows;
  for (const Arc& arc : network.arcs) {
    if (arc.from > arc.to) continue;
    const Wide there = scale * arc.capacity / 2;
    const Wide back = scale * arc.capacity - there;
    flows.push_back({arc.from, arc.to, 0});
    graph.add_arc(arc.to, arc.from);  // moves the taking-in from `to` to `from`
    residual.insert(residual.end(), {there, back});
    excess[arc.to] += there - back;
    excess[arc.from] += back - there;
  }
  Wide to_move = 0;
  for (int node = 0; node < network.nodes; ++node) {
    if (excess[node] == 0) continue;
    graph.add_arc(excess[node] > 0 ? source : node, excess[node] > 0 ? node : sink);
    residual.insert(residual.end(), {std::max(excess[node], -excess[node]) / 2, 0});
    to_move += std::max<Wide>(excess[node], 0) / 2;
  }
  if (graph.augment(residual, source, sink) != to_move) return std::nullopt;
  const std::size_t links = flows.size();
  for (std::size_t i = 0; i < links; ++i) {
    flows[i].amount = residual[2 * i];
    flows.push_back({flows[i].to, flows[i].from, residual[2 * i + 1]});
  }
  std::erase_if(flows, [](const Flow& flow) { return flow.amount == 0; });
  return flows;
}

}  // namespace tutti::topology
