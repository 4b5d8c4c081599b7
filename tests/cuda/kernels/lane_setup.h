// What the lanes kernel works with: programs, channels and workspaces of all ranks.
#pragma once

#include "kernel_case.h"
#include "planner/plan.h"
#include "protocol/lane_storage.h"

#include <memory>
#include <vector>

namespace tutti::cuda {

class LaneSetup {
 public:
  LaneSetup(const KernelCase& c, sim::BlockMachine& machine);

  const planner::Plan& plan() const { return plans_.front(); }
  schedule::Tiling tiling() const;
  std::uint32_t blocks_per_rank() const { return plan().tiling.lanes * c_.rows; }
  /// By rank and lane.
  const LaneHome* homes(int rank) const { return homes_.data() + static_cast<std::size_t>(rank) * blocks_per_rank(); }
  const LaneProgramReference* programs(int rank) const {
    return programs_.data() + static_cast<std::size_t>(rank) * plan().tiling.lanes;
  }
  schedule::SlotShape slots() const { return {2, c_.slot_bytes}; }
  protocol::LineShape line_shape() const { return {2, 32}; }

 private:
  Buffer& buffer(std::size_t bytes, const char* name);
  void connect(std::uint32_t lane);

  const KernelCase& c_;
  sim::BlockMachine& machine_;
  std::vector<planner::Plan> plans_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::vector<std::unique_ptr<protocol::LaneStorage>> storage_;
  std::vector<std::vector<protocol::Channel>> channels_;  ///< by rank and lane
  std::vector<LaneHome> homes_;
  std::vector<LaneProgramReference> programs_;
};

}  // namespace tutti::cuda
