// Calls on device memory, from the submitting thread's side: post, launch what is complete, wait for the others' threads.
#include "comm/device_rank.h"
#include "comm/staged_calls.h"
#include "executor/backoff.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

namespace tutti::comm {
namespace {

using Clock = std::chrono::steady_clock;

/// One communicator's calls, from its turn to its end. The turn is for giving them, in an order that the meeting keeps then: who waits for the
/// others' calls has none. What the others wait for before they make theirs may be this rank's part of a replay through host memory
/// (device_staged.h), which has a turn of its own.
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
    if (detour_) comm_.device()->give_back(std::move(detour_));
    if (has_turn_) comm_.pass_turn();
    comm_.end_passed();
  }
  Enqueuing(const Enqueuing&) = delete;
  Enqueuing& operator=(const Enqueuing&) = delete;

  /// Once.
  Status post() {
    Status status = give();
    comm_.pass_turn();
    has_turn_ = false;
    return status;
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
    Status left = detour_ ? comm_.device()->leave_detour(*detour_, per_thread_) : Status();
    if (!submission_.failure && !left.ok()) comm_.fail(left.error().code, comm_.rank(), left.error().message);
    if (!submission_.failure) return left;
    if (submission_.broken) comm_.fail(submission_.failure->code, comm_.rank(), submission_.failure->message);
    return *submission_.failure;
  }

 private:
  Status give() {
    if (comm_.failed()) return comm_.failure();
    if (ipc_) return ipc_->enqueue(calls_);
    if (!meeting_) return error(Code::kInvalidArgument, "the communicator was aborted");
    for (const CallArgs& call : calls_) TUTTI_TRY(comm_.device()->note(call, DeviceWatch::Way::kKernels));
    TUTTI_TRY(enter_detour());
    const auto path_of = [this](const CallArgs& call) { return path_for(comm_, call).path; };
    meeting_->post(comm_.rank(), calls_, path_of, submission_);
    return {};
  }
  /// The thread that launches everybody's part may be another one, to which the number of this thread's default stream means its own.
  Status enter_detour() {
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
  void check_patience(Clock::time_point since) {
    std::string what;
    const int peer = meeting_->waiting_for(comm_.rank(), submission_, what);
    if (peer < 0) return;
    // It makes its call first and leaves then: what was missing before it was seen to have left never came.
    const bool left = comm_.has_left(peer);
    if (left && meeting_->waiting_for(comm_.rank(), submission_, what) != peer) return;
    comm_.check_patience(peer, left, what, since, lateness_);
  }

  Communicator& comm_;
  const std::shared_ptr<DeviceMeeting> meeting_;
  const std::shared_ptr<DeviceIpc> ipc_;  ///< in place of the meeting: nobody waits for others' threads
  const std::uint64_t ticket_;
  bool has_turn_ = true;
  Lateness lateness_{};
  std::vector<CallArgs> calls_;
  cuda::StreamHandle per_thread_ = nullptr;
  std::unique_ptr<Detour> detour_;  ///< in place of it
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

namespace {

/// One communicator's calls that wait for the same: taken by kernels, or going through host memory.
struct Leg {
  Communicator* communicator = nullptr;
  std::vector<CallArgs> calls;
  bool by_kernels = false;
};

/// In order, sends and receives behind all others: the same on all ranks.
Result<std::deque<Leg>> legs_of(const DeviceCalls& work) {
  Communicator& communicator = *work.communicator;
  std::deque<Leg> legs;
  const auto add = [&](const CallArgs& call, bool by_kernels) {
    if (legs.empty() || legs.back().by_kernels != by_kernels) legs.push_back({&communicator, {}, by_kernels});
    legs.back().calls.push_back(call);
  };
  const bool staged = communicator.device()->staged() != nullptr;
  const bool all = staged && communicator.device()->stages_collectives();
  std::vector<CallArgs> left;
  for (const CallArgs& call : work.calls) {
    if (staged && !all && is_point_to_point(call)) {
      left.push_back(call);
      continue;
    }
    TUTTI_TRY_ASSIGN(const bool takes, all ? Result<bool>(false) : communicator.device()->takes(communicator, call));
    add(call, takes);
  }
  for (const CallArgs& call : left) add(call, false);
  return legs;
}

/// One leg of each communicator. Nobody waits for others before everything is posted.
Status enqueue_legs(std::span<const Leg> legs) {
  std::deque<Enqueuing> open;
  std::deque<StagedCalls> staged;
  for (const Leg& leg : legs) {
    auto rank = leg.by_kernels ? nullptr : leg.communicator->device()->staged();
    if (rank) {
      staged.emplace_back(*leg.communicator, std::move(rank), leg.calls);
    } else {
      open.emplace_back(*leg.communicator, leg.calls);  // also of one that was aborted meanwhile: it says so
    }
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

}  // namespace

Status enqueue_on_devices(std::span<const DeviceCalls> works) {
  std::vector<std::deque<Leg>> left;
  for (const DeviceCalls& work : works) {
    TUTTI_TRY_ASSIGN(auto legs, legs_of(work));
    if (!legs.empty()) left.push_back(std::move(legs));
  }
  Status first;
  while (!left.empty()) {
    std::vector<Leg> now;
    for (auto& legs : left) {
      now.push_back(std::move(legs.front()));
      legs.pop_front();
    }
    std::erase_if(left, [](const auto& legs) { return legs.empty(); });
    Status status = enqueue_legs(now);
    if (first.ok() && !status.ok()) first = std::move(status);
  }
  return first;
}

}  // namespace tutti::comm
