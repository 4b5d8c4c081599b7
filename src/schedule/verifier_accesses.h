// What one step reads and writes, unit by unit. Part of the verifier.
#pragma once

#include "schedule/verifier_parts.h"

#include <cstdint>

namespace tutti::schedule::verifier {

struct Access {
  std::uint32_t cell = 0;
  bool write = false;
};

/// The step receives data that its sender has written into one of its sinks already.
inline bool receives_push(const LaneProgram& lane, const Step& step) {
  for (const Endpoint& e : lane.sources(step)) {
    if (e.place == Place::kPeer && e.direct == Direct::kPush) return true;
  }
  return false;
}

/// All that the step does with its data is to let peers fetch it: it does not touch it itself.
inline bool only_lends(const LaneProgram& lane, const Step& step) {
  for (const Endpoint& e : lane.sinks(step)) {
    if (e.width != 0 && !(e.place == Place::kPeer && e.direct == Direct::kPull)) return false;
  }
  return true;
}

/// The step has this cell of its rank as its only source of data, and does not compute: writing it there again is left out by every
/// machine. (A sum's raw input may be multiplied on the way.)
inline bool leaves_alone(const Schedule& schedule, const LaneProgram& lane, const StepRun& run, const Memory& memory,
                         const Endpoint& sink) {
  if (reduces(schedule.request.collective)) return false;
  const Endpoint* only = nullptr;
  for (const Endpoint& e : lane.sources(lane.steps[run.step])) {
    if (e.width == 0) continue;
    if (only != nullptr) return false;
    only = &e;
  }
  return only != nullptr && only->place != Place::kPeer &&
         memory.cell(run.rank, only->place, only->block, only->unit) ==
             memory.cell(run.rank, sink.place, sink.block, sink.unit);
}

/// Calls visit(access) for each, reads first, until one fails. Direct: peers' cells are among them, and pushed data is
/// written by its sender; the step that receives it only reads it there.
template <class Visit>
Status for_each_access(const Schedule& schedule, int lane, StepRun run, const Memory& memory, bool direct,
                       Visit&& visit) {
  const LaneProgram& program = lane_of(schedule, run.rank, lane);
  const Step& step = program.steps[run.step];
  const auto visit_units = [&](int rank, Place place, const Endpoint& e, bool write) -> Status {
    const std::uint32_t first = memory.cell(rank, place, e.block, e.unit);
    for (std::uint32_t k = 0; k < e.width; ++k) TUTTI_TRY(visit(Access{first + k, write}));
    return {};
  };
  const bool lends = direct && only_lends(program, step);
  for (const Endpoint& e : program.sources(step)) {
    if (lends) break;
    if (e.place != Place::kPeer)
      TUTTI_TRY(visit_units(run.rank, e.place, e, false));
    else if (direct && e.direct == Direct::kPull)
      TUTTI_TRY(visit_units(static_cast<int>(e.peer), e.remote, e, false));
  }
  const bool pushed = direct && receives_push(program, step);
  for (const Endpoint& e : program.sinks(step)) {
    if (e.place != Place::kPeer)
      TUTTI_TRY(visit_units(run.rank, e.place, e, !pushed && !leaves_alone(schedule, program, run, memory, e)));
    else if (direct && e.direct == Direct::kPush)
      TUTTI_TRY(visit_units(static_cast<int>(e.peer), e.remote, e, true));
  }
  return {};
}

}  // namespace tutti::schedule::verifier
