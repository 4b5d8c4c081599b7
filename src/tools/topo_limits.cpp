// Limits beside the bound: of switches that add, of memory, of latency.
#include "tools/topo_report.h"

#include <algorithm>
#include <cmath>

namespace tutti::tools {
namespace {

using topology::Bandwidth;

/// What each rank has to the one switch that joins them all, and nothing else; 0 if there is no such switch.
Bandwidth to_one_switch(const Planned& planned) {
  const topology::Network& network = planned.view.network;
  if (network.nodes != planned.plan.ranks + 1) return 0;
  if (planned.graph.node(planned.view.nodes.back()).kind != topology::NodeKind::kSwitch) return 0;
  Bandwidth least = 0;
  for (const topology::Arc& arc : network.arcs) {
    if (arc.from < planned.plan.ranks && arc.to < planned.plan.ranks) return 0;
    least = least == 0 ? arc.capacity : std::min(least, arc.capacity);
  }
  return least;
}

/// Of the NUMA nodes that are ranks, the slowest memory; 0 if one is not known.
Bandwidth slowest_memory(const Planned& planned) {
  if (planned.view.compute != topology::ComputeKind::kNuma) return 0;
  Bandwidth least = 0;
  for (const int rank : planned.view.network.compute) {
    const Bandwidth memory = planned.graph.node(planned.view.nodes[static_cast<std::size_t>(rank)]).facts.memory;
    if (memory == 0) return 0;
    least = least == 0 ? memory : std::min(least, memory);
  }
  return least;
}

}  // namespace

OtherLimits other_limits(const Planned& planned) {
  OtherLimits limits;
  const int ranks = planned.plan.ranks;
  const bool all_reduce = planned.plan.question.collective == Collective::kAllReduce;
  if (const Bandwidth each = to_one_switch(planned); all_reduce && each > 0) {
    limits.nvls_gbps = topology::gbps(each);
    limits.nccl_nvls_gbps = topology::nccl_nvls_rate(each, ranks).to_double() / topology::kGigabyte;
  }
  if (const Bandwidth memory = slowest_memory(planned); memory > 0) {
    const topology::Rational rate =
        all_reduce ? topology::host_memory_bound(memory, 1) : topology::block_memory_bound(memory, ranks);
    limits.memory_gbps = rate.to_double() / topology::kGigabyte;
  }
  const planner::WireCosts lines = wire_costs_of(planned).front();
  limits.hop_us = planned.plan.question.hosts.size() > 1 ? lines.across_us : lines.inside_us;
  constexpr double kNsInUs = 1000;
  const auto hop_ns = static_cast<std::int64_t>(std::llround(limits.hop_us * kNsInUs));
  limits.hops_at_once = topology::hops_bound(ranks, true);
  limits.hops_in_turn = topology::hops_bound(ranks, false);
  // Of the hops in turn, those inside a host are quicker; at least the doublings of hosts are not.
  const int hosts = std::max(1, static_cast<int>(planned.plan.question.hosts.size()));
  const int across = hosts > 1 ? topology::hops_bound(hosts, false) : 0;
  const auto inside_ns = static_cast<std::int64_t>(std::llround(lines.inside_us * kNsInUs));
  limits.at_once_us = static_cast<double>(topology::latency_bound_ns(ranks, true, hop_ns)) / kNsInUs;
  limits.in_turn_us = static_cast<double>(across * hop_ns + (limits.hops_in_turn - across) * inside_ns) / kNsInUs;
  return limits;
}

}  // namespace tutti::tools
