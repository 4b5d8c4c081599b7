// tutti-topo: what a machine's links allow collectives, and the plan that comes closest.
#include "base/standard_output.h"
#include "planner/machine_links.h"
#include "planner/machine_plan.h"
#include "plot/canvas.h"
#include "schedule/text.h"
#include "tools/topo_options.h"
#include "tools/topo_report.h"
#include "tools/topo_simulate.h"
#include "topology/live.h"
#include "topology/source.h"
#include "topology/synthetic.h"
#include "topology/view.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

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
  if (std::ferror(stdin) != 0) return system_error("standard input");
  return text;
}

Result<topology::Graph> read_machine(const TopoOptions& options) {
  const topology::ReadOptions read{options.nvlink_gbps};
  if (!options.synthetic.empty()) return topology::parse_synthetic(options.synthetic);
  if (options.file == "-") {
    TUTTI_TRY_ASSIGN(const std::string text, read_standard_input());
    Result<topology::Graph> graph = topology::read_text(text, read);
    if (graph.ok()) return graph;
    return error(graph.error().code, "standard input: " + graph.error().message, graph.error().where);
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

Error not_joined(const Planned& planned, bool some_chosen, int from, int to) {
  return error(Code::kInvalidArgument,
               fmt::format("{} cannot reach {}, so nothing can be planned for both: {}", planned.name_of(from),
                           planned.name_of(to),
                           some_chosen ? "no links lead there, or only through ranks that were not chosen"
                                       : "the description has no links that lead there; --gpus leaves some out"));
}

/// What is wrong with the choice of ranks; nothing if nothing is.
std::string wrong_choice(const topology::Graph& graph, std::vector<int> chosen) {
  const topology::ComputeNodes compute = topology::compute_nodes(graph);
  const int count = static_cast<int>(compute.nodes.size());
  if (count == 0) return "";  // said elsewhere
  std::ranges::sort(chosen);
  if (!chosen.empty() && chosen.back() >= count) {
    return fmt::format("{} {} is not there: the machine has {} ({})", name_of(compute.kind),
                       std::max(chosen.back(), count), count, count == 1 ? "0" : fmt::format("0 to {}", count - 1));
  }
  const auto twice = std::ranges::adjacent_find(chosen);
  return twice == chosen.end() ? "" : fmt::format("{} {} is chosen twice", name_of(compute.kind), *twice);
}

Result<Planned> plan(const TopoOptions& options, topology::Graph graph) {
  Planned planned;
  planned.name = machine_name(options);
  planned.graph = std::move(graph);
  const auto start = std::chrono::steady_clock::now();
  TUTTI_TRY_ASSIGN(planned.view, topology::view_of(planned.graph, {options.chosen, options.all_links}));
  if (const auto [from, to] = planner::ranks_apart(planned.view.network); from >= 0)
    return not_joined(planned, !options.chosen.empty(), from, to);
  const bool direct = planner::may_be_direct(planner::link_table(planned.graph, planned.view));
  const planner::MachineQuestion question{options.collective, options.lanes_max,
                                          topology::ranks_by_host(planned.graph, planned.view), direct};
  Result<planner::MachinePlan> made = planner::plan_machine(planned.view.network, question);
  if (!made.ok() && options.simulate.wanted && planned.view.ranks() > planner::kPlannedRanksMax) {
    planned.plan = planner::rows_alone(planned.view.network, question);
    return planned;
  }
  TUTTI_TRY_ASSIGN(planned.plan, std::move(made));
  planned.planning_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  planner::add_rings(planned.plan, planned.view.network);
  if (const double memory = tools::other_limits(planned).memory_gbps; memory > 0)
    planner::limit_by_memory(planned.plan, memory);
  return planned;
}

/// In the order that channels of communicators on one host allow, which tutti-perf runs: links might want more slots than those have.
std::string schedule_text(const Planned& planned, int units) {
  constexpr int kFewRanks = 8, kSlots = 8, kSlotsOfMany = 4;
  planner::MachineCandidate chosen = planned.plan.chosen();
  chosen.slots = std::min(chosen.slots, planned.plan.ranks <= kFewRanks ? kSlots : kSlotsOfMany);
  return schedule::to_text(planner::full_schedule(chosen, units));
}

std::string report(const Planned& planned, const tools::Simulated* simulated, const TopoOptions& options) {
  if (options.json) return to_json(planned, simulated);
  if (options.schedule) return schedule_text(planned, options.units);
  std::string text = summary(planned);
  if (options.explain) text += "\n" + in_words(planned) + "\n" + explanation(planned);
  if (options.compare) text += "\n" + comparison(planned);
  if (simulated != nullptr) text += "\n" + sizes_text(*simulated);
  return text + warnings_text(planned);
}

/// The exit code.
int fail(const std::string& message, int code) {
  complain("tutti-topo: {}\n", message);
  return code;
}

/// The exit code, if it arrives.
int print(const std::string& text) {
  say("{}", text);
  return 0;
}

int simulate_host_memory(const TopoOptions& options) {
  const Result<tools::Simulated> simulated = tools::simulate_host(options.collective, options.simulate);
  if (!simulated.ok()) return fail(simulated.error().message, 1);
  if (const Status written = write_traces(simulated.value(), options.simulate); !written.ok())
    return fail(written.error().message, 1);
  return print(options.json ? tools::to_json(simulated.value()) : sizes_text(simulated.value()));
}

int simulate_machine(const Planned& planned, const TopoOptions& options) {
  const Result<tools::Simulated> simulated = tools::simulate_sizes(planned, options.simulate);
  if (!simulated.ok()) return fail(simulated.error().message, 1);
  if (const Status written = write_traces(simulated.value(), options.simulate); !written.ok())
    return fail(written.error().message, 1);
  return print(report(planned, &simulated.value(), options));
}

int run(int argc, char** argv) {
  const tools::ParsedTopoOptions parsed = tools::parse_topo_options(argc, argv);
  if (!parsed.options) return parsed.exit_code;
  if (parsed.options->bandwidths)
    return print(parsed.options->json ? tools::bandwidths_json() : tools::bandwidths_text());
  const std::string& svg = parsed.options->svg;
  const tools::SimulateOptions& simulate = parsed.options->simulate;
  for (const std::string& path : {svg, simulate.timeline, simulate.trace}) {
    if (path.empty() || path == "-") continue;
    if (const std::string why = why_unwritable(path); !why.empty())
      return fail(fmt::format("write {}: {}", path, why), 1);
  }
  if (simulate.host_ranks > 0) return simulate_host_memory(*parsed.options);
  Result<topology::Graph> graph = read_machine(*parsed.options);
  if (!graph.ok()) return fail(graph.error().message, 1);
  if (const std::string problem = wrong_choice(graph.value(), parsed.options->chosen); !problem.empty())
    return fail(problem, 2);
  const Result<Planned> planned = plan(*parsed.options, std::move(graph).value());
  if (!planned.ok()) return fail(planned.error().message, 1);
  if (svg == "-") return print(tools::drawing(planned.value()));
  if (!svg.empty()) {
    const Status written = plot::write_document(svg, tools::drawing(planned.value()));
    if (!written.ok()) return fail(written.error().message, 1);
  }
  if (simulate.wanted && planned.value().plan.ranks > 1) return simulate_machine(planned.value(), *parsed.options);
  if (!simulate.timeline.empty() || !simulate.trace.empty())
    return fail("--timeline and --trace: one rank has nothing to send, so that there is no call to draw", 1);
  return print(report(planned.value(), nullptr, *parsed.options));
}

}  // namespace

int main(int argc, char** argv) { return tutti::end_output("tutti-topo", run(argc, argv)); }
