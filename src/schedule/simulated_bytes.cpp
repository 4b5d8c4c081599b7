#include "schedule/simulated_bytes.h"

#include <algorithm>

namespace tutti::schedule {

Tiling simulated_tiling(const Schedule& schedule, const CallSize& size) {
  Tiling tiling;
  tiling.count = size.count;
  tiling.element_bytes = size.element_bytes;
  tiling.units = schedule.shape.units;
  tiling.lanes = schedule.shape.lanes;
  tiling.slab = std::max<std::uint64_t>(1, tiling.share(0).count);
  std::uint32_t widest = 0;
  for (const RankProgram& rank : schedule.ranks) {
    for (const LaneProgram& lane : rank.lanes) {
      for (const Endpoint& e : lane.endpoints) {
        const bool in_slot = e.place == Place::kPeer && !(size.direct && e.direct != Direct::kNone);
        if (in_slot) widest = std::max(widest, e.width);
      }
    }
  }
  if (widest == 0) return tiling;
  const std::uint64_t per_unit =
      size.slots.slot_bytes / (std::uint64_t{widest} * size.element_bytes) / tiling.align() * tiling.align();
  const std::uint64_t in_slot = size.slots.slot_bytes / size.element_bytes;
  tiling.slab = std::min(tiling.slab, std::max<std::uint64_t>(1, per_unit != 0 ? per_unit * tiling.units : in_slot));
  return tiling;
}

std::uint32_t unit_of_step(const LaneProgram& lane, const Step& step) {
  std::uint32_t unit = 0;
  for (std::uint32_t e = step.first_source; e < step.first_sink + step.sink_count; ++e) {
    const Endpoint& endpoint = lane.endpoints[e];
    if (endpoint.width == 0) continue;
    unit = endpoint.unit;
    // A message names one only where no place does.
    if (endpoint.place != Place::kPeer || endpoint.direct != Direct::kNone) break;
  }
  return unit;
}

Work work_of(const LaneProgram& lane, const Step& step, bool direct) {
  Work work;
  int sources = 0;
  bool pushed = false;
  for (const Endpoint& e : lane.sources(step)) {
    if (e.width == 0) continue;
    work.width = e.width;
    ++sources;
    pushed |= e.place == Place::kPeer && direct && e.direct == Direct::kPush;
  }
  for (const Endpoint& e : lane.sinks(step)) {
    const bool pulled = e.place == Place::kPeer && direct && e.direct == Direct::kPull;
    if (e.width > 0 && !pulled && !(pushed && e.place != Place::kPeer)) ++work.sinks;
  }
  work.additions = std::max(0, sources - 1);
  return work;
}

}  // namespace tutti::schedule
