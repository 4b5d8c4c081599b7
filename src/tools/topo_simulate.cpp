#include "tools/topo_simulate.h"

#include "base/elapsed.h"
#include "base/standard_output.h"
#include "plot/canvas.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

namespace tutti::tools {
namespace {

using planner::SweptAlgorithm;
using planner::SweptPoint;

using Clock = std::chrono::steady_clock;
/// A line on the terminal that is written over, from a second on.
class ProgressLine {
 public:
  ProgressLine() : terminal_(isatty(STDERR_FILENO) == 1), start_(Clock::now()), last_(start_) {}
  ~ProgressLine() {
    if (shown_) complain("\r{:40}\r", "");
  }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void show(double part) {
    constexpr double kBetweenMs = 1000;
    if (!terminal_ || ms_since(last_) < kBetweenMs) return;
    last_ = Clock::now();
    shown_ = true;
    complain("\rsimulating: {:3.0f}%, {:.0f} s", 100 * part, ms_since(start_) / 1e3);
    std::fflush(stderr);
  }

 private:
  bool terminal_;
  bool shown_ = false;
  Clock::time_point start_;
  Clock::time_point last_;
};

Status sweep_sizes(Simulated& simulated, const SimulateOptions& options) {
  const Clock::time_point start = Clock::now();
  ProgressLine line;
  planner::SweepQuestion question{options.from_bytes, options.to_bytes, options.factor, options.held};
  question.progress = [&line](double part) {
    line.show(part);
    return true;
  };
  TUTTI_TRY_ASSIGN(simulated.sweep, planner::sweep(simulated.arena, question));
  simulated.held = options.held;
  simulated.simulating_ms = ms_since(start);
  return {};
}

std::string size_text(std::uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (unit + 1 < std::size(kUnits) && bytes >= 1024 && bytes % 1024 == 0) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{} {}", bytes, kUnits[unit]);
}

/// Four digits that say something.
std::string figure(double value) {
  if (value >= 1000) return fmt::format("{:.0f}", value);
  if (value >= 100) return fmt::format("{:.1f}", value);
  return fmt::format("{:.2f}", value);
}

std::string crossovers_text(const Simulated& simulated) {
  const auto& crossovers = simulated.sweep.crossovers;
  std::string text;
  for (std::size_t i = 0; i < crossovers.size(); ++i) {
    const std::string name = simulated.candidate(crossovers[i].candidate).label();
    if (i == 0) {
      text += fmt::format("  {} is the fastest {}", name,
                          crossovers.size() == 1 ? "at all these sizes" : "of small messages");
    } else {
      text += fmt::format(", {} from {} on", name, size_text(crossovers[i].bytes));
    }
  }
  return text + ".\n";
}

}  // namespace

Result<Simulated> simulate_sizes(const Planned& planned, const SimulateOptions& options) {
  Simulated simulated;
  const topology::Network& network = planned.view.network;
  // Plans of so many ranks have no programs: what is simulated are rows of the table.
  const bool rows = planned.plan.ranks > planner::kPlannedRanksMax;
  const planner::MachinePlan& plan = planned.plan;
  planner::MachinePlan candidates = rows ? planner::rows_alone(network, plan.question) : plan;
  candidates.certificate = plan.certificate;  // memories bind them, too
  simulated.arena = planner::Arena::of_machine(network, planner::link_table(planned.graph, planned.view), candidates);
  for (int rank = 0; rank < planned.plan.ranks; ++rank) simulated.names.push_back(planned.name_of(rank));
  for (const topology::Arc& arc : network.arcs)
    simulated.links.push_back(fmt::format("{} -> {}", planned.name_of(arc.from), planned.name_of(arc.to)));
  TUTTI_TRY(sweep_sizes(simulated, options));
  return simulated;
}

Result<Simulated> simulate_host(Collective collective, const SimulateOptions& options) {
  Simulated simulated;
  simulated.arena = planner::Arena::of_host(collective, options.host_ranks, {options.core_gbps, options.memory_gbps});
  for (int rank = 0; rank < options.host_ranks; ++rank) simulated.names.push_back(fmt::format("rank{}", rank));
  TUTTI_TRY(sweep_sizes(simulated, options));
  return simulated;
}

std::string sizes_text(const Simulated& simulated) {
  const planner::SizeSweep& sweep = simulated.sweep;
  const auto width_of = [&](const SweptAlgorithm& algorithm) {
    return std::max<std::size_t>(26, simulated.candidate(algorithm.candidate).label().size());
  };
  std::string text = fmt::format("{:>10}", "size");
  for (const SweptAlgorithm& algorithm : sweep.algorithms)
    text += fmt::format("  {:^{}}", simulated.candidate(algorithm.candidate).label(), width_of(algorithm));
  text += fmt::format("  fastest\n{:>10}", "bytes");
  for (const SweptAlgorithm& algorithm : sweep.algorithms)
    text += fmt::format("  {:>{}}{:>8}{:>8}", "us", width_of(algorithm) - 16, "algbw", "busbw");
  text += "\n";
  const double factor = planner::bus_factor(simulated.arena.collective(), simulated.arena.ranks());
  bool extrapolated = false;
  for (std::size_t i = 0; i < sweep.sizes.size(); ++i) {
    text += fmt::format("{:>10}", sweep.sizes[i]);
    for (const SweptAlgorithm& algorithm : sweep.algorithms) {
      const SweptPoint& point = algorithm.points[i];
      const double gbps = static_cast<double>(point.bytes) / (point.us * 1e3);
      text += fmt::format("  {:>{}}{}{:>8}{:>8}", figure(point.us), width_of(algorithm) - 17,
                          point.extrapolated ? "~" : " ", figure(gbps), figure(gbps * factor));
      extrapolated |= point.extrapolated;
    }
    const std::size_t best = sweep.fastest[i];
    text += fmt::format("  {}, {}\n", simulated.candidate(best).label(), sweep.algorithms[best].points[i].protocol);
  }
  text += "\n" + crossovers_text(simulated);
  if (extrapolated) text += "  ~ the first rounds were run, and the others taken to be like them.\n";
  if (simulated.held) text += "  Lanes wait until their own data is over (--held).\n";
  for (const std::string& reason : simulated.arena.left_out()) text += fmt::format("  left out: {}\n", reason);
  return text;
}

Status write_traces(const Simulated& simulated, const SimulateOptions& options) {
  if (options.timeline.empty() && options.trace.empty()) return {};
  TUTTI_TRY_ASSIGN(const TracedRun traced, trace_smallest(simulated));
  if (!options.timeline.empty()) TUTTI_TRY(plot::write_document(options.timeline, timeline_svg(simulated, traced)));
  if (!options.trace.empty()) TUTTI_TRY(plot::write_document(options.trace, chrome_trace(simulated, traced)));
  return {};
}

}  // namespace tutti::tools
