#include "comm/turns.h"

#include "base/log.h"
#include "comm/quiet_thread.h"

#include <linux/membarrier.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

namespace tutti::comm {
namespace {

bool membarrier(int command) { return syscall(SYS_membarrier, command, 0, 0) == 0; }

/// A full fence on every core that runs a thread of this process.
void process_barrier() {
  if (membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)) return;
  // It was allowed before (the process may have entered a sandbox since). A store leaves its core within microseconds all the same.
  log_warn("membarrier: {}; waiting instead", strerror(errno));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

/// The kernel has been asked, and is ready.
std::atomic<bool> barrier_is_ready{false};

bool is_only_thread() {
  struct stat tasks = {};
  // Links to it: its name, its ".", and a ".." for each thread.
  return stat("/proc/self/task", &tasks) == 0 && tasks.st_nlink == 3;
}

}  // namespace

bool have_process_barrier() {
  const bool have = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
  barrier_is_ready.store(have, std::memory_order_release);
  return have;
}

[[gnu::cold]] void prepare_process_barrier() {
  static std::atomic<bool> asked{false};
  if (asked.exchange(true)) return;
  if (is_only_thread()) return static_cast<void>(have_process_barrier());
  auto asking = start_quiet_thread("tutti-barrier", [] { have_process_barrier(); });
  if (asking.ok()) asking.value().detach();
}

std::uint64_t Turns::take() {
  const std::uint64_t ticket = issued_.fetch_add(1, std::memory_order_seq_cst);
  end_ownership();
  return ticket;
}

/// Either this sees owned_, or offer() sees the ticket that was taken before: both are in the one order of seq_cst operations.
void Turns::end_ownership() {
  if (!owned_.load(std::memory_order_seq_cst)) return;
  const std::lock_guard lock(mutex_);
  const Seat* const owner = owner_.load(std::memory_order_relaxed);
  if (owner == nullptr) return;
  owner_.store(nullptr, std::memory_order_release);
  if (owner->thread != thread_mark()) {
    process_barrier();
    want_longer_streak();
  }
  owned_.store(false, std::memory_order_release);
}

void Turns::want_longer_streak() {
  const std::uint32_t streak = wanted_streak_.load(std::memory_order_relaxed);
  wanted_streak_.store(std::min(2 * streak, kLongestStreak), std::memory_order_relaxed);
}

bool Turns::has_last_ticket() const {
  return issued_.load(std::memory_order_seq_cst) == completed_.load(std::memory_order_relaxed) + 1;
}

Turns::Seat* Turns::seat_of(const void* thread) {
  for (Seat& seat : seats_) {
    if (seat.thread == nullptr) seat.thread = thread;
    if (seat.thread == thread) return &seat;
  }
  return nullptr;
}

void Turns::offer() {
  if (last_ != thread_mark()) {
    last_ = thread_mark();
    streak_ = 0;
  }
  if (++streak_ < wanted_streak_.load(std::memory_order_relaxed)) return;
  streak_ = 0;
  if (!has_last_ticket() || !barrier_is_ready.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(mutex_);
  Seat* const seat = seat_of(last_);
  if (seat == nullptr) return;
  last_owner_.store(seat, std::memory_order_release);
  owner_.store(seat, std::memory_order_release);
  owned_.store(true, std::memory_order_seq_cst);
  if (has_last_ticket()) return;
  owner_.store(nullptr, std::memory_order_relaxed);  // somebody has come meanwhile, and may have seen no owner
  owned_.store(false, std::memory_order_release);
}

bool Turns::is_idle(bool but_for_tickets) {
  end_ownership();
  const bool all_complete = completed_.load(std::memory_order_acquire) == issued_.load(std::memory_order_acquire);
  return (all_complete || but_for_tickets) && !is_inside() && passed_.load(std::memory_order_acquire) == 0;
}

}  // namespace tutti::comm
