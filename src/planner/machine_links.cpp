#include "planner/machine_links.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace tutti::planner {

namespace {

LinkClass class_of(topology::LinkKind kind) {
  using enum topology::LinkKind;
  switch (kind) {
    case kNvLink:
    case kXgmi:
    case kC2c: return LinkClass::kNvLink;
    case kPci:
    case kCpu:
    case kMemory: return LinkClass::kPci;
    case kNetwork: return LinkClass::kNetwork;
  }
  return LinkClass::kPci;
}

/// Pairs of ranks that exchange messages, by lane.
std::set<std::tuple<int, int, int>> messages_of(const schedule::Schedule& schedule) {
  std::set<std::tuple<int, int, int>> messages;
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    for (std::size_t lane = 0; lane < schedule.ranks[rank].lanes.size(); ++lane) {
      const schedule::LaneProgram& program = schedule.ranks[rank].lanes[lane];
      for (const schedule::Step& step : program.steps) {
        for (const schedule::Endpoint& sink : program.sinks(step)) {
          if (sink.place == schedule::Place::kPeer)
            messages.emplace(static_cast<int>(lane), static_cast<int>(rank), static_cast<int>(sink.peer));
        }
      }
    }
  }
  return messages;
}

}  // namespace

LinkTable link_table(const topology::Graph& graph, const topology::View& view) {
  std::map<std::pair<int, int>, std::pair<LinkClass, int>> between;  // the class and latency in ns
  for (const topology::Link& link : graph.links()) {
    const LinkClass link_class =
        view.compute == topology::ComputeKind::kNuma && link.kind != topology::LinkKind::kNetwork ? LinkClass::kMemory
                                                                                                  : class_of(link.kind);
    const auto [found, added] = between.try_emplace({link.from, link.to}, link_class, link.latency_ns);
    if (added) continue;
    // Parallel links of several kinds: the quicker one.
    found->second.first = std::min(found->second.first, link_class);
    found->second.second = std::min(found->second.second, link.latency_ns);
  }
  LinkTable table;
  for (const topology::Arc& arc : view.network.arcs) {
    const auto node = [&](int number) { return view.nodes[static_cast<std::size_t>(number)]; };
    const auto [link_class, latency_ns] = between.at({node(arc.from), node(arc.to)});
    table.push_back({topology::gbps(arc.capacity), latency_ns * 1e-3, link_class});
  }
  return table;
}

bool may_be_direct(const LinkTable& table) {
  return std::ranges::none_of(table, [](const TableLink& link) { return link.link_class == LinkClass::kNetwork; });
}

MachineLinks::MachineLinks(const topology::Network& network, LinkTable table)
    : table_(std::move(table)), routes_(network) {}

void MachineLinks::take_paths(const MachineCandidate& candidate) {
  routes_.forget_paths();
  for (const auto& [lane, path] : candidate.paths) routes_.add_path(lane, path);
}

bool MachineLinks::has_all_routes(const MachineCandidate& candidate) {
  take_paths(candidate);
  return std::ranges::all_of(messages_of(candidate.schedule), [&](const auto& message) {
    const auto [lane, from, to] = message;
    return routes_.route(lane, from, to).has_value();
  });
}

bool MachineLinks::crosses_network(const MachineCandidate& candidate) {
  if (may_be_direct(table_)) return false;
  take_paths(candidate);
  return std::ranges::any_of(messages_of(candidate.schedule), [&](const auto& message) {
    const auto [lane, from, to] = message;
    const std::optional<Route> route = routes_.route(lane, from, to);
    return route && std::ranges::any_of(*route, [&](const auto& part) {
             return table_[static_cast<std::size_t>(part.first)].link_class == LinkClass::kNetwork;
           });
  });
}

LinkPath MachineLinks::crossed(const MachineCandidate& candidate, int lane, int from, int to) {
  take_paths(candidate);
  LinkPath path;
  if (const std::optional<Route> route = routes_.route(lane, from, to)) {
    for (const auto& [arc, part] : *route) path.push_back({arc, part});
  }
  return path;
}

schedule::MessagePath MachineLinks::path(int lane, int from, int to, const schedule::ProtocolFigures& protocol,
                                         bool branching) {
  schedule::MessagePath path;
  const std::optional<Route> route = routes_.route(lane, from, to);
  if (!route) return path;
  LinkClass slowest = LinkClass::kMemory;
  double own_us = 0;
  std::map<int, double> parts;
  for (const auto& [arc, part] : *route) {
    const TableLink& link = table_[static_cast<std::size_t>(arc)];
    slowest = std::max(slowest, link.link_class);
    own_us += part * link.latency_us;
    parts[arc] += part;
  }
  for (const auto& [arc, part] : parts) path.links.push_back({arc, part});
  const auto& hops = branching ? protocol.branching_hop_us : protocol.chain_hop_us;
  path.latency_us = std::max(0.0, hops[static_cast<std::size_t>(slowest)] - protocol.step_us) + own_us;
  path.credit_us = protocol.credit_us[static_cast<std::size_t>(slowest)] + own_us;
  return path;
}

schedule::SimulatedMachine MachineLinks::machine(const MachineCandidate& candidate,
                                                 const schedule::ProtocolFigures& protocol) {
  take_paths(candidate);
  const bool branching = schedule::is_branching(candidate.schedule);
  schedule::SimulatedMachine machine;
  machine.links = table_;
  machine.path = [this, &protocol, branching](int lane, int from, int to) {
    return path(lane, from, to, protocol, branching);
  };
  return machine;
}

schedule::SimulatedCall MachineLinks::call(const MachineCandidate& candidate,
                                           const schedule::ProtocolFigures& protocol) {
  schedule::SimulatedCall call;
  call.slots = protocol.slots;
  call.slots.slots = std::max(call.slots.slots, static_cast<std::uint32_t>(candidate.slots));
  call.direct = protocol.direct;
  call.base_us = schedule::is_branching(candidate.schedule) ? protocol.branching_base_us : protocol.chain_base_us;
  call.step_us = protocol.step_us;
  call.wire_bytes = protocol.wire_bytes;
  return call;
}

schedule::SimulatedMachine host_machine(int ranks, double core_gbps, double memory_gbps,
                                        const schedule::ProtocolFigures& protocol) {
  constexpr auto kMemory = static_cast<std::size_t>(LinkClass::kMemory);
  schedule::SimulatedMachine machine;
  for (int rank = 0; rank < ranks; ++rank) {
    machine.links.push_back({core_gbps, 0, LinkClass::kMemory});
    machine.work.push_back({{rank, 1}, {ranks, 1}});
  }
  machine.links.push_back({memory_gbps, 0, LinkClass::kMemory});
  machine.path = [&protocol](int, int, int) {
    return schedule::MessagePath{{}, protocol.chain_hop_us[kMemory] - protocol.step_us, protocol.credit_us[kMemory]};
  };
  return machine;
}

}  // namespace tutti::planner
