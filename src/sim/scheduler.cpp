#include "sim/scheduler.h"

#include <algorithm>
#include <utility>

namespace tutti::sim {

std::string_view name_of(Manner manner) {
  constexpr std::string_view kNames[kManners] = {"uniform", "bursts", "priorities", "starve", "round robin"};
  return kNames[static_cast<std::size_t>(manner)];
}

void Scheduler::reset(int ranks, const Options& options) {
  ranks_ = ranks;
  options_ = options;
  random_ = Random(options.seed, 2);
  parked_ = 0;
  woken_ = 0;
  ended_ = 0;
  now_ = 0;
  stalled_until_.assign(static_cast<std::size_t>(ranks), 0);
  priorities_.resize(static_cast<std::size_t>(ranks));
  for (int i = 0; i < ranks; ++i) {
    priorities_[static_cast<std::size_t>(i)] = i;
    std::swap(priorities_[static_cast<std::size_t>(i)], priorities_[random_.below(static_cast<std::uint32_t>(i) + 1)]);
  }
  for (std::uint64_t& point : change_points_) point = random_.below(600);
  victim_ = static_cast<int>(random_.below(static_cast<std::uint32_t>(ranks)));
  quantum_ = 1 + random_.below(8);
}

int Scheduler::next(int current) {
  ++now_;
  const std::uint32_t awake = ~(parked_ | ended_) & ((1u << ranks_) - 1);
  if (awake == 0) return -1;
  if (options_.stalls && current >= 0 && random_.chance(2)) {
    stalled_until_[static_cast<std::size_t>(current)] = now_ + 1 + random_.below(kStallMax);
  }
  std::uint32_t able = awake;
  int soonest = -1;
  for (int r = 0; r < ranks_; ++r) {
    const std::uint64_t until = stalled_until_[static_cast<std::size_t>(r)];
    if ((awake >> r & 1) == 0 || until <= now_) continue;
    able &= ~(1u << r);
    if (soonest < 0 || until < stalled_until_[static_cast<std::size_t>(soonest)]) soonest = r;
  }
  return able == 0 ? soonest : choose(current, able);
}

int Scheduler::any(std::uint32_t able) {
  const auto count = static_cast<std::uint32_t>(__builtin_popcount(able));
  for (std::uint32_t skip = random_.below(count); skip > 0; --skip) able &= able - 1;
  return __builtin_ctz(able);
}

int Scheduler::first_by_priority(std::uint32_t able) const {
  return *std::find_if(priorities_.begin(), priorities_.end(), [&](int r) { return (able >> r & 1) != 0; });
}

int Scheduler::choose(int current, std::uint32_t able) {
  const bool can_stay = current >= 0 && (able >> current & 1) != 0;
  switch (options_.manner) {
    case Manner::kUniform: break;
    case Manner::kBursts:
      if (can_stay && !random_.chance(16)) return current;
      break;
    case Manner::kPriorities: {
      const bool change = std::find(change_points_.begin(), change_points_.end(), now_) != change_points_.end();
      const int first = first_by_priority(able);
      if (!change) return first;
      priorities_.erase(std::find(priorities_.begin(), priorities_.end(), first));
      priorities_.push_back(first);
      return first_by_priority(able);
    }
    case Manner::kStarve: {
      const std::uint32_t others = able & ~(1u << victim_);
      if (others != 0 && !random_.chance(4)) return any(others);
      break;
    }
    case Manner::kRoundRobin: {
      if (can_stay && now_ % quantum_ != 0) return current;
      const std::uint32_t later = able & ~((2u << std::max(current, 0)) - 1);
      return __builtin_ctz(current >= 0 && later != 0 ? later : able);
    }
  }
  return any(able);
}

}  // namespace tutti::sim
