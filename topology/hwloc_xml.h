// hwloc's XML, as lstopo writes it, in formats 1, 2 and 3 (hwloc 1.x, 2.x, 3.x), as a machine graph.
#pragma once

#include "base/result.h"
#include "topology/graph.h"
#include "topology/hwloc_tree.h"

#include <string_view>

namespace tutti::topology {

/// kInvalidArgument with line, element and reason where the text is no such file or too damaged; lighter damage (a cut
/// after the objects, a device twice, a matrix that does not fit) is a warning of the graph.
Result<Graph> read_hwloc_xml(std::string_view content);
/// The tree alone.
Result<HwlocTree> read_hwloc_tree(std::string_view content);

/// "cuda0", "nvml3", "rsmi1", "ze0", "opencl0d2": hwloc's names for GPUs.
bool names_gpu(std::string_view os_device);

}  // namespace tutti::topology
