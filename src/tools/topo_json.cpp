// The JSON of tutti-topo.
#include "tools/topo_report.h"
#include "tools/topo_simulate.h"

#include "topology/bandwidths.h"

#include <nlohmann/json.hpp>

namespace tutti::tools {
namespace {

nlohmann::json names(const Planned& planned, const std::vector<int>& nodes) {
  nlohmann::json list = nlohmann::json::array();
  for (const int node : nodes) list.push_back(planned.name_of(node));
  return list;
}

/// The nodes of the cut, or the blocks of the partition; nothing binds a rank that is alone.
nlohmann::json binding(const Planned& planned) {
  const planner::Certificate& certificate = planned.plan.certificate;
  if (certificate.unlimited || certificate.by_memory() || certificate.gbps == 0) return nlohmann::json::array();
  if (planned.plan.question.collective != Collective::kAllReduce) return names(planned, certificate.cut.nodes);
  nlohmann::json blocks = nlohmann::json::array();
  for (const auto& block : certificate.partition.blocks) blocks.push_back(names(planned, block));
  return blocks;
}

/// The cheapest by size, latency and bandwidth counted.
nlohmann::ordered_json sizes(const Planned& planned) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const planner::SizeChoice& choice : choices_by_size(planned.plan, wire_costs_of(planned))) {
    const planner::MachineCandidate& candidate = planned.plan.candidates[choice.candidate];
    nlohmann::ordered_json entry = {{"from_bytes", choice.from_bytes},
                                    {"algorithm", candidate.algorithm},
                                    {"lanes", candidate.lanes},
                                    {"us", choice.us}};
    if (!candidate.hierarchy.groups.empty()) entry["across"] = candidate.hierarchy.across;
    list.push_back(std::move(entry));
  }
  return list;
}

/// Sizes with each algorithm's time and rates, and where which is the fastest.
nlohmann::ordered_json simulation(const Simulated& simulated) {
  const double factor = planner::bus_factor(simulated.arena.collective(), simulated.arena.ranks());
  nlohmann::ordered_json sizes = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < simulated.sweep.sizes.size(); ++i) {
    nlohmann::ordered_json algorithms;
    for (const planner::SweptAlgorithm& algorithm : simulated.sweep.algorithms) {
      const planner::SweptPoint& point = algorithm.points[i];
      const double gbps = static_cast<double>(point.bytes) / (point.us * 1e3);
      algorithms[simulated.candidate(algorithm.candidate).label()] = {{"us", point.us},
                                                                      {"algbw_gbps", gbps},
                                                                      {"busbw_gbps", gbps * factor},
                                                                      {"protocol", point.protocol},
                                                                      {"extrapolated", point.extrapolated}};
    }
    sizes.push_back({{"bytes", simulated.sweep.sizes[i]},
                     {"fastest", simulated.candidate(simulated.sweep.fastest[i]).label()},
                     {"algorithms", std::move(algorithms)}});
  }
  nlohmann::ordered_json crossovers = nlohmann::ordered_json::array();
  for (const planner::Crossover& crossover : simulated.sweep.crossovers)
    crossovers.push_back({{"bytes", crossover.bytes}, {"fastest", simulated.candidate(crossover.candidate).label()}});
  return {{"held", simulated.held},
          {"sizes", std::move(sizes)},
          {"crossovers", std::move(crossovers)},
          {"left_out", simulated.arena.left_out()},
          {"simulating_ms", simulated.simulating_ms}};
}

std::string dumped(const nlohmann::ordered_json& report) {
  // Names come from files, which may hold anything.
  return report.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

nlohmann::ordered_json others(const Planned& planned) {
  const OtherLimits limits = other_limits(planned);
  const auto known = [](double value) { return value > 0 ? nlohmann::json(value) : nlohmann::json(); };
  return {{"nvls_gbps", known(limits.nvls_gbps)},
          {"nccl_nvls_gbps", known(limits.nccl_nvls_gbps)},
          {"host_memory_gbps", known(limits.memory_gbps)},
          {"latency_us", limits.at_once_us},
          {"latency_in_turn_us", limits.in_turn_us}};
}

}  // namespace

std::string to_json(const Simulated& simulated) {
  return dumped({{"ranks", simulated.arena.ranks()},
                 {"collective", name_of(simulated.arena.collective())},
                 {"simulation", simulation(simulated)}});
}

std::string to_json(const Planned& planned, const Simulated* simulated) {
  const planner::MachinePlan& plan = planned.plan;
  const bool limited = !plan.certificate.unlimited && plan.certificate.gbps > 0;
  const auto number = [&](double value) { return limited ? nlohmann::json(value) : nlohmann::json(); };
  const planner::MachineCandidate& chosen = plan.chosen();
  const auto rings = [&](double value) { return plan.with_rings ? number(value) : nlohmann::json(); };
  const auto count = [&](topology::NodeKind kind) { return planned.graph.nodes_of(kind).size(); };
  nlohmann::ordered_json report = {
      {"gpus", count(topology::NodeKind::kGpu)},
      {"nics", count(topology::NodeKind::kNic)},
      {"numa_nodes", count(topology::NodeKind::kNuma)},
      {"ranks", plan.ranks},
      {"compute", topology::name_of(planned.view.compute)},
      {"collective", name_of(plan.question.collective)},
      {"bound_gbps", number(plan.certificate.gbps)},
      {"binding", binding(planned)},
      {"plan",
       {{"algorithm", chosen.algorithm},
        {"lanes", chosen.lanes},
        {"gbps", number(chosen.gbps)},
        {"ratio", number(chosen.ratio)},
        {"waits", chosen.waits}}},
      {"ring", {{"gbps", rings(plan.ring_gbps)}, {"limit_gbps", rings(plan.ring_limit_gbps)}}},
      {"by_size", sizes(planned)},
      {"other_bounds", others(planned)},
      {"planning_ms", planned.planning_ms},
      {"warnings", planned.view.warnings},
  };
  if (simulated != nullptr) report["simulation"] = simulation(*simulated);
  return dumped(report);
}

std::string bandwidths_json() {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const topology::BandwidthRow& row : topology::bandwidth_table())
    list.push_back({{"link", row.item}, {"gbps", topology::gbps(row.bandwidth)}, {"source", row.source}});
  return dumped(list);
}

}  // namespace tutti::tools
