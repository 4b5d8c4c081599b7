#include "schedule/protocol_figures.h"

#include <algorithm>

namespace tutti::schedule {

namespace {

constexpr std::uint32_t kKi = 1024;

// GPUs: NCCL's own cost model (2.30.7, src/graph/tuning.cc): base latencies of ring and tree, latencies of a hop over NVLink, PCIe
// and a network. Lines are like its LL (4 bytes of data in 8), slots and direct like its Simple; slots as its default buffers
// have them. It gives hops as a whole: how much of one holds the lane is assumed here, and that a credit, which is
// one word, takes as long as a line.
// The memory class, between NUMA nodes, is what the library's own planner counts with (src/planner/planner.cpp).
// clang-format off
constexpr ProtocolFigures kGpu[] = {
  //                     memory NVLink PCIe network
  {.name = "lines",
   .chain_hop_us      = {0.3, 0.6, 1.0,  2.7},
   .branching_hop_us  = {0.3, 0.6, 1.0,  5.0},
   .credit_us         = {0.2, 0.6, 1.0,  2.7},
   .chain_base_us = 6.6, .branching_base_us = 6.8, .step_us = 0.1, .wire_bytes = 2, .slots = {8, 32 * kKi}},
  {.name = "slots",
   .chain_hop_us      = {0.3, 3.4, 5.7, 14.0},
   .branching_hop_us  = {0.3, 4.0, 4.0, 14.0},
   .credit_us         = {0.2, 0.6, 1.0,  2.7},
   .chain_base_us = 8.4, .branching_base_us = 8.4, .step_us = 0.4, .slots = {8, 512 * kKi}},
  {.name = "direct",
   .chain_hop_us      = {0.3, 3.4, 5.7, 14.0},
   .branching_hop_us  = {0.3, 4.0, 4.0, 14.0},
   .credit_us         = {0.2, 0.6, 1.0,  2.7},
   .chain_base_us = 8.4, .branching_base_us = 8.4, .step_us = 0.4, .slots = {8, 512 * kKi}, .direct = true},
};

// Host memory: as tutti-perf measured small messages between two ranks on two near cores of a Zen 4 EPYC, to two digits;
// the slots are those of communicators of up to eight ranks.
constexpr ProtocolFigures kHost[] = {
  {.name = "lines",
   .chain_hop_us      = {0.1, 0.1, 0.1, 0.1},
   .branching_hop_us  = {0.1, 0.1, 0.1, 0.1},
   .credit_us         = {0.1, 0.1, 0.1, 0.1},
   .chain_base_us = 0.1, .branching_base_us = 0.1, .step_us = 0.02, .wire_bytes = 2, .slots = {8, kKi / 2}},
  {.name = "slots",
   .chain_hop_us      = {0.15, 0.15, 0.15, 0.15},
   .branching_hop_us  = {0.15, 0.15, 0.15, 0.15},
   .credit_us         = {0.1, 0.1, 0.1, 0.1},
   .chain_base_us = 0.2, .branching_base_us = 0.2, .step_us = 0.05, .slots = {8, 32 * kKi}},
  {.name = "direct",
   .chain_hop_us      = {0.15, 0.15, 0.15, 0.15},
   .branching_hop_us  = {0.15, 0.15, 0.15, 0.15},
   .credit_us         = {0.1, 0.1, 0.1, 0.1},
   .chain_base_us = 0.2, .branching_base_us = 0.2, .step_us = 0.05, .slots = {8, 32 * kKi}, .direct = true},
};
// clang-format on

}  // namespace

std::span<const ProtocolFigures> gpu_protocols() { return kGpu; }
std::span<const ProtocolFigures> host_protocols() { return kHost; }

bool is_branching(const Schedule& schedule) {
  for (const RankProgram& rank : schedule.ranks) {
    for (const LaneProgram& lane : rank.lanes) {
      for (const Step& step : lane.steps) {
        const auto peers = [](std::span<const Endpoint> side) {
          return std::ranges::count(side, Place::kPeer, &Endpoint::place);
        };
        if (peers(lane.sources(step)) > 1 || peers(lane.sinks(step)) > 1) return true;
      }
    }
  }
  return false;
}

}  // namespace tutti::schedule
