// The drawing of tutti-topo: what src/drawing needs to know of a machine and its plan.
#include "tools/topo_report.h"

#include "drawing/drawing.h"

#include <fmt/format.h>

#include <algorithm>

namespace tutti::tools {
namespace {

/// The partition's blocks, or the two sides of the cut.
std::vector<std::string> block_names(const Planned& planned) {
  const planner::MachinePlan& plan = planned.plan;
  std::vector<std::string> names;
  if (plan.certificate.unlimited || plan.certificate.gbps == 0) return names;
  if (plan.question.collective == Collective::kAllReduce) {
    for (const auto& block : plan.certificate.partition.blocks) names.push_back(names_text(planned, block));
    return names;
  }
  std::vector<int> inside;
  std::vector<int> outside;
  for (int rank = 0; rank < plan.ranks; ++rank) {
    const bool is_inside = std::ranges::find(plan.certificate.cut.nodes, rank) != plan.certificate.cut.nodes.end();
    (is_inside ? inside : outside).push_back(rank);
  }
  return {"inside the cut: " + names_text(planned, inside), "outside: " + names_text(planned, outside)};
}

}  // namespace

std::string drawing(const Planned& planned) {
  return drawing::svg({
      .name = planned.name,
      .contents = machine_line(planned),
      .question = fmt::format("{} of {}", name_of(planned.plan.question.collective), ranks_are(planned.view)),
      .links = "over " + links_counted(planned.view),
      .blocks = block_names(planned),
      .graph = planned.graph,
      .view = planned.view,
      .plan = planned.plan,
  });
}

}  // namespace tutti::tools
