#include "planner/routes.h"

#include "base/assert.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

namespace tutti::planner {

namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

constexpr int kFar = std::numeric_limits<int>::max();

}  // namespace

Routes::Routes(const topology::Network& network)
    : network_(network), leaving_(at(network.nodes)), entering_(at(network.nodes)), computes_(at(network.nodes), 0) {
  for (const int rank : network.compute) computes_[at(rank)] = 1;
  for (std::size_t arc = 0; arc < network.arcs.size(); ++arc) {
    leaving_[at(network.arcs[arc].from)].push_back(static_cast<int>(arc));
    entering_[at(network.arcs[arc].to)].push_back(static_cast<int>(arc));
    arcs_[{network.arcs[arc].from, network.arcs[arc].to}] = static_cast<int>(arc);
  }
}

void Routes::add_path(int lane, const std::vector<int>& path) {
  Route route;
  for (std::size_t i = 0; i + 1 < path.size(); ++i) {
    const auto arc = arcs_.find({path[i], path[i + 1]});
    TUTTI_ASSERT(arc != arcs_.end());
    route.emplace_back(arc->second, 1);
  }
  paths_[{lane, path.front(), path.back()}].push_back(std::move(route));
}

/// Each takes memory for every node.
constexpr std::size_t kTowardsKept = 1024;

Routes::Towards Routes::search(int to) const {
  Towards way{
      std::vector<int>(at(network_.nodes), kFar), std::vector<topology::Bandwidth>(at(network_.nodes), 0), {to}};
  way.hops[at(to)] = 0;
  way.width[at(to)] = std::numeric_limits<topology::Bandwidth>::max();
  for (std::size_t i = 0; i < way.order.size(); ++i) {
    const int node = way.order[i];
    if (computes_[at(node)] != 0 && node != to) continue;
    for (const int arc : entering_[at(node)]) {
      const int from = network_.arcs[at(arc)].from;
      if (way.hops[at(from)] == kFar) {
        way.hops[at(from)] = way.hops[at(node)] + 1;
        way.order.push_back(from);
      }
      if (way.hops[at(from)] != way.hops[at(node)] + 1) continue;
      const topology::Bandwidth width = std::min(way.width[at(node)], network_.arcs[at(arc)].capacity);
      way.width[at(from)] = std::max(way.width[at(from)], width);
    }
  }
  return way;
}

std::optional<Route> Routes::follow(const Towards& way, int from, int to) const {
  if (way.hops[at(from)] == kFar) return std::nullopt;
  const topology::Bandwidth width = way.width[at(from)];
  std::map<int, double> amounts{{from, 1}};
  std::vector<int> queue{from};  // in order of distance, as every arc that is taken leads one hop nearer
  Route route;
  for (std::size_t i = 0; i < queue.size(); ++i) {
    const int node = queue[i];
    if (node == to) continue;
    std::vector<int> next;
    for (const int arc : leaving_[at(node)]) {
      const topology::Arc& link = network_.arcs[at(arc)];
      const bool relays = link.to == to || computes_[at(link.to)] == 0;
      const bool nearer = relays && way.hops[at(link.to)] != kFar && way.hops[at(link.to)] + 1 == way.hops[at(node)];
      if (nearer && std::min(link.capacity, way.width[at(link.to)]) >= width) next.push_back(arc);
    }
    for (const int arc : next) {
      const double part = amounts[node] / static_cast<double>(next.size());
      route.emplace_back(arc, part);
      const int reached = network_.arcs[at(arc)].to;
      if (!amounts.contains(reached)) queue.push_back(reached);
      amounts[reached] += part;
    }
  }
  return route;
}

const std::optional<Route>& Routes::shortest(int from, int to) {
  const auto found = shortest_.find({from, to});
  if (found != shortest_.end()) return found->second;
  auto way = towards_.find(to);
  if (way == towards_.end() && towards_.size() == kTowardsKept) towards_.clear();
  if (way == towards_.end()) way = towards_.emplace(to, search(to)).first;
  return shortest_[{from, to}] = follow(way->second, from, to);
}

std::optional<Route> Routes::route(int lane, int from, int to) {
  const auto found = paths_.find({lane, from, to});
  if (found == paths_.end()) return shortest(from, to);
  Route all;
  for (const Route& path : found->second) {
    for (const auto& [arc, part] : path) all.emplace_back(arc, part / static_cast<double>(found->second.size()));
  }
  return all;
}

void Traffic::add(int rank, const schedule::RankProgram& program) {
  for (std::size_t lane = 0; lane < program.lanes.size(); ++lane) {
    std::vector<std::uint32_t> peers;
    for (const schedule::Step& step : program.lanes[lane].steps) {
      for (const schedule::Endpoint& sink : program.lanes[lane].sinks(step)) {
        if (sink.place != schedule::Place::kPeer || sink.width == 0) continue;
        if (units_[sink.peer] == 0) peers.push_back(sink.peer);
        units_[sink.peer] += sink.width;
      }
    }
    for (const std::uint32_t peer : peers)
      sent_[{static_cast<int>(peer), static_cast<int>(lane), rank}] += std::exchange(units_[peer], 0);
  }
}

std::optional<SteadyState> Traffic::steady_state(const schedule::Shape& shape, Routes& routes) const {
  // Of M bytes in all a unit has M / units_in_all.
  const double blocks = std::max(shape.input_blocks, shape.output_blocks);
  const double units_in_all = blocks * shape.units * shape.lanes;
  std::vector<double> loads(routes.network().arcs.size(), 0);
  for (const auto& [message, units] : sent_) {
    const auto [to, lane, from] = message;
    const std::optional<Route> route = routes.route(lane, from, to);
    if (!route) return std::nullopt;
    for (const auto& [arc, part] : *route) loads[at(arc)] += part * units / units_in_all;
  }
  SteadyState state;
  double longest = 0;  // by a GB in all, in seconds
  for (std::size_t arc = 0; arc < loads.size(); ++arc) {
    const double takes = loads[arc] / topology::gbps(routes.network().arcs[arc].capacity);
    if (takes <= longest) continue;
    longest = takes;
    state.fullest = static_cast<int>(arc);
  }
  state.gbps = longest > 0 ? 1 / longest : std::numeric_limits<double>::infinity();
  return state;
}

std::optional<SteadyState> steady_state(const schedule::Schedule& schedule, Routes& routes) {
  Traffic traffic(schedule.request.ranks);
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank)
    traffic.add(static_cast<int>(rank), schedule.ranks[rank]);
  return traffic.steady_state(schedule.shape, routes);
}

}  // namespace tutti::planner
