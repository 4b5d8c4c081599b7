#include "comm/enqueuing.h"

#include "comm/call.h"
#include "executor/backoff.h"

#include <utility>

namespace tutti::comm {

Enqueuing::Enqueuing(Communicator& communicator, std::span<CallArgs> calls)
    : Enqueuing(communicator, calls, communicator.device()->kernel_ways()) {}

Enqueuing::Enqueuing(Communicator& communicator, std::span<CallArgs> calls, DeviceRank::KernelWays ways)
    : comm_(communicator),
      meeting_(std::move(ways.meeting)),
      ipc_(std::move(ways.ipc)),
      turns_(ipc_ ? ipc_->turns() : comm_.turns()),
      ticket_(turns_.take()),
      calls_(calls) {
  executor::Backoff backoff(comm_.crowded());
  while (!turns_.is_turn(ticket_)) backoff.wait();
}

Enqueuing::~Enqueuing() {
  if (submission_.open.load(std::memory_order_acquire) != 0) meeting_->withdraw(submission_);
  if (detour_) (void)leave_detour();
  if (ipc_ && has_turn_) ipc_->end_calls();
  if (has_turn_) turns_.pass();
  turns_.end_passed();
}

Status Enqueuing::arrive() { return ipc_ && !comm_.failed() ? ipc_->arrive(calls_) : Status(); }

Status Enqueuing::settle() {
  if (comm_.failed()) return comm_.failure();
  if (!ipc_) return error(Code::kInvalidArgument, "the communicator was aborted");
  return ipc_->settle(calls_);
}

Status Enqueuing::post() {
  Status status = give();
  turns_.pass();
  has_turn_ = false;
  return status;
}

void Enqueuing::launch() {
  if (completes_) meeting_->launch();
}

Result<bool> Enqueuing::poll() {
  if (submission_.open.load(std::memory_order_acquire) != 0) {
    if (comm_.failed()) return comm_.failure();
    if (since_ == Clock::time_point{}) since_ = Clock::now();
    return false;
  }
  TUTTI_TRY(end());
  return true;
}

Status Enqueuing::wait() {
  executor::Backoff backoff(comm_.crowded());
  for (;;) {
    TUTTI_TRY_ASSIGN(const bool over, poll());
    if (over) return {};
    if (backoff.is_slow()) check_patience();
    backoff.wait();
  }
}

/// Whatever has ended the wait: calls may be on it.
Status Enqueuing::leave_detour() {
  auto detour = std::move(detour_);
  Status left = comm_.device()->leave_detour(*detour, per_thread_);
  comm_.device()->give_back(std::move(detour));
  return left;
}

Status Enqueuing::end() {
  Status left = detour_ ? leave_detour() : Status();
  if (!submission_.failure && !left.ok()) comm_.fail(left.error().code, comm_.rank(), left.error().message);
  if (!submission_.failure) return left;
  if (submission_.broken) comm_.fail(submission_.failure->code, comm_.rank(), submission_.failure->message);
  return *submission_.failure;
}

Status Enqueuing::give() {
  if (comm_.failed()) return comm_.failure();
  if (ipc_) {
    TUTTI_TRY(settle());
    for (bool is_more = true; is_more;) {
      TUTTI_TRY_ASSIGN(is_more, step());
    }
    return {};
  }
  if (!meeting_) return error(Code::kInvalidArgument, "the communicator was aborted");
  for (const CallArgs& call : calls_) TUTTI_TRY(comm_.device()->note(call, DeviceWatch::Way::kKernels));
  TUTTI_TRY(enter_detour());
  const auto path_of = [this](const CallArgs& call) { return path_for(comm_, call).path; };
  completes_ = meeting_->post(comm_.rank(), calls_, path_of, submission_);
  return {};
}

/// The thread that launches everybody's part may be another one, to which the number of this thread's default stream means its own.
Status Enqueuing::enter_detour() {
  for (const CallArgs& call : calls_) {
    if (cuda::is_per_thread_stream(call.stream)) per_thread_ = call.stream;
  }
  if (!per_thread_) return {};
  TUTTI_TRY_ASSIGN(detour_, comm_.device()->enter_detour(per_thread_));
  for (CallArgs& call : calls_) {
    if (call.stream == per_thread_) call.stream = detour_->stream.handle();
  }
  return {};
}

void Enqueuing::check_patience() {
  std::string what;
  const int peer = meeting_->waiting_for(comm_.rank(), submission_, what);
  if (peer < 0) return;
  // It makes its call first and leaves then: what was missing before it was seen to have left never came.
  const bool left = comm_.has_left(peer);
  if (left && meeting_->waiting_for(comm_.rank(), submission_, what) != peer) return;
  comm_.check_patience(peer, left, what, since_, lateness_);
}

}  // namespace tutti::comm
