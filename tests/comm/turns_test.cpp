#include "comm/turns.h"

#include "rank_runs.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <catch2/catch.hpp>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

using namespace rank_runs;
using tutti::comm::have_process_barrier;
using tutti::comm::Turns;

namespace {

/// What only whoever has the turn may touch: no atomics.
struct Guarded {
  std::uint64_t first = 0;
  std::uint64_t second = 0;
};

struct Tally {
  std::uint64_t short_ways = 0;
  std::uint64_t torn = 0;
};

void take_turn(Turns& turns, Guarded& guarded, Tally& tally) {
  const bool owned = turns.enter();
  std::uint64_t ticket = 0;
  if (!owned) {
    ticket = turns.take();
    while (!turns.is_turn(ticket)) std::this_thread::yield();
  }
  if (guarded.first != guarded.second) ++tally.torn;
  ++guarded.first;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  ++guarded.second;
  if (owned) {
    ++tally.short_ways;
    turns.leave();
  } else {
    turns.offer();
    turns.complete();
  }
}

void take_turns(Turns& turns, Guarded& guarded, Tally& tally, int count) {
  for (int i = 0; i < count; ++i) take_turn(turns, guarded, tally);
}

/// So that the next turn of this thread is by the short way, if there is one.
void come_to_own(Turns& turns) {
  Guarded guarded;
  Tally tally;
  take_turns(turns, guarded, tally, 1000);
}

/// A thread that takes turns without a pause, and three that come by now and then. Returns what is wrong.
std::string compete(bool short_ways_wanted) {
  Turns turns;
  Guarded guarded;
  constexpr int kOften = 400000;
  constexpr int kNow = 40;
  std::vector<Tally> tallies(4);
  std::atomic<bool> over{false};
  std::thread often([&] {
    take_turns(turns, guarded, tallies[0], kOften);
    over = true;
  });
  std::atomic<std::uint64_t> visits{0};
  std::vector<std::thread> visitors;
  for (std::size_t t = 1; t < tallies.size(); ++t) {
    visitors.emplace_back([&, t] {
      for (int i = 0; i < kNow && !over; ++i) {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
        take_turn(turns, guarded, tallies[t]);
        ++visits;
      }
    });
  }
  often.join();
  for (std::thread& visitor : visitors) visitor.join();
  std::uint64_t torn = 0;
  for (const Tally& tally : tallies) torn += tally.torn;
  if (torn != 0) return std::to_string(torn) + " turns began inside others";
  if (guarded.first != kOften + visits) return "turns were lost";
  if (!turns.is_idle()) return "not idle at the end";
  if ((tallies[0].short_ways > 0) != short_ways_wanted) return std::to_string(tallies[0].short_ways) + " short ways";
  return "";
}

/// From now on this process gets EPERM for membarrier. False: no such filters here.
bool refuse_membarrier() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{4, program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

}  // namespace

TEST_CASE("turns of a thread that owns the order and tickets of others do not overlap", "[turns]") {
  for (int round = 0; round < 5; ++round) CHECK(compete(have_process_barrier()) == "");
}

TEST_CASE("tickets are served in order, and nobody owns the order at first", "[turns]") {
  Turns turns;
  CHECK(turns.is_idle());
  CHECK_FALSE(turns.enter());
  const std::uint64_t first = turns.take();
  const std::uint64_t second = turns.take();
  CHECK(turns.is_turn(first));
  CHECK_FALSE(turns.is_turn(second));
  CHECK_FALSE(turns.is_idle());
  turns.complete();
  CHECK(turns.is_turn(second));
  turns.complete();
  CHECK(turns.is_idle());
}

TEST_CASE("who passes the turn on is under way until the end", "[turns]") {
  Turns turns;
  const std::uint64_t first = turns.take();
  const std::uint64_t second = turns.take();
  REQUIRE(turns.is_turn(first));
  turns.pass();
  CHECK(turns.is_turn(second));
  turns.complete();
  CHECK_FALSE(turns.is_idle());
  turns.end_passed();
  CHECK(turns.is_idle());
}

TEST_CASE("the owner's turn keeps others waiting, who take the ownership away", "[turns]") {
  if (!have_process_barrier()) return;
  Turns turns;
  come_to_own(turns);
  REQUIRE(turns.is_owned());
  REQUIRE(turns.enter());
  std::atomic<int> seen{0};  // 1: not idle; 2: has waited; 3: had its turn
  std::thread other([&] {
    if (!turns.is_idle()) seen = 1;
    const std::uint64_t ticket = turns.take();
    if (!turns.is_turn(ticket)) seen = seen + 1;
    while (!turns.is_turn(ticket)) std::this_thread::yield();
    seen = seen + 1;
    turns.complete();
  });
  while (seen < 2) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(seen == 2);
  CHECK_FALSE(turns.is_owned());
  turns.leave();
  other.join();
  CHECK(seen == 3);
  CHECK_FALSE(turns.enter());
  CHECK(turns.is_idle());
}

TEST_CASE("a former owner that goes on in the middle of enter() says nothing about the new one", "[turns]") {
  if (!have_process_barrier()) return;
  Turns turns;
  come_to_own(turns);
  std::atomic<int> step{0};  // 1: the former owner is in the gap; 2: the new one is inside; 3: it may leave
  std::thread next([&] {
    while (step < 1) std::this_thread::yield();
    come_to_own(turns);
    CHECK(turns.enter());
    step = 2;
    while (step < 3) std::this_thread::yield();
    turns.leave();
  });
  const bool entered = turns.enter([&] {
    step = 1;
    while (step < 2) std::this_thread::yield();
  });
  CHECK_FALSE(entered);
  const std::uint64_t ticket = turns.take();
  CHECK_FALSE(turns.is_turn(ticket));
  CHECK_FALSE(turns.is_idle());
  step = 3;
  while (!turns.is_turn(ticket)) std::this_thread::yield();
  turns.complete();
  next.join();
  CHECK(turns.is_idle());
}

TEST_CASE("threads without a seat take tickets", "[turns]") {
  if (!have_process_barrier()) return;
  Turns turns;
  int owners = 0;
  std::vector<std::thread> threads;  // all at once, or one would have another's mark
  std::atomic<std::size_t> next{0};
  for (std::size_t i = 0; i < 12; ++i) {
    threads.emplace_back([&, i] {
      while (next != i) std::this_thread::yield();
      Guarded guarded;
      Tally tally;
      take_turns(turns, guarded, tally, 200000);
      owners += tally.short_ways > 0;
      ++next;
      while (next != 12) std::this_thread::yield();
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(owners == 8);
  CHECK(turns.is_idle());
}

TEST_CASE("an owner that takes a ticket owns the order no more, and may again", "[turns]") {
  if (!have_process_barrier()) return;
  Turns turns;
  come_to_own(turns);
  const std::uint64_t ticket = turns.take();  // as for a call on a stream, which another thread makes
  CHECK_FALSE(turns.enter());
  std::thread([&] {
    CHECK(turns.is_turn(ticket));
    turns.complete();
  }).join();
  CHECK_FALSE(turns.enter());
  come_to_own(turns);
  CHECK(turns.enter());
  turns.leave();
}

TEST_CASE("nobody comes to own the order while another ticket is out", "[turns]") {
  const bool have = have_process_barrier();
  Turns turns;
  Guarded guarded;
  const std::uint64_t first = turns.take();
  for (int i = 0; i < 1000; ++i) turns.offer();
  CHECK(turns.is_owned() == have);  // alone: it may
  const std::uint64_t second = turns.take();
  CHECK_FALSE(turns.is_owned());
  for (int i = 0; i < 1000; ++i) turns.offer();
  CHECK_FALSE(turns.is_owned());
  CHECK(turns.is_turn(first));
  turns.complete();
  CHECK(turns.is_turn(second));
  turns.complete();
}

TEST_CASE("where the kernel refuses membarrier all take tickets", "[turns][forks]") {
  CHECK(ended_well(spawn([]() -> std::string {
    if (!refuse_membarrier()) return "";
    if (have_process_barrier()) return "membarrier was not refused";
    return compete(false);
  })));
}
