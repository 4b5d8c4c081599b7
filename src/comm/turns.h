// The order of a communicator's calls: one after another, in the order in which they were submitted.
//
// The long way is a ticket: take(), wait for is_turn(), complete(). It costs a locked addition, which takes as long as a tenth of the
// smallest call. The short way is for a thread that makes one call after another: it comes to own the order, and then enter() and leave()
// are plain stores. Whoever else wants a ticket takes the ownership away first.
//
//   owner, enter()                      another thread, take()
//   inside = true                       owner = nobody
//   (compiler barrier)                  (membarrier: a full fence on every core that runs a thread of the process)
//   owner is I? else go the long way    wait until not inside
//
// With a full fence on both sides one of them would see the other's store. The kernel makes the owner's: what of the owner's program lies
// before it there is seen by the other thread, and what lies behind it sees the other's store. Where the kernel refuses that
// system call, or until it is ready for it, nobody owns the order, and all take tickets.
//
// `inside` is the owner's own, in its seat: a thread that owned the order once may go on in the middle of enter() at any later time, and
// what it stores there must say nothing about whoever owns the order by then.
#pragma once

#include "comm/this_thread.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>

namespace tutti::comm {

class Turns {
 public:
  /// The short way: true if the calling thread owns the order. It has the turn then until leave().
  bool enter() {
    return enter([] {});
  }
  /// `gap()` is called where another thread may take the ownership away: for tests.
  template <class Gap>
  bool enter(const Gap& gap) {
    Seat* const seat = owner_.load(std::memory_order_acquire);
    if (seat == nullptr || seat->thread != thread_mark()) return false;
    gap();
    seat->inside.store(true, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (owner_.load(std::memory_order_acquire) == seat) [[likely]] {
      entered_ = seat;
      return true;
    }
    seat->inside.store(false, std::memory_order_release);
    return false;
  }
  void leave() { entered_->inside.store(false, std::memory_order_release); }

  /// The long way: a place in the order.
  std::uint64_t take();
  bool is_turn(std::uint64_t ticket) const {
    return completed_.load(std::memory_order_acquire) == ticket && !is_inside();
  }
  /// By whoever has the turn by a ticket: nobody else writes the count.
  void complete() { completed_.store(completed_.load(std::memory_order_relaxed) + 1, std::memory_order_release); }
  /// In place of complete(): the next call may have the turn, but until end_passed() this one is under way still, and nothing is idle.
  void pass() {
    passed_.fetch_add(1, std::memory_order_relaxed);
    complete();
  }
  void end_passed() { passed_.fetch_sub(1, std::memory_order_release); }
  /// By a thread that has the turn by a ticket and has made the call itself, before complete(): it may come to own the order.
  void offer();

  /// No call is under way or waits. Takes the ownership away. `but_for_tickets`: whoever has the turn by one, or waits for it, does not count.
  bool is_idle(bool but_for_tickets = false);
  bool is_owned() const { return owned_.load(std::memory_order_acquire); }

 private:
  /// A thread that has owned the order. It keeps its seat; who finds none left owns the order never.
  struct Seat {
    const void* thread = nullptr;
    std::atomic<bool> inside{false};  ///< written by that thread
  };
  static constexpr std::size_t kSeats = 8;

  bool is_inside() const {
    const Seat* const seat = last_owner_.load(std::memory_order_acquire);
    return seat != nullptr && seat->inside.load(std::memory_order_acquire);
  }
  Seat* seat_of(const void* thread);
  void end_ownership();
  void want_longer_streak();
  bool has_last_ticket() const;

  /// Calls in a row after which a thread owns the order; twice as many each time that another thread has taken it away.
  static constexpr std::uint32_t kFirstStreak = 32;
  static constexpr std::uint32_t kLongestStreak = 1 << 20;

  std::atomic<Seat*> owner_{nullptr};
  Seat* entered_ = nullptr;                 ///< belongs to whoever has the turn by the short way
  std::atomic<Seat*> last_owner_{nullptr};  ///< before owner_: who had it before is not inside
  std::atomic<bool> owned_{false};  ///< goes after owner_ when that becomes nobody: then is_inside() tells the truth
  std::array<Seat, kSeats> seats_;  ///< given by whoever has the turn, with the lock
  std::atomic<std::uint64_t> issued_{0};
  std::atomic<std::uint64_t> completed_{0};
  std::atomic<std::uint32_t> passed_{0};  ///< counted before completed_
  std::mutex mutex_;                      ///< of changes of owner_ and owned_
  const void* last_ = nullptr;  ///< who made the last call by a ticket, and how many; belong to whoever has the turn
  std::uint32_t streak_ = 0;
  std::atomic<std::uint32_t> wanted_streak_{kFirstStreak};
};

/// Whether the kernel makes full fences on other cores for this process: asks it to be ready for that. In a process that has threads
/// this takes some 10 ms the first time.
bool have_process_barrier();

/// The same before the first call of a process, once and without waiting: until the kernel is ready, nobody owns an order.
void prepare_process_barrier();

}  // namespace tutti::comm
