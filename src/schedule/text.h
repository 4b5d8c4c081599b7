// The text form of a schedule, one line per step; docs/schedule.md has the grammar. parse(to_text(s)) == s for every
// schedule that the builder made.
#pragma once

#include "base/result.h"
#include "schedule/schedule.h"

#include <string>
#include <string_view>

namespace tutti::schedule {

/// The whole program: a header line, then per rank and lane one line per step.
std::string to_text(const Schedule& schedule);

/// One rank's part, without the header.
std::string to_text(const RankProgram& program, int rank);

/// One step, without a line break: "recv 3 + in[0.2] -> send 1".
std::string to_text(const LaneProgram& lane, const Step& step);

/// Reads what to_text wrote. Says nothing about whether the schedule is right (verify does).
/// kInvalidArgument, with the line, what was found and what was expected; memory and time grow with the text only.
Result<Schedule> parse(std::string_view text);

}  // namespace tutti::schedule
