#include "schedule/verifier.h"

#include "schedule/text.h"
#include "schedule/verifier_parts.h"

#include <fmt/format.h>

namespace tutti::schedule {
namespace verifier {

std::string describe(const Schedule& schedule, StepAt at) {
  const LaneProgram& lane = lane_of(schedule, at.rank, at.lane);
  constexpr std::size_t kShownMax = 160;
  std::string text = to_text(lane, lane.steps[at.step]);
  if (text.size() > kShownMax) text.replace(kShownMax, std::string::npos, "...");
  return fmt::format("rank {}, lane {}, step {} ({})", at.rank, at.lane, at.step, text);
}

Error wrong(const Schedule& schedule, StepAt at, const std::string& message) {
  return error(Code::kInvalidUsage, fmt::format("{} {}: {}: {}", schedule.algorithm,
                                                name_of(schedule.request.collective), describe(schedule, at), message));
}

std::uint32_t unit_of(const LaneProgram& lane, const Step& step) {
  const Endpoint* message = nullptr;
  for (const auto& side : {lane.sources(step), lane.sinks(step)}) {
    for (const Endpoint& e : side) {
      if (e.width == 0) continue;
      if (names_place(e)) return e.unit;
      if (message == nullptr) message = &e;
    }
  }
  return message == nullptr ? 0 : message->unit;
}

namespace {

Status verify_lane(const Schedule& schedule, int lane, const Memory& memory, const VerifyOptions& options) {
  TUTTI_TRY_ASSIGN(const LaneMessages messages, match_messages(schedule, lane));
  TUTTI_TRY(check_overlaps(schedule, lane, memory, false));
  TUTTI_TRY_ASSIGN(const std::vector<StepRun> order, check_progress(schedule, lane, options));
  if (options.direct) {
    TUTTI_TRY(check_direct_forms(schedule, lane, messages, memory));
    TUTTI_TRY(check_overlaps(schedule, lane, memory, true));
    TUTTI_TRY(check_races(schedule, lane, messages, order, memory));
  }
  TUTTI_TRY(check_values(schedule, lane, messages, order, memory, options));
  return check_wire(schedule, lane, messages, order, memory, options);
}

}  // namespace
}  // namespace verifier

Status verify(const Schedule& schedule, const VerifyOptions& options) {
  if (options.slots < 1 || options.rounds < 1) {
    return error(Code::kInvalidArgument, fmt::format("verify: {} slots and {} rounds; expected at least 1 of each",
                                                     options.slots, options.rounds));
  }
  TUTTI_TRY(verifier::check_sizes(schedule));
  const verifier::Memory memory(schedule, options.in_place);
  TUTTI_TRY(verifier::check_steps(schedule, memory));
  for (int lane = 0; lane < static_cast<int>(schedule.shape.lanes); ++lane) {
    TUTTI_TRY(verifier::verify_lane(schedule, lane, memory, options));
  }
  return {};
}

}  // namespace tutti::schedule
