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

TeamedCall::TeamedCall(Communicator& communicator, std::shared_ptr<StagedRank> rank, const CallArgs& call)
    : comm_(communicator),
      teams_(*communicator.device()->teams()),
      call_(call),
      parts_(cut_for_teams(call.count, call.type, teams_.inside().ranks(), staging_bytes(communicator))),
      half_bytes_(bytes_of(parts_.front().share) * static_cast<std::size_t>(teams_.inside().ranks())),
      agreement_(communicator, std::move(rank), {{without_data(call)}},
                 {.part_bytes = staging_bytes(communicator), .binds = true}) {}

Status TeamedCall::check() {
  TUTTI_TRY(agreement_.check());
  auto rank = teams_.across().device()->staged();
  if (!rank) return error(Code::kInvalidArgument, "the communicator was aborted");
  TUTTI_TRY_ASSIGN(scratch_, agreement_.scratch(2 * half_bytes_));
  across_.emplace(teams_.across(), std::move(rank), across_calls(),
                  StagedWays{.part_bytes = staging_bytes(comm_), .round_calls = 1, .binds = true});
  return across_->check();
}

std::byte* TeamedCall::shares_of(const TeamPart& part) const { return scratch_ + index_of(part) % 2 * half_bytes_; }

std::byte* TeamedCall::own_share_of(const TeamPart& part) const {
  return shares_of(part) + static_cast<std::size_t>(teams_.layout().place) * bytes_of(part.share);
}

/// What the inputs were scaled by is in their sums already; an average is divided once, at last.
std::vector<CallArgs> TeamedCall::across_calls() const {
  std::vector<CallArgs> calls;
  for (const TeamPart& part : parts_) {
    CallArgs& call = calls.emplace_back(call_);
    call.send = own_share_of(part);
    call.receive = own_share_of(part);
    call.count = part.share;
    call.scaled = false;
    call.scale = 0;
    call.scale_is_address = false;
    call.averaged_over = comm_.ranks();
    call.identity = 0;
  }
  return calls;
}

CallArgs TeamedCall::inside_call(Collective collective, const TeamPart& part) const {
  CallArgs call = call_;
  call.collective = collective;
  call.count = part.share;
  call.identity = 0;
  return call;
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
    TUTTI_TRY(end_stage());
    go_on();
    return true;
  }
  if (!has_begun_) TUTTI_TRY(begin());
  if (stage_ == Stage::kReduce && turn_ > parts_.size()) {
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
  return across_->begin();
}

Status TeamedCall::do_stage() {
  const bool gives = turn_ < parts_.size();
  switch (stage_) {
    case Stage::kReduce: return gives ? reduce(parts_[turn_]) : Status();
    case Stage::kGive: return gives ? across_->give_next() : Status();
    case Stage::kTake: return turn_ == 0 ? Status() : take(turn_ - 1);
    case Stage::kGather: return turn_ == 0 ? Status() : gather(parts_[turn_ - 1]);
  }
  return {};
}

/// Stages alike for all calls of a group, whatever there is to do in them: no call gets ahead of another one of the same thread.
void TeamedCall::go_on() {
  if (stage_ == Stage::kGather) ++turn_;
  stage_ = stage_ == Stage::kGather ? Stage::kReduce : static_cast<Stage>(static_cast<std::uint8_t>(stage_) + 1);
}

Status TeamedCall::reduce(const TeamPart& part) {
  const auto* const input = static_cast<const std::byte*>(call_.send) + bytes_of(part.first);
  CallArgs args = inside_call(Collective::kReduceScatter, part);
  args.send = part.is_ragged ? shares_of(part) : input;
  args.receive = own_share_of(part);
  if (args.op == ReduceOp::kAverage) args.op = ReduceOp::kSum;
  // Whatever is behind the part's last element is added up too, and used by nobody.
  if (part.is_ragged) TUTTI_TRY(copy(shares_of(part), input, part));
  return run_inside(args);
}

Status TeamedCall::take(std::size_t index) {
  if (index == 0) TUTTI_TRY(agreement_.take_next());
  return across_->take_next();
}

Status TeamedCall::gather(const TeamPart& part) {
  CallArgs args = inside_call(Collective::kAllGather, part);
  args.send = own_share_of(part);
  args.receive = part.is_ragged ? shares_of(part) : output_of(part);
  args.op = ReduceOp::kSum;
  args.scaled = false;
  args.scale_is_address = false;
  return run_inside(args);
}

/// When what kernels do is on the stream, which another thread may have put there.
Status TeamedCall::end_stage() {
  if (stage_ != Stage::kGather || !parts_[turn_ - 1].is_ragged) return {};
  const TeamPart& part = parts_[turn_ - 1];
  return copy(output_of(part), shares_of(part), part);
}

std::byte* TeamedCall::output_of(const TeamPart& part) const {
  return static_cast<std::byte*>(call_.receive) + bytes_of(part.first);
}

Status TeamedCall::copy(void* to, const void* from, const TeamPart& part) const {
  return cuda::copy_on_stream(agreement_.device(), to, from, bytes_of(part.count), call_.stream);
}

Status TeamedCall::run_inside(const CallArgs& args) {
  inside_.emplace(teams_.inside(), std::vector<CallArgs>{args});
  TUTTI_TRY(inside_->post());
  inside_->launch();
  return {};
}

Status TeamedCall::finish() {
  TUTTI_TRY(across_->finish());
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
  across_->break_off(reason);
  agreement_.break_off(reason);
  return reason;
}

}  // namespace tutti::comm
