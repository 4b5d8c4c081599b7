// The file of TUTTI_TUNING_FILE: rank 0 reads it when a communicator is made, and all ranks plan by what it says.
#pragma once

#include "comm/control.h"
#include "planner/tuning.h"

#include <memory>

namespace tutti::comm {

/// For rank 0, before the others may look: reads the file, if the variable is set, checks it and writes it where they find it.
/// nullptr: the variable is not set. kSystem: it cannot be read; kInvalidUsage: it is no tuning. Both name variable and file.
Result<std::shared_ptr<const planner::Tuning>> publish_tuning(const Control& control);

/// For the others, once rank 0 has written.
Result<std::shared_ptr<const planner::Tuning>> published_tuning(const Control& control);

}  // namespace tutti::comm
