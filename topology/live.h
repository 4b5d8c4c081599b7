// The machine that this process runs on, as a machine graph: hwloc's view of it, the links' best speeds from sysfs,
// NVLinks from NVML. A replayed snapshot (HWLOC_FSROOT) is read the same way.
//
// In a container the graph has the whole machine as far as the kernel shows it, and Facts::cores counts only the cores
// that the process may use.
#pragma once

#include "base/result.h"
#include "topology/gpu_facts.h"
#include "topology/graph.h"

#include <string>
#include <vector>

namespace tutti::topology {

struct LiveOptions {
  /// Where sysfs is read, besides hwloc's own reading: what HWLOC_FSROOT says, as hwloc takes its root from nowhere
  /// else.
  std::string root;
  bool with_nvml = true;       ///< not for a snapshot
  std::vector<GpuFacts> gpus;  ///< known already, from CUDA: before what NVML says of the same GPU
};

/// Options from the configuration.
LiveOptions live_options();

/// kSystem if hwloc cannot load the topology. Tens of milliseconds, besides what NVML takes.
Result<Graph> discover_live(const LiveOptions& options);

}  // namespace tutti::topology
