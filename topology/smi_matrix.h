// The text of `nvidia-smi topo -m` as a machine graph: a tree of switches, host bridges and NUMA nodes in which every
// pair has the path that the matrix gives it.
//
//   PIX   below the same switch           PXB   below switches that hang on one switch
//   PHB   below the same host bridge      NODE  beside the same NUMA node      SYS   beside different ones
//   NV#   NVLinks: direct, or through an NVSwitch where the GPUs of an island have more pairs than links
//
// The matrix has no bandwidths: PCI links count as of unknown speed, NVLinks by options, by the GPUs' names if the text
// has them (nvidia-smi -L), else by their number.
#pragma once

#include "base/result.h"
#include "topology/graph.h"

#include <string_view>

namespace tutti::topology {

struct SmiOptions {
  double nvlink_gbps = 0;  ///< of each NVLink, in one direction; 0: as above
};

/// kInvalidArgument with line and reason if the text has no such matrix or the option is no bandwidth. What is damaged
/// or contradicts itself is a warning of the graph that names the cell.
Result<Graph> read_smi_matrix(std::string_view content, const SmiOptions& options = {});

}  // namespace tutti::topology
