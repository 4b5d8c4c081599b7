// How a thread waits: spin, then yield, then sleep. A sleeper wakes by itself, so nobody has to wake it.
#pragma once

#include <cstdint>

namespace tutti::executor {

class Backoff {
 public:
  explicit Backoff(bool crowded) : hot_max_(crowded ? 0 : kHotSpins), spins_max_(crowded ? kCrowdedSpins : kSpins) {}

  /// Waits a little; longer the more often it is called in a row.
  void wait();
  void reset() { waits_ = 0; }
  /// True every so often once spinning is over: time to look at clocks and peers.
  bool is_slow() const { return waits_ > spins_max_ && (waits_ & 63) == 0; }

 private:
  static constexpr std::uint32_t kHotSpins = 100;  // without a pause, which alone takes longer than a small call
  static constexpr std::uint32_t kSpins = 500;     // some 20 us
  static constexpr std::uint32_t kCrowdedSpins = 1;
  static constexpr std::uint32_t kYields = 20000;
  std::uint32_t hot_max_;
  std::uint32_t spins_max_;
  std::uint32_t waits_ = 0;
};

}  // namespace tutti::executor
