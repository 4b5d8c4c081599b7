// Which way a rank writes what others read: by ordinary stores, or past the caches.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace tutti::executor {

/// How such stores are to begin, and what tells that the other way is better.
struct StoreRates {
  bool past_caches = false;
  /// Ordinary stores that reach it find their reader near; 0: it is not to be found out.
  double near_gbps = 0;
};

/// What was measured when a communicator was made holds until the cores move, or was wrong because somebody else was at work. So now
/// and then an ordinary store is timed to its end: as fast as those of near cores, or not. Three that agree against the choice change it.
/// Whoever reads is told nothing, and finds the same bytes.
class StoreChoice {
 public:
  using Clock = std::chrono::steady_clock;

  /// After a choice the first store to be timed is this one; then each time after twice as many, but once in so many at least: timing
  /// costs more where stores go past the caches.
  static constexpr std::uint32_t kFirst = 4;
  static constexpr std::uint32_t kOrdinaryBetween = 16;
  static constexpr std::uint32_t kPastBetween = 64;
  static constexpr std::uint32_t kAgreeing = 3;

  void begin(const StoreRates& rates) {
    near_gbps_ = rates.near_gbps;
    take(rates.past_caches);
  }

  bool past_caches() const { return past_caches_; }
  /// Whether the next store is to be an ordinary one, and timed.
  bool times_next() const { return left_ == 1; }
  /// For each store, before it: whether it is such a one.
  bool times() { return left_ != 0 && --left_ == 0; }

  /// What a timed one took, until it could be seen by others.
  void add(std::size_t bytes, Clock::duration took) {
    if (took <= Clock::duration::zero()) {  // the clock of another processor, which is behind
      left_ = 1;
      return;
    }
    const double ns = std::chrono::duration<double, std::nano>(took).count();
    const bool is_near = static_cast<double>(bytes) >= near_gbps_ * ns;
    if (is_near != past_caches_) {
      against_ = 0;
      left_ = between_ = std::min(2 * between_, past_caches_ ? kPastBetween : kOrdinaryBetween);
    } else if (++against_ == kAgreeing) {
      take(!past_caches_);
    } else {
      left_ = 1;
    }
  }

 private:
  void take(bool past_caches) {
    past_caches_ = past_caches;
    against_ = 0;
    between_ = kFirst;
    left_ = near_gbps_ == 0 ? 0 : kFirst;
  }

  double near_gbps_ = 0;
  std::uint32_t left_ = 0;  ///< stores up to and with the next timed one; 0: there is none
  std::uint32_t between_ = 0;
  std::uint32_t against_ = 0;  ///< timed ones, the last so many, that speak for the other way
  bool past_caches_ = false;
};

}  // namespace tutti::executor
