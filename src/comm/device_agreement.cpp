#include "comm/device_agreement.h"

#include <atomic>

namespace tutti::comm {

DeviceAgreement::DeviceAgreement(std::span<std::byte> words, int ranks, int rank)
    : words_(reinterpret_cast<std::uint64_t*>(words.data())), ranks_(ranks), rank_(rank) {}

bool DeviceAgreement::have_all_settled(std::uint64_t number) const {
  for (int r = 0; r < ranks_; ++r) {
    if (std::atomic_ref(settled(r)).load(std::memory_order_acquire) < number) return false;
  }
  return true;
}

std::uint64_t DeviceAgreement::arrive(bool is_willing, const GivesUp& gives_up) {
  const std::uint64_t number = ++arrived_;
  const std::uint64_t refusal = is_willing ? 0 : kRefused;
  const std::atomic_ref word(call(number));
  executor::Backoff backoff(true);
  std::uint64_t found = word.load(std::memory_order_acquire);
  for (;;) {
    const bool is_own = found >> kNumberShift == number;
    if (!is_own && number > kDepth && !have_all_settled(number - kDepth)) {
      if (gives_up()) return number;
      backoff.wait();
      found = word.load(std::memory_order_acquire);
      continue;
    }
    const std::uint64_t next = (is_own ? found + 1 : number << kNumberShift | 1) | refusal;
    if (word.compare_exchange_weak(found, next, std::memory_order_acq_rel, std::memory_order_acquire)) return number;
  }
}

bool DeviceAgreement::settle(std::uint64_t number, std::chrono::nanoseconds patience, const GivesUp& gives_up) {
  using Clock = std::chrono::steady_clock;
  const auto until = Clock::now() + patience;
  const std::atomic_ref word(call(number));
  executor::Backoff backoff(true);
  std::uint64_t found = word.load(std::memory_order_acquire);
  while ((found & kRefused) == 0 && (found & kComeMask) != static_cast<std::uint64_t>(ranks_)) {
    if (Clock::now() < until && !gives_up()) {
      backoff.wait();
      found = word.load(std::memory_order_acquire);
    } else if (word.compare_exchange_weak(found, found | kRefused, std::memory_order_acq_rel,
                                          std::memory_order_acquire)) {
      found |= kRefused;
    }
  }
  std::atomic_ref(settled(rank_)).store(number, std::memory_order_release);
  return (found & kRefused) == 0;
}

}  // namespace tutti::comm
