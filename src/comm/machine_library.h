// The plug-in that knows machines, libtutti-topology.so: loaded when somebody first asks, from the folder that libtutti.so
// is in.
#pragma once

#include "base/result.h"
#include "planner/machine_service.h"

namespace tutti::comm {

/// kSystem where it is not there, does not load, or belongs to another version: with the reason, and what to do. It is
/// tried once per process, and stays loaded.
Result<const planner::MachineService*> machine_service();

}  // namespace tutti::comm
