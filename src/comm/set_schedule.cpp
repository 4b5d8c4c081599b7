// Puts a user's schedule in the planner's place.
#include "planner/set_schedule.h"

#include "comm/comm.h"
#include "comm/communicator.h"
#include "comm/device_rank.h"

#include <utility>

namespace tutti::comm {

Result<ScheduleForms> set_schedule(Communicator& communicator, const char* text) {
  if (!communicator.is_initialised()) return error(Code::kInvalidUsage, "the communicator is not initialised");
  if (communicator.device() && !communicator.device()->stages_collectives()) {
    return error(
        Code::kInvalidUsage,
        "schedules cannot be set for communicators on GPU memory whose ranks reach each other's: all share one "
        "launch, which runs none");
  }
  if (in_group()) return error(Code::kInvalidUsage, "inside a group; set a schedule before ncclGroupStart");
  if (!communicator.is_idle()) {
    return error(Code::kInvalidUsage, "calls of this communicator are under way; wait for their streams first");
  }
  planner::PlanCache& plans = communicator.members().plans;
  ScheduleForms forms;
  if (text == nullptr) {
    plans.set_schedule(nullptr);
    return forms;
  }
  TUTTI_TRY_ASSIGN(auto set, planner::prove_schedule(text, communicator.ranks(), collective_lanes(communicator.ranks()),
                                                     plans.rules()));
  for (const bool in_place : {false, true}) {
    for (const bool direct : {false, true}) {
      if (set->is_proved(in_place, direct)) forms.bits |= ScheduleForms::bit(in_place, direct);
    }
  }
  plans.set_schedule(std::move(set));
  return forms;
}

}  // namespace tutti::comm
