#include "executor/backoff.h"

#include <sched.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>

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

void Backoff::wait() {
  ++waits_;
  if (waits_ <= hot_max_) return;
  if (waits_ <= spins_max_) {
    pause();
  } else if (waits_ <= spins_max_ + kYields) {
    sched_yield();
  } else {
    sleep_us(std::min<long>(1000, 50 + (waits_ - spins_max_ - kYields)));
  }
}

}  // namespace tutti::executor
