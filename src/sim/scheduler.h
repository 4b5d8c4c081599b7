// Who performs the next operation: seeded, in one of several manners, as each finds other mistakes.
#pragma once

#include "sim/random.h"

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace tutti::sim {

enum class Manner : std::uint8_t {
  kUniform,  ///< any rank, each time anew
  kBursts,   ///< one rank for a while, then another
  kPriorities,  ///< the first in a list; few moments at which the first becomes the last (PCT: Burckhardt and others, 2010)
  kStarve,      ///< one rank only when all others wait, or rarely
  kRoundRobin,  ///< in turn, a few operations each
};
inline constexpr int kManners = 5;
std::string_view name_of(Manner manner);

class Scheduler {
 public:
  struct Options {
    std::uint64_t seed = 0;
    Manner manner = Manner::kUniform;
    bool stalls = false;  ///< ranks stop for a while, as if the system had taken their processor away
  };
  void reset(int ranks, const Options& options);

  /// Who performs the next operation; `current` did the last one (-1: nobody). -1: all wait or have ended.
  int next(int current);

  /// The rank waits until one of the words that it looked at changes; not if one has changed since it did.
  void park(int rank) {
    const std::uint32_t bit = 1u << rank;
    if ((woken_ & bit) == 0) parked_ |= bit;
    woken_ &= ~bit;
  }
  void wake(std::uint32_t ranks) {
    woken_ |= ranks & ~parked_;
    parked_ &= ~ranks;
  }
  void end(int rank) { ended_ |= 1u << rank; }
  bool has_ended(int rank) const { return (ended_ >> rank & 1) != 0; }

 private:
  static constexpr std::uint32_t kStallMax = 300;

  int choose(int current, std::uint32_t able);
  int any(std::uint32_t able);
  int first_by_priority(std::uint32_t able) const;

  int ranks_ = 0;
  Options options_;
  Random random_;
  std::uint32_t parked_ = 0;
  std::uint32_t woken_ = 0;
  std::uint32_t ended_ = 0;
  std::uint64_t now_ = 0;
  std::vector<std::uint64_t> stalled_until_;
  std::vector<int> priorities_;
  std::array<std::uint64_t, 3> change_points_{};
  int victim_ = 0;
  std::uint32_t quantum_ = 1;
};

}  // namespace tutti::sim
