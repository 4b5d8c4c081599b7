// Puts measured crossovers beside the planner's cost model.
#include "comm/comm.h"
#include "comm/communicator.h"
#include "planner/tuning.h"

#include <memory>
#include <utility>

namespace tutti::comm {

Status set_tuning(Communicator& communicator, const char* text) {
  if (!communicator.is_initialised()) return error(Code::kInvalidUsage, "the communicator is not initialised");
  if (in_group()) return error(Code::kInvalidUsage, "inside a group; set a tuning before ncclGroupStart");
  if (!communicator.is_idle()) {
    return error(Code::kInvalidUsage, "calls of this communicator are under way; wait for their streams first");
  }
  std::shared_ptr<const planner::Tuning> tuning;
  if (text != nullptr && *text != '\0') {
    TUTTI_TRY_ASSIGN(planner::Tuning parsed, planner::parse_tuning(text));
    tuning = std::make_shared<planner::Tuning>(std::move(parsed));
  }
  communicator.members().plans.set_tuning(std::move(tuning));
  return {};
}

}  // namespace tutti::comm
