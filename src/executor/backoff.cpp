#include "executor/backoff.h"

#include <sched.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <atomic>

namespace tutti::executor {
namespace {

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
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
