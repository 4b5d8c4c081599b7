// The JSON of tutti-topo.
#include "tools/topo_report.h"

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
  if (certificate.unlimited) return nlohmann::json::array();
  if (planned.plan.question.collective != Collective::kAllReduce) return names(planned, certificate.cut.nodes);
  nlohmann::json blocks = nlohmann::json::array();
  for (const auto& block : certificate.partition.blocks) blocks.push_back(names(planned, block));
  return blocks;
}

}  // namespace

std::string to_json(const Planned& planned) {
  const planner::MachinePlan& plan = planned.plan;
  const bool limited = !plan.certificate.unlimited;
  const auto number = [&](double value) { return limited ? nlohmann::json(value) : nlohmann::json(); };
  const planner::MachineCandidate& chosen = plan.chosen();
  const auto count = [&](topology::NodeKind kind) { return planned.graph.nodes_of(kind).size(); };
  const nlohmann::ordered_json report = {
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
        {"ratio", number(chosen.ratio)}}},
      {"ring", {{"gbps", number(plan.ring_gbps)}}},
      {"planning_ms", planned.planning_ms},
      {"warnings", planned.view.warnings},
  };
  // Names come from files, which may hold anything.
  return report.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace tutti::tools
