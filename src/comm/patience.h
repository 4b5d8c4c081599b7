// Patience: how long a control-plane wait may last: until a deadline, or until somebody cancels.
#pragma once

#include "base/result.h"

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <functional>
#include <optional>

namespace tutti::comm {

class Patience {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Outcome { kReady, kCancelled, kTimedOut };

  /// timeout_s 0 = for ever. `cancelled`, `hopeless` and `why` may be null, and the latter two empty.
  Patience(double timeout_s, const std::atomic<bool>* cancelled, const std::function<bool()>* hopeless = nullptr,
           const std::function<Error()>* why = nullptr)
      : timeout_s_(timeout_s), cancelled_(cancelled), hopeless_(hopeless), why_(why) {
    // A hundred years would overflow the clock; a year is for ever enough.
    constexpr double kForever = 365 * 86400.0;
    const double bounded = timeout_s > 0 ? std::min(timeout_s, kForever) : kForever;
    deadline_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(bounded));
  }

  /// The same, but that from a cancellation on so long is left still.
  Patience lenient(double grace_s) const {
    Patience made = *this;
    made.grace_s_ = grace_s;
    return made;
  }

  double timeout_s() const { return timeout_s_; }

  /// What others are to be told of a wait that was cancelled; nothing: that somebody aborted it.
  std::optional<Error> why_cancelled() const {
    return why_ != nullptr && *why_ ? std::optional((*why_)()) : std::nullopt;
  }

  /// Waits until the descriptor has one of the events, or an end or an error to read.
  Outcome wait(int fd, short events) const {
    for (;;) {
      pollfd watched = {fd, events, 0};
      const int ready = poll(&watched, 1, slice_ms());
      if (ready > 0) return Outcome::kReady;
      if (const Outcome outcome = now(); outcome != Outcome::kReady) return outcome;
      // EINTR is the next round; ENOMEM must not spin.
      if (ready < 0 && errno != EINTR) poll(nullptr, 0, 1);
    }
  }

  Outcome nap(int milliseconds) const {
    poll(nullptr, 0, milliseconds);
    return now();
  }

  Outcome now() const {
    if (cancelled_ != nullptr && cancelled_->load(std::memory_order_acquire)) {
      if (!grace_end_)
        grace_end_ =
            Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(grace_s_));
      if (Clock::now() >= *grace_end_) return Outcome::kCancelled;
    }
    if (hopeless_ != nullptr && *hopeless_ && (*hopeless_)()) return Outcome::kCancelled;
    return Clock::now() >= deadline_ ? Outcome::kTimedOut : Outcome::kReady;
  }

 private:
  /// Nobody wakes a wait when it is cancelled, so it looks by itself.
  int slice_ms() const {
    constexpr long kLook = 25;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - Clock::now()).count();
    return static_cast<int>(std::clamp<long>(left, 0, kLook));
  }

  double timeout_s_;
  const std::atomic<bool>* cancelled_;
  const std::function<bool()>* hopeless_;
  const std::function<Error()>* why_;
  Clock::time_point deadline_;
  double grace_s_ = 0;
  mutable std::optional<Clock::time_point> grace_end_;  ///< once it is cancelled
};

}  // namespace tutti::comm
