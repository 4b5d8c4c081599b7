#include "comm/teamed_call.h"

#include "comm/call.h"
#include "comm/device_staged.h"

#include <algorithm>
#include <utility>

namespace tutti::comm {
namespace {

/// The call as one that moves nothing: only whether all make it counts.
CallArgs without_data(CallArgs call) {
  call.whole_count = call.count;
  call.count = 0;
  call.identity = 0;
  return call;
}

std::size_t staging_bytes(Communicator& communicator) {
  return communicator.members().control.settings().staging_bytes;
}

}  // namespace

TeamedCall::TeamedCall(Communicator& communicator, std::shared_ptr<StagedRank> rank,
                       std::unique_lock<std::mutex> submitting, const CallArgs& call)
    : comm_(communicator),
      teams_(*communicator.teams()),
      call_(call),
      plan_(call, teams_.layout(), staging_bytes(communicator)),
      agreement_(communicator, std::move(rank), std::move(submitting), {{without_data(call)}},
                 {.part_bytes = staging_bytes(communicator), .binds = true}) {}

Status TeamedCall::check() {
  TUTTI_TRY(agreement_.check());
  Communicator* const across = teams_.across();
  auto rank = across ? across->device()->staged() : nullptr;
  if (across && !rank) return error(Code::kInvalidArgument, "the communicator was aborted");
  TUTTI_TRY_ASSIGN(std::byte* const scratch, agreement_.scratch(plan_.scratch_bytes()));
  plan_.put_scratch(scratch);
  if (!across) return {};
  // In one order with the communicator's own in all threads.
  std::unique_lock submitting(rank->submitting());
  across_.emplace(*across, std::move(rank), std::move(submitting), across_calls(),
                  StagedWays{.part_bytes = staging_bytes(comm_),
                             .round_calls = 1,
                             .binds = true,
                             .pairs_calls = true,
                             .memory = agreement_.scratch_memory()});
  const Status ready = across_->check();
  // Another rank's call may have failed there already: the user is to hear of that, and not of who ends the communicator for it.
  if (!ready.ok() && across->failed()) return teams_.settle(ready.error(), DeviceTeams::From::kAcross);
  return ready;
}

std::vector<CallArgs> TeamedCall::across_calls() const {
  std::vector<CallArgs> calls;
  for (std::size_t part = 0; part < plan_.parts(); ++part) calls.push_back(plan_.across(part));
  return calls;
}

Result<bool> TeamedCall::step() {
  Result<bool> moved = advance();
  if (moved.ok()) return moved;
  return break_off(moved.error());
}

Result<bool> TeamedCall::advance() {
  if (inside_) {
    TUTTI_TRY_ASSIGN(const bool over, inside_->poll());
    if (!over) return false;
    inside_.reset();
    TUTTI_TRY(copy(after_));
    go_on();
    return true;
  }
  if (!has_begun_) TUTTI_TRY(begin());
  if (stage_ == Stage::kReduce && turn_ > plan_.parts()) {
    TUTTI_TRY(finish());
    return true;
  }
  TUTTI_TRY(do_stage());
  if (!inside_) go_on();
  return true;
}

Status TeamedCall::begin() {
  has_begun_ = true;
  TUTTI_TRY(agreement_.begin());
  TUTTI_TRY(agreement_.give_next());
  return across_ ? across_->begin() : Status();
}

Status TeamedCall::do_stage() {
  const bool gives = turn_ < plan_.parts();
  switch (stage_) {
    case Stage::kReduce: return gives ? run(plan_.first(turn_)) : Status();
    case Stage::kGive: return gives && across_ ? across_->give_next() : Status();
    case Stage::kTurn: return turn_over();
    case Stage::kTake: return turn_ == 0 ? Status() : take(turn_ - 1);
    case Stage::kGather: return turn_ == 0 ? Status() : run(plan_.last(turn_ - 1));
  }
  return {};
}

/// Stages alike for all calls of a group, whatever there is to do in them: no call gets ahead of another one of the same thread.
void TeamedCall::go_on() {
  if (stage_ == Stage::kGather) ++turn_;
  stage_ = stage_ == Stage::kGather ? Stage::kReduce : static_cast<Stage>(static_cast<std::uint8_t>(stage_) + 1);
}

/// Of the pair of parts that is given with this turn's; of a last one without another when what was given before it has been taken.
Status TeamedCall::turn_over() {
  if (!across_ || !across_->has_second_shots()) return {};
  const bool is_pair = turn_ % 2 == 1 && turn_ < plan_.parts();
  const bool is_last = turn_ == plan_.parts() && turn_ % 2 == 1;
  for (int shots = is_pair ? 2 : is_last ? 1 : 0; shots > 0; --shots) {
    TUTTI_TRY(across_->take_next());
    TUTTI_TRY(across_->give_next());
  }
  return {};
}

/// The first comes behind an agreement of all ranks, as outputs do.
Status TeamedCall::take(std::size_t part) {
  if (part == 0) TUTTI_TRY(agreement_.take_next());
  return across_ ? across_->take_next() : Status();
}

/// What kernels do is on the stream once another thread may have put it there: what comes after that is for later.
Status TeamedCall::run(TeamStep step) {
  TUTTI_TRY(copy(step.before));
  if (step.calls.empty()) return copy(step.after);
  after_ = std::move(step.after);
  calls_ = std::move(step.calls);
  inside_.emplace(teams_.inside(), calls_);
  TUTTI_TRY(inside_->post());
  inside_->launch();
  return {};
}

Status TeamedCall::copy(const std::vector<TeamCopy>& copies) const {
  for (const TeamCopy& one : copies) {
    TUTTI_TRY(cuda::copy_on_stream(agreement_.device(), one.to, one.from, one.bytes, call_.stream));
  }
  return {};
}

Status TeamedCall::finish() {
  if (across_) TUTTI_TRY(across_->finish());
  TUTTI_TRY(agreement_.finish());
  is_done_ = true;
  return {};
}

void TeamedCall::check_patience() {
  if (inside_) inside_->check_patience();
}

Error TeamedCall::break_off(const Error& why) {
  const bool of_kernels = inside_.has_value();
  inside_.reset();
  is_done_ = true;
  const Error reason = agreement_.is_captured() ? why
                       : of_kernels             ? teams_.settle(why, DeviceTeams::From::kInside)
                                                : teams_.settle(why, DeviceTeams::From::kCall);
  if (across_) across_->break_off(reason);
  agreement_.break_off(reason);
  return reason;
}

}  // namespace tutti::comm
