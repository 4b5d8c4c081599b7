// SignsOfLife: how often a rank that is watched over hosts shows that it lives, whatever its own TUTTI_HEARTBEAT_TIMEOUT_S: each second, or as often as
// the one needs that waits the shortest time. Each sign says how often its sender needs one.
//
// Once a second is often enough for a network that was down for 4 s. TCP, which doubles its pauses, goes on within 8 s and its first pause, so that nobody
// is silent for 10 s unless that is longer than a second.
#pragma once

#include "comm/wire.h"

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace tutti::comm {

class SignsOfLife {
 public:
  using Clock = std::chrono::steady_clock;
  using milliseconds = std::chrono::milliseconds;

  /// Of a rank for which another one that is silent for so long is gone; 0: none is.
  explicit SignsOfLife(double timeout_s) : needed_(needed_for(timeout_s)), interval_(needed_) {}

  /// In which this rank needs one.
  milliseconds needed() const { return needed_; }
  Bytes make() const { return WireWriter().number(static_cast<std::uint32_t>(needed_.count())).take(); }
  /// Another rank's.
  void hear(const Bytes& sign) {
    WireReader reader(sign);
    const milliseconds needed(reader.number<std::uint32_t>());
    if (reader.complete()) interval_ = std::max(kFastest, std::min(interval_, needed));
  }

  Clock::time_point next() const { return last_ + interval_; }
  /// Whether it is time for one, which is sent then.
  bool take(Clock::time_point now) {
    if (now < next()) return false;
    last_ = now;
    return true;
  }

 private:
  static constexpr milliseconds kSlowest{1000};
  static constexpr milliseconds kFastest{10};
  /// So many in the time after which their absence means something.
  static constexpr int kPerTimeout = 5;

  static milliseconds needed_for(double timeout_s) {
    if (timeout_s <= 0 || timeout_s >= kPerTimeout) return kSlowest;
    return std::max(kFastest, milliseconds(static_cast<int>(1000 * timeout_s / kPerTimeout)));
  }

  const milliseconds needed_;
  milliseconds interval_;
  Clock::time_point last_ = Clock::time_point::min() + std::chrono::hours(1);
};

}  // namespace tutti::comm
