// The schedules that follow the trees of a machine's plan: read from the text that a rank has made, and proved before any call
// runs them.
#pragma once

#include "base/result.h"
#include "schedule/schedule.h"

#include <memory>
#include <string_view>
#include <vector>

namespace tutti::planner {

/// `text`: algorithm/planned_trees.h. The options are those that calls run them with: so many slots, in place and out of place, through slots
/// and direct. kInvalidArgument: it is no such text; the verifier's words where one is not right.
Result<std::shared_ptr<const std::vector<schedule::Schedule>>> prove_trees(std::string_view text, int ranks,
                                                                           int lanes_most, int slots);

}  // namespace tutti::planner
