// How a simulated call is cut into rounds and units, and what a step's own work is, in bytes.
#pragma once

#include "schedule/schedule.h"
#include "schedule/tiling.h"

#include <cstdint>

namespace tutti::schedule {

struct CallSize {
  std::uint64_t count = 0;  ///< elements of a block
  std::uint32_t element_bytes = 4;
  SlotShape slots;
  bool direct = false;
};

/// Rounds such that the largest message through slots fits one.
Tiling simulated_tiling(const Schedule& schedule, const CallSize& size);

/// The unit number of a step's data.
std::uint32_t unit_of_step(const LaneProgram& lane, const Step& step);

/// What a rank's core does in a step, in its width: sinks that it writes, further sources that it adds. A pulled sink costs the
/// sender nothing, nor does having received a push.
struct Work {
  std::uint32_t width = 0;
  int sinks = 0;
  int additions = 0;
};
Work work_of(const LaneProgram& lane, const Step& step, bool direct);

}  // namespace tutti::schedule
