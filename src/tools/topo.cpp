// tutti-topo: what a machine's links allow collectives, and the plan that comes closest.
#include "planner/machine_plan.h"
#include "schedule/text.h"
#include "tools/topo_options.h"
#include "tools/topo_report.h"
#include "topology/live.h"
#include "topology/source.h"
#include "topology/synthetic.h"
#include "topology/view.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <iterator>
#include <utility>

namespace {

using namespace tutti;
using tools::Planned;
using tools::TopoOptions;

Result<std::string> read_standard_input() {
  std::string text;
  char buffer[1 << 16];
  for (std::size_t got = 0; (got = std::fread(buffer, 1, sizeof(buffer), stdin)) > 0;) {
    text.append(buffer, got);
    if (text.size() > topology::kSourceBytesMax)
      return error(Code::kInvalidArgument,
                   fmt::format("standard input: more than {} bytes", topology::kSourceBytesMax));
  }
  return text;
}

Result<topology::Graph> read_machine(const TopoOptions& options) {
  const topology::ReadOptions read{options.nvlink_gbps};
  if (!options.synthetic.empty()) return topology::parse_synthetic(options.synthetic);
  if (options.file == "-") {
    TUTTI_TRY_ASSIGN(const std::string text, read_standard_input());
    return topology::read_text(text, read);
  }
  if (!options.file.empty()) return topology::read_file(options.file, read);
  return topology::discover_live(topology::live_options());
}

std::string machine_name(const TopoOptions& options) {
  if (!options.synthetic.empty()) return options.synthetic;
  if (options.file == "-") return "standard input";
  if (options.file.empty()) return "this machine";
  return options.file.substr(options.file.rfind('/') + 1);
}

Error not_joined(const Planned& planned, int from, int to) {
  return error(
      Code::kInvalidArgument,
      fmt::format("{} cannot reach {}: the description has no links that lead there, so nothing can be planned "
                  "for both; --gpus leaves some out",
                  planned.name_of(from), planned.name_of(to)));
}

Result<Planned> plan(const TopoOptions& options) {
  Planned planned;
  planned.name = machine_name(options);
  TUTTI_TRY_ASSIGN(planned.graph, read_machine(options));
  const auto start = std::chrono::steady_clock::now();
  TUTTI_TRY_ASSIGN(planned.view, topology::view_of(planned.graph, {options.chosen, options.all_links}));
  if (const auto [from, to] = planner::ranks_apart(planned.view.network); from >= 0)
    return not_joined(planned, from, to);
  TUTTI_TRY_ASSIGN(planned.plan, planner::plan_machine(planned.view.network, {options.collective, options.lanes_max}));
  planned.planning_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  planner::add_rings(planned.plan, planned.view.network);
  return planned;
}

void print(const Planned& planned, const TopoOptions& options) {
  if (options.json) {
    fmt::print("{}", to_json(planned));
    return;
  }
  if (options.schedule) {
    fmt::print("{}", schedule::to_text(planner::full_schedule(planned.plan.chosen(), options.units)));
    return;
  }
  fmt::print("{}", summary(planned));
  if (options.explain) fmt::print("\n{}\n{}", in_words(planned), explanation(planned));
  if (options.compare) fmt::print("\n{}", comparison(planned));
  fmt::print("{}", warnings_text(planned));
}

}  // namespace

int main(int argc, char** argv) {
  const tools::ParsedTopoOptions parsed = tools::parse_topo_options(argc, argv);
  if (!parsed.options) return parsed.exit_code;
  if (parsed.options->bandwidths) {
    fmt::print("{}", tools::bandwidths_text());
    return 0;
  }
  const Result<Planned> planned = plan(*parsed.options);
  if (!planned.ok()) {
    fmt::print(stderr, "tutti-topo: {}\n", planned.error().message);
    return 1;
  }
  print(planned.value(), *parsed.options);
  return 0;
}
