// What tutti-topo --simulate prints and writes.
#pragma once

#include "planner/size_sweep.h"
#include "tools/topo_options.h"
#include "tools/topo_report.h"

#include <functional>
#include <string>
#include <vector>

namespace tutti::tools {

/// Sizes simulated on a machine.
struct Simulated {
  planner::Arena arena;
  planner::SizeSweep sweep;
  bool held = false;
  double simulating_ms = 0;
  std::vector<std::string> names;  ///< of ranks
  std::vector<std::string> links;  ///< of the arena's links; none on a host's memory

  const planner::MachineCandidate& candidate(std::size_t index) const { return arena.candidates()[index]; }
};

/// With a line of progress on the terminal if it takes long.
Result<Simulated> simulate_sizes(const Planned& planned, const SimulateOptions& options);
/// Ranks that share a host's memory in place of a machine.
Result<Simulated> simulate_host(Collective collective, const SimulateOptions& options);

/// The table of sizes, and the crossovers in words.
std::string sizes_text(const Simulated& simulated);

/// One run of what is the fastest at the smallest size.
struct TracedRun {
  std::size_t candidate = 0;
  planner::SweptPoint point;
  schedule::Schedule schedule;
  schedule::SimulatedRun run;
};
Result<TracedRun> trace_smallest(const Simulated& simulated);
std::string timeline_svg(const Simulated& simulated, const TracedRun& traced);
std::string chrome_trace(const Simulated& simulated, const TracedRun& traced);

/// Writes what the options ask for.
Status write_traces(const Simulated& simulated, const SimulateOptions& options);

}  // namespace tutti::tools
