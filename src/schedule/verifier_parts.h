// The parts of the verifier, in the order they run; each may rely on what the ones before it have proved.
#pragma once

#include "schedule/verifier.h"
#include "schedule/verifier_memory.h"

#include <cstdint>
#include <string>
#include <vector>

namespace tutti::schedule::verifier {

struct StepAt {
  int rank = 0;
  int lane = 0;
  std::uint32_t step = 0;
};
/// "rank 1, lane 0, step 3 (recv 0 + in[0.1] -> send 2)"
std::string describe(const Schedule& schedule, StepAt at);
/// An error about one step.
Error wrong(const Schedule& schedule, StepAt at, const std::string& message);
/// A rank's program of a lane; an idle rank's is empty.
inline const LaneProgram kIdleLane;
inline const LaneProgram& lane_of(const Schedule& schedule, int rank, int lane) {
  const RankProgram& program = schedule.ranks[static_cast<std::size_t>(rank)];
  return program.lanes.empty() ? kIdleLane : program.lanes[static_cast<std::size_t>(lane)];
}

/// A local place, or one at a peer: pull and push.
inline bool names_place(const Endpoint& e) { return e.place != Place::kPeer || e.direct != Direct::kNone; }
/// The first unit that the step handles: named by its places, and where it has none by its messages.
std::uint32_t unit_of(const LaneProgram& lane, const Step& step);

/// 1. Every index, place, peer and width is possible.
Status check_sizes(const Schedule& schedule);
Status check_steps(const Schedule& schedule, const Memory& memory);

/// 2. Every send meets its receive.
struct MessageEnd {
  int rank = 0;
  std::uint32_t step = 0;
  std::uint32_t endpoint = 0;  ///< in the lane's endpoint array
};
struct Message {
  MessageEnd from;
  MessageEnd to;
};
struct LaneMessages {
  std::vector<Message> all;
  /// The message of each endpoint: of[rank][endpoint], meaningless where the endpoint is local.
  std::vector<std::vector<std::uint32_t>> of;
};
Result<LaneMessages> match_messages(const Schedule& schedule, int lane);

/// 3. Nobody waits for ever. Returns the steps of the first round in an order in which they can happen.
struct StepRun {
  int rank = 0;
  std::uint32_t step = 0;
};
Result<std::vector<StepRun>> check_progress(const Schedule& schedule, int lane, const VerifyOptions& options);

/// 4. No step writes a place twice. Direct: peers' memory is looked at too.
Status check_overlaps(const Schedule& schedule, int lane, const Memory& memory, bool direct);

/// 5. Direct messages only: both ends are of the form that lets the data stay out of the channel, and no access
/// can meet another one that it must not meet.
Status check_direct_forms(const Schedule& schedule, int lane, const LaneMessages& messages, const Memory& memory);
Status check_races(const Schedule& schedule, int lane, const LaneMessages& messages, const std::vector<StepRun>& order,
                   const Memory& memory);

/// 6. Every value is what the collective promises.
Status check_values(const Schedule& schedule, int lane, const LaneMessages& messages, const std::vector<StepRun>& order,
                    const Memory& memory, const VerifyOptions& options);

/// 7. A wide message is a partial sum at both ends; with wide_wire, every partial sum is in wide messages only.
Status check_wire(const Schedule& schedule, int lane, const LaneMessages& messages, const std::vector<StepRun>& order,
                  const Memory& memory, const VerifyOptions& options);

}  // namespace tutti::schedule::verifier
