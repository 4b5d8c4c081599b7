#include "topology/shortest_routes.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <utility>

namespace tutti::topology {

ShortestRoutes::ShortestRoutes(const Network& network)
    : network_(network),
      count_(network.compute.size()),
      leaving_(network.nodes),
      computes_(network.nodes, 0),
      prices_(count_ * count_, 0),
      before_(count_) {
  for (std::size_t arc = 0; arc < network.arcs.size(); ++arc)
    leaving_[network.arcs[arc].from].push_back(static_cast<int>(arc));
  for (const int node : network.compute) computes_[node] = 1;
}

void ShortestRoutes::update(const std::vector<double>& prices) {
  for (std::size_t i = 0; i < count_; ++i) from(i, prices);
}

void ShortestRoutes::from(std::size_t i, const std::vector<double>& prices) {
  const int start = network_.compute[i];
  std::vector<double> least(network_.nodes, std::numeric_limits<double>::infinity());
  std::vector<int>& before = before_[i];
  before.assign(network_.nodes, kNone);
  using Entry = std::pair<double, int>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  least[start] = 0;
  queue.emplace(0, start);
  while (!queue.empty()) {
    const auto [price, node] = queue.top();
    queue.pop();
    if (price > least[node] || (computes_[node] != 0 && node != start)) continue;
    for (const int arc : leaving_[node]) {
      const int to = network_.arcs[arc].to;
      const double sum = price + prices[arc];
      if (sum >= least[to]) continue;
      least[to] = sum;
      before[to] = arc;
      queue.emplace(sum, to);
    }
  }
  for (std::size_t j = 0; j < count_; ++j) prices_[i * count_ + j] = least[network_.compute[j]];
}

std::vector<int> ShortestRoutes::arcs(std::size_t i, std::size_t j) const {
  std::vector<int> arcs;
  for (int node = network_.compute[j]; before_[i][node] != kNone; node = network_.arcs[arcs.back()].from)
    arcs.push_back(before_[i][node]);
  std::ranges::reverse(arcs);
  return arcs;
}

std::vector<int> ShortestRoutes::path(std::size_t i, std::size_t j) const {
  std::vector<int> nodes{network_.compute[i]};
  for (const int arc : arcs(i, j)) nodes.push_back(network_.arcs[arc].to);
  return nodes;
}

}  // namespace tutti::topology
