#include "planner/routes.h"

#include "base/assert.h"

#include <algorithm>
#include <limits>

namespace tutti::planner {

namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

}  // namespace

/// By node: hops to the rank through switches alone, and the width of the widest such way.
struct Routes::Towards {
  static constexpr int kFar = std::numeric_limits<int>::max();
  std::vector<int> hops;
  std::vector<topology::Bandwidth> width;
  std::vector<int> order;  ///< nodes with a way, the nearest first
};

Routes::Routes(const topology::Network& network)
    : network_(network), leaving_(at(network.nodes)), entering_(at(network.nodes)) {
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

Routes::Towards Routes::search(int to) const {
  Towards way{std::vector<int>(at(network_.nodes), Towards::kFar),
              std::vector<topology::Bandwidth>(at(network_.nodes), 0),
              {to}};
  way.hops[at(to)] = 0;
  way.width[at(to)] = std::numeric_limits<topology::Bandwidth>::max();
  for (std::size_t i = 0; i < way.order.size(); ++i) {
    const int node = way.order[i];
    const bool computes = std::ranges::binary_search(network_.compute, node);
    if (computes && node != to) continue;
    for (const int arc : entering_[at(node)]) {
      const int from = network_.arcs[at(arc)].from;
      if (way.hops[at(from)] == Towards::kFar) {
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
  if (way.hops[at(from)] == Towards::kFar) return std::nullopt;
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
      const bool relays = link.to == to || !std::ranges::binary_search(network_.compute, link.to);
      const bool nearer =
          relays && way.hops[at(link.to)] != Towards::kFar && way.hops[at(link.to)] + 1 == way.hops[at(node)];
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
  const Towards way = search(to);
  for (const int rank : network_.compute) {
    if (rank != to) shortest_[{rank, to}] = follow(way, rank, to);
  }
  return shortest_[{from, to}];
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

std::optional<SteadyState> steady_state(const schedule::Schedule& schedule, Routes& routes) {
  // By lane and pair of ranks, in units.
  std::map<std::tuple<int, int, int>, double> sent;
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    for (std::size_t lane = 0; lane < schedule.ranks[rank].lanes.size(); ++lane) {
      const schedule::LaneProgram& program = schedule.ranks[rank].lanes[lane];
      for (const schedule::Step& step : program.steps) {
        for (const schedule::Endpoint& sink : program.sinks(step)) {
          if (sink.place != schedule::Place::kPeer || sink.width == 0) continue;
          sent[{static_cast<int>(lane), static_cast<int>(rank), static_cast<int>(sink.peer)}] += sink.width;
        }
      }
    }
  }
  // Of M bytes in all a unit has M / units_in_all.
  const double blocks = std::max(schedule.shape.input_blocks, schedule.shape.output_blocks);
  const double units_in_all = blocks * schedule.shape.units * schedule.shape.lanes;
  std::vector<double> loads(routes.network().arcs.size(), 0);
  for (const auto& [message, units] : sent) {
    const auto [lane, from, to] = message;
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

}  // namespace tutti::planner
