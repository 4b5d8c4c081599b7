// How threads wait that the system has put on one processor.
#include "executor/backoff.h"

#include <catch2/catch.hpp>

#include <sched.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

using namespace tutti::executor;

namespace {

/// The processors that this process may use.
std::vector<int> usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  REQUIRE(sched_getaffinity(0, sizeof(set), &set) == 0);
  std::vector<int> usable;
  for (int p = 0; p < CPU_SETSIZE; ++p) {
    if (CPU_ISSET(p, &set)) usable.push_back(p);
  }
  return usable;
}

void stay_on(int processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  sched_setaffinity(0, sizeof(set), &set);
}

/// What a rank on that processor finds.
bool meets_another_on(int processor, const Crowding& crowding) {
  bool met = false;
  std::thread([&] {
    stay_on(processor);
    met = crowding.meets_another();
  }).join();
  return met;
}

}  // namespace

TEST_CASE("a rank meets those that waited on its processor last", "[backoff]") {
  const std::vector<int> processors = usable_processors();
  std::array<std::uint32_t, 3> words{};
  const Crowding first(words, 0), second(words, 1), third(words, 2);
  CHECK_FALSE(meets_another_on(processors[0], first));  // nobody else is known
  CHECK_FALSE(meets_another_on(processors[0], first));  // nor does it meet itself
  CHECK(meets_another_on(processors[0], third));
  CHECK(meets_another_on(processors[0], first));
  CHECK(first.has_met());
  if (processors.size() < 2) return;
  CHECK_FALSE(meets_another_on(processors[1], second));
  CHECK(meets_another_on(processors[1], third));
  CHECK_FALSE(meets_another_on(processors[0], first));  // the third has gone
  CHECK_FALSE(first.has_met());
}

TEST_CASE("waits for several communicators' ranks are as crowded as the most crowded of them", "[backoff]") {
  std::array<std::uint32_t, 2> words{};
  Crowding crowding;
  crowding.join(Crowding(words, 0));
  CHECK_FALSE(crowding.is_certain());
  words[1] = words[0] = static_cast<std::uint32_t>(sched_getcpu()) + 1;
  crowding.join(Crowding(false));
  crowding.join(Crowding(true));
  CHECK(crowding.is_certain());
  crowding.join(Crowding(words, 0));
  CHECK(crowding.is_certain());
}

TEST_CASE("who shares a processor with the rank that it waits for leaves it to that one", "[backoff]") {
  // Two threads count by turns. One that does not see that the other needs its processor waits some 500 times for each turn.
  constexpr std::uint32_t kTurns = 2000;
  const int processor = usable_processors()[0];
  std::array<std::uint32_t, 2> words{};
  std::atomic<std::uint32_t> turn{0};
  std::atomic<std::uint64_t> waits{0};
  const auto run = [&](std::uint32_t rank) {
    stay_on(processor);
    const Crowding crowding(words, rank);
    std::uint64_t own_waits = 0;
    for (std::uint32_t t = rank; t < kTurns; t += 2) {
      Backoff backoff(crowding);
      for (; turn.load(std::memory_order_acquire) != t; ++own_waits) backoff.wait();
      turn.store(t + 1, std::memory_order_release);
    }
    waits += own_waits;
  };
  std::thread one(run, 0), other(run, 1);
  one.join();
  other.join();
  CHECK(waits < std::uint64_t{100} * kTurns);
}

TEST_CASE("who gets the processor back late looks at clocks at once", "[backoff]") {
  for (const bool crowded : {true, false}) {
    const Crowding crowding(crowded);
    Backoff backoff(crowding);
    constexpr int kYieldEvery = 64;
    for (int waits = 0; waits < 600; ++waits) backoff.wait();
    for (int waits = 0; waits < kYieldEvery; ++waits, backoff.wait()) (void)backoff.is_slow();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    int waits = 0;
    for (; !backoff.is_slow() && waits < 1000; ++waits) backoff.wait();
    // Not each time: clocks and peers cost more than the wait. At once: what a check takes may be time for another look.
    const bool looks_again = backoff.is_slow();
    CHECK(waits <= kYieldEvery);
    CHECK_FALSE(looks_again);
  }
}

TEST_CASE("who sleeps looks at clocks as often as who is awake", "[backoff]") {
  const Crowding crowding(false);
  Backoff backoff(crowding);
  int waits = 0;
  for (; waits < 200100; ++waits) backoff.wait();  // it sleeps by now
  for (waits = 0; !backoff.is_slow() && waits < 1000; ++waits) backoff.wait();
  CHECK(waits <= 64);
}
