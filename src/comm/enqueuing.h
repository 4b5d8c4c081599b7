// Calls that kernels do, from the submitting thread's side: posted in the communicator's order, launched by whoever finds them complete,
// and over for the thread when they are on their streams.
#pragma once

#include "comm/device_rank.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>

namespace tutti::comm {

/// One communicator's calls, from its turn to its end. The turn is for giving them, in an order that the meeting keeps then: who waits for the
/// others' calls has none. What the others wait for before they make theirs may be this rank's part of a replay through host memory
/// (device_staged.h), which has a turn of its own.
class Enqueuing {
 public:
  /// Waits for the turn. The calls stay where they are until this ends; it may name other streams in them.
  Enqueuing(Communicator& communicator, std::span<CallArgs> calls);
  /// The calls that nobody has joined go with it, whatever ends the wait.
  ~Enqueuing();
  Enqueuing(const Enqueuing&) = delete;
  Enqueuing& operator=(const Enqueuing&) = delete;

  // Where all ranks' calls come by DeviceIpc, in place of post() and wait(): arrive(), settle(), and step() as long as it says that there is more.
  Status arrive();
  Status settle();
  Result<bool> step() { return ipc_->step(calls_); }
  /// Once.
  Status post();
  /// What is complete by it.
  void launch();
  bool meets_with(const Enqueuing& other) const { return meeting_ == other.meeting_; }
  /// Whether all are launched, or why they will not be. True once only.
  Result<bool> poll();
  /// Until they are.
  Status wait();
  /// Now and then, while poll() says false: the others' deadlines.
  void check_patience();

 private:
  using Clock = std::chrono::steady_clock;
  Enqueuing(Communicator& communicator, std::span<CallArgs> calls, DeviceRank::KernelWays ways);
  Status give();
  Status enter_detour();
  Status leave_detour();
  Status end();

  Communicator& comm_;
  const std::shared_ptr<DeviceMeeting> meeting_;
  const std::shared_ptr<DeviceIpc> ipc_;  ///< in place of the meeting: nobody waits for others' threads
  Turns& turns_;
  const std::uint64_t ticket_;
  bool has_turn_ = true;
  Lateness lateness_{};
  Clock::time_point since_;  ///< found waiting
  bool completes_ = false;   ///< this or another's calls, which somebody has to launch
  std::span<CallArgs> calls_;
  cuda::StreamHandle per_thread_ = nullptr;
  std::unique_ptr<Detour> detour_;  ///< in place of it
  DeviceSubmission submission_;
};

}  // namespace tutti::comm
