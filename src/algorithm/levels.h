// When the steps of a schedule can run at the earliest, counted in messages after one another.
#pragma once

#include "schedule/schedule.h"

#include <span>
#include <vector>

namespace tutti::algorithm {

/// By rank and step of one lane: above that of the rank's step before and of every step whose message it waits for. Messages
/// meet in order (step.h); the programs must be ones that verify accepts.
std::vector<std::vector<int>> levels_of(std::span<const schedule::LaneProgram* const> ranks);

}  // namespace tutti::algorithm
