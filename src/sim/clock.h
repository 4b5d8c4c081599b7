// Vector clocks: which moments of each thread happened before this one.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace tutti::sim {

/// Ranks of a run, and one thread more: the watchdog that sets the abort word.
inline constexpr int kRanksMax = 16;
inline constexpr int kThreadsMax = kRanksMax + 1;

class VectorClock {
 public:
  std::uint32_t& operator[](int thread) { return moments_[static_cast<std::size_t>(thread)]; }
  std::uint32_t operator[](int thread) const { return moments_[static_cast<std::size_t>(thread)]; }

  /// Everything that happened before `other` happened before this one too.
  void join(const VectorClock& other) {
    for (std::size_t i = 0; i < moments_.size(); ++i) moments_[i] = std::max(moments_[i], other.moments_[i]);
  }

 private:
  std::array<std::uint32_t, kThreadsMax> moments_{};
};

}  // namespace tutti::sim
