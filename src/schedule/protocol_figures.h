// What messages cost by protocol: the one table of latencies that simulations use where nothing was measured. `tutti-topo
// --simulate` names the rows; docs/topology.md has the sources.
#pragma once

#include "base/link_table.h"
#include "schedule/schedule.h"
#include "schedule/tiling.h"

#include <array>
#include <span>
#include <string_view>

namespace tutti::schedule {

/// Chains are schedules in which each rank has one peer a side; trees and all pairs branch.
struct ProtocolFigures {
  std::string_view name;  ///< "lines"
  /// From the end of one rank's step to the end of the next one's wait, by class of link; of it `step_us` holds the lane.
  std::array<double, kLinkClasses> chain_hop_us;
  std::array<double, kLinkClasses> branching_hop_us;
  std::array<double, kLinkClasses> credit_us;  ///< until a slot that was read is the sender's again
  double chain_base_us = 0;                    ///< to start and to end a call
  double branching_base_us = 0;
  double step_us = 0;
  double wire_bytes = 1;  ///< that cross a link for each byte of data
  SlotShape slots;
  bool direct = false;  ///< pull and push bypass the slots; not over a network
};

/// On GPUs, and on host memory among the ranks of one host.
std::span<const ProtocolFigures> gpu_protocols();
std::span<const ProtocolFigures> host_protocols();

/// Whether some step has several peers on a side.
bool is_branching(const Schedule& schedule);

}  // namespace tutti::schedule
