#include "executor/backoff.h"

#include <sched.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>

namespace tutti::executor {
namespace {

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// A count of the processor's that goes on with time, some 1e9 a second.
std::uint64_t ticks() {
#if defined(__x86_64__)
  return __rdtsc();
#else
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1000000000 + static_cast<std::uint64_t>(now.tv_nsec);
#endif
}

void sleep_us(long us) {
  const timespec time{0, us * 1000};
  nanosleep(&time, nullptr);
}

}  // namespace

bool Crowding::meets_another() const {
  if (processors_.empty()) return false;
  const auto here = static_cast<std::uint32_t>(sched_getcpu()) + 1;  // 0: not known
  std::atomic_ref own(processors_[rank_]);
  if (own.load(std::memory_order_relaxed) != here) own.store(here, std::memory_order_relaxed);
  bool met = false;
  for (std::size_t r = 0; r < processors_.size(); ++r) {
    const auto there = std::atomic_ref(processors_[r]).load(std::memory_order_relaxed);
    met |= r != rank_ && there == here && here != 0;
  }
  std::atomic_ref(met_).store(met, std::memory_order_relaxed);
  return met;
}

bool Backoff::is_time() {
  constexpr std::uint64_t kYielding = std::uint64_t{1} << 17;
  constexpr std::uint64_t kSleeping = std::uint64_t{1} << 22;
  const std::uint64_t now = ticks();
  const std::uint64_t wanted = waits_ > pace_->sleeps_from ? kSleeping : kYielding;
  if (looked_ != 0 && now - looked_ < wanted) return false;
  return std::exchange(looked_, now) != 0;
}

[[gnu::hot]] void Backoff::wait() {
  constexpr std::uint32_t kLookEvery = 64;
  ++waits_;
  if (waits_ <= pace_->hot_spins) return;
  if (pace_ == &kPatient && waits_ % kLookEvery == (kPatient.hot_spins + 1) % kLookEvery &&
      crowding_->meets_another()) {
    pace_ = &kCrowded;
    waits_ = kCrowded.spins + 1;
  }
  if (waits_ > pace_->sleeps_from) {
    sleep_us(std::min<long>(1000, 50 + (waits_ - pace_->sleeps_from)));
  } else if (waits_ > pace_->spins && (waits_ & (pace_->yield_every - 1)) == 0) {
    sched_yield();
  } else {
    pause();
  }
}

}  // namespace tutti::executor
