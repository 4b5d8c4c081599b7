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

Error not_joined(const Planned& planned, bool some_chosen, int from, int to) {
  return error(Code::kInvalidArgument,
               fmt::format("{} cannot reach {}, so nothing can be planned for both: {}", planned.name_of(from),
                           planned.name_of(to),
                           some_chosen ? "no links lead there, or only through ranks that were not chosen"
                                       : "the description has no links that lead there; --gpus leaves some out"));
}

Result<Planned> plan(const TopoOptions& options) {
  Planned planned;
  planned.name = machine_name(options);
  TUTTI_TRY_ASSIGN(planned.graph, read_machine(options));
  const auto start = std::chrono::steady_clock::now();
  TUTTI_TRY_ASSIGN(planned.view, topology::view_of(planned.graph, {options.chosen, options.all_links}));
  if (const auto [from, to] = planner::ranks_apart(planned.view.network); from >= 0)
    return not_joined(planned, !options.chosen.empty(), from, to);
  TUTTI_TRY_ASSIGN(planned.plan, planner::plan_machine(planned.view.network, {options.collective, options.lanes_max}));
  planned.planning_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  planner::add_rings(planned.plan, planned.view.network);
  return planned;
}

std::string report(const Planned& planned, const TopoOptions& options) {
  if (options.json) return to_json(planned);
  if (options.schedule) return schedule::to_text(planner::full_schedule(planned.plan.chosen(), options.units));
  std::string text = summary(planned);
  if (options.explain) text += "\n" + in_words(planned) + "\n" + explanation(planned);
  if (options.compare) text += "\n" + comparison(planned);
  return text + warnings_text(planned);
}

/// The exit code.
int print(const std::string& text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (!written) fmt::print(stderr, "tutti-topo: {}\n", system_error("standard output").message);
  return written ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const tools::ParsedTopoOptions parsed = tools::parse_topo_options(argc, argv);
  if (!parsed.options) return parsed.exit_code;
  if (parsed.options->bandwidths) return print(tools::bandwidths_text());
  const Result<Planned> planned = plan(*parsed.options);
  if (!planned.ok()) {
    fmt::print(stderr, "tutti-topo: {}\n", planned.error().message);
    return 1;
  }
  return print(report(planned.value(), *parsed.options));
}
