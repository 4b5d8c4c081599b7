// Calls on device memory, from the submitting thread's side: post, launch what is complete, wait for the others' threads.
#include "comm/device_rank.h"
#include "comm/staged_calls.h"
#include "executor/backoff.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <iterator>
#include <utility>
#include <vector>

namespace tutti::comm {
namespace {

using Clock = std::chrono::steady_clock;

/// One communicator's calls, from its turn to its end.
class Enqueuing {
 public:
  Enqueuing(Communicator& communicator, std::vector<CallArgs> calls)
      : comm_(communicator),
        meeting_(comm_.device()->meeting()),
        ipc_(comm_.device()->ipc()),
        ticket_(comm_.take_ticket()),
        calls_(std::move(calls)) {
    executor::Backoff backoff(comm_.crowded());
    while (!comm_.is_turn(ticket_)) backoff.wait();
  }
  /// The calls that nobody has joined go with it, whatever ends the wait.
  ~Enqueuing() {
    if (submission_.open.load(std::memory_order_acquire) != 0) meeting_->withdraw(submission_);
    comm_.complete_ticket();
  }
  Enqueuing(const Enqueuing&) = delete;
  Enqueuing& operator=(const Enqueuing&) = delete;

  Status post() {
    if (comm_.failed()) return comm_.failure();
    if (ipc_) return ipc_->enqueue(calls_);
    if (!meeting_) return error(Code::kInvalidArgument, "the communicator was aborted");
    TUTTI_TRY(enter_detour());
    const auto path_of = [this](const CallArgs& call) { return path_for(comm_, call).path; };
    meeting_->post(comm_.rank(), calls_, path_of, submission_);
    return {};
  }
  void launch() {
    if (meeting_) meeting_->launch();
  }

  Status wait() {
    executor::Backoff backoff(comm_.crowded());
    const auto since = Clock::now();
    while (submission_.open.load(std::memory_order_acquire) != 0) {
      if (comm_.failed()) return comm_.failure();
      if (backoff.is_slow()) check_patience(since);
      backoff.wait();
    }
    Status left = per_thread_ ? comm_.device()->leave_detour(per_thread_) : Status();
    if (!submission_.failure && !left.ok()) comm_.fail(left.error().code, comm_.rank(), left.error().message);
    if (!submission_.failure) return left;
    if (submission_.broken) comm_.fail(submission_.failure->code, comm_.rank(), submission_.failure->message);
    return *submission_.failure;
  }

 private:
  /// The thread that launches everybody's part may be another one, to which the number of this thread's default stream means its own.
  Status enter_detour() {
    for (const CallArgs& call : calls_) {
      if (cuda::is_per_thread_stream(call.stream)) per_thread_ = call.stream;
    }
    if (!per_thread_) return {};
    TUTTI_TRY_ASSIGN(const cuda::StreamHandle detour, comm_.device()->enter_detour(per_thread_));
    for (CallArgs& call : calls_) {
      if (call.stream == per_thread_) call.stream = detour;
    }
    return {};
  }
  void check_patience(Clock::time_point since) {
    std::string what;
    const int peer = meeting_->waiting_for(comm_.rank(), submission_, what);
    if (peer < 0) return;
    // It makes its call first and leaves then: what was missing before it was seen to have left never came.
    const bool left = comm_.has_left(peer);
    if (left && meeting_->waiting_for(comm_.rank(), submission_, what) != peer) return;
    comm_.check_patience(peer, left, what, since);
  }

  Communicator& comm_;
  const std::shared_ptr<DeviceMeeting> meeting_;
  const std::shared_ptr<DeviceIpc> ipc_;  ///< in place of the meeting: nobody waits for others' threads
  const std::uint64_t ticket_;
  std::vector<CallArgs> calls_;
  cuda::StreamHandle per_thread_ = nullptr;
  DeviceSubmission submission_;
};

/// Those that go through host memory: nothing here waits for other ranks.
Status enqueue_staged(std::deque<StagedCalls> works) {
  Status first;
  const auto keep = [&](const Status& status) {
    if (first.ok() && !status.ok()) first = status;
  };
  for (StagedCalls& one : works) keep(one.check());
  if (!first.ok()) return first;
  for (bool busy = true; busy;) {
    busy = false;
    for (StagedCalls& one : works) {
      if (one.is_done()) continue;
      keep(one.step());
      busy = true;
    }
  }
  return first;
}

}  // namespace

Status enqueue_on_devices(std::span<const DeviceCalls> works) {
  std::deque<Enqueuing> open;
  std::deque<StagedCalls> staged;
  std::deque<std::vector<CallArgs>> kept;  ///< what these point into
  for (const DeviceCalls& work : works) {
    Communicator& communicator = *work.communicator;
    auto rank = communicator.device()->staged();
    if (!rank) {
      open.emplace_back(communicator, work.calls);
      continue;
    }
    // Collectives go by mapped memory, where there is such, before sends and receives: on all ranks alike.
    std::vector<CallArgs>& left = kept.emplace_back(work.calls);
    if (communicator.device()->ipc()) {
      std::vector<CallArgs> collectives;
      std::ranges::remove_copy_if(left, std::back_inserter(collectives), is_point_to_point);
      std::erase_if(left, std::not_fn(is_point_to_point));
      if (!collectives.empty()) open.emplace_back(communicator, std::move(collectives));
    }
    if (!left.empty()) staged.emplace_back(communicator, std::move(rank), left);
  }
  Status first;
  const auto keep = [&](const Status& status) {
    if (first.ok() && !status.ok()) first = status;
  };
  for (Enqueuing& one : open) keep(one.post());
  for (Enqueuing& one : open) one.launch();
  keep(enqueue_staged(std::move(staged)));
  for (Enqueuing& one : open) keep(one.wait());
  return first;
}

}  // namespace tutti::comm
