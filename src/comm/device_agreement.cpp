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

bool DeviceAgreement::has_another_settled(std::uint64_t number) const {
  for (int r = 0; r < ranks_; ++r) {
    if (r != rank_ && std::atomic_ref(settled(r)).load(std::memory_order_acquire) >= number) return true;
  }
  return false;
}

bool DeviceAgreement::have_all_captured(std::uint64_t number) const {
  const std::uint64_t found = std::atomic_ref(call(number)).load(std::memory_order_acquire);
  return found >> kNumberShift == number && captured(found) == static_cast<std::uint64_t>(ranks_);
}

bool DeviceAgreement::has_doubts(bool is_captured) const {
  return !doubts_.empty() && (!is_captured || doubts_.front() <= settled(rank_));
}

DeviceAgreement::Place DeviceAgreement::arrive(bool is_willing, bool is_captured) {
  std::erase_if(doubts_, [this](std::uint64_t number) { return have_all_captured(number); });
  const std::uint64_t number = ++arrived_;
  const std::uint64_t refusal = is_willing && !has_doubts(is_captured) ? 0 : kRefused;
  const std::uint64_t one = 1 | std::uint64_t{is_captured} << kCapturedShift;
  // Of so many one stays for ever: the first, if its word is another call's by now, or the last, which has had no room then.
  if (is_captured && doubts_.size() <= kDepth) doubts_.push_back(number);
  const std::atomic_ref word(call(number));
  std::uint64_t found = word.load(std::memory_order_acquire);
  for (;;) {
    const bool is_own = found >> kNumberShift == number;
    if (!is_own && number > kDepth && !have_all_settled(number - kDepth)) return {number, false};
    const std::uint64_t next = ((is_own ? found : number << kNumberShift) + one) | refusal;
    if (word.compare_exchange_weak(found, next, std::memory_order_acq_rel, std::memory_order_acquire)) {
      return {number, true};
    }
  }
}

bool DeviceAgreement::settle(const Place& place, std::chrono::nanoseconds patience, const GivesUp& gives_up) {
  const bool agreed = place.has_room && do_all_come(place.number, patience, gives_up);
  std::atomic_ref(settled(rank_)).store(place.number, std::memory_order_release);
  return agreed;
}

bool DeviceAgreement::do_all_come(std::uint64_t number, std::chrono::nanoseconds patience,
                                  const GivesUp& gives_up) const {
  using Clock = std::chrono::steady_clock;
  const auto until = Clock::now() + patience;
  const std::atomic_ref word(call(number));
  executor::Backoff backoff(true);
  for (;;) {
    // Looked at before the word: a rank that has settled the call has been counted in before, or never will be.
    const bool is_over = has_another_settled(number) || Clock::now() >= until || gives_up();
    std::uint64_t found = word.load(std::memory_order_acquire);
    const std::uint64_t come = found & kComeMask;
    const bool is_mixed = captured(found) != 0 && captured(found) != come;
    if ((found & kRefused) != 0 || is_mixed) return false;
    if (come == static_cast<std::uint64_t>(ranks_)) return true;
    if (!is_over) {
      backoff.wait();
    } else if (word.compare_exchange_strong(found, found | kRefused, std::memory_order_acq_rel)) {
      return false;
    }
  }
}

}  // namespace tutti::comm
