#include "comm/watchdog.h"

#include "rank_runs.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <catch2/catch.hpp>

#include <atomic>
#include <csignal>
#include <thread>

using namespace rank_runs;
using tutti::comm::ProcessWatch;
using tutti::comm::watch_process;

namespace {

pid_t sleeper() {
  return spawn([]() -> std::string {
    for (;;) pause();
  });
}

void end(pid_t child) {
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

bool becomes(const std::atomic<int>& counter, int value, double patience_s) {
  const Stopwatch watch;
  while (counter != value && watch.seconds() < patience_s) usleep(200);
  return counter == value;
}

std::unique_ptr<ProcessWatch> watch(pid_t pid, std::function<void()> on_exit) {
  auto made = watch_process(pid, std::move(on_exit));
  REQUIRE(made.ok());
  return std::move(made).value();
}

}  // namespace

TEST_CASE("a killed process is noticed at once, once, by every watch", "[watchdog]") {
  const NothingLeft nothing_left;
  const int descriptors = open_descriptors();
  const int threads = live_threads();
  {
    const pid_t child = sleeper();
    const pid_t other = sleeper();
    std::atomic<int> calls{0};
    std::atomic<int> other_calls{0};
    const auto first = watch(child, [&] { ++calls; });
    const auto second = watch(child, [&] { ++calls; });
    const auto third = watch(other, [&] { ++other_calls; });
    CHECK(live_threads() == threads + 1);
    CHECK(open_descriptors() == descriptors + 3);  // Two processes and the wake-up.
    usleep(50000);
    CHECK(calls == 0);
    kill(child, SIGKILL);  // Not reaped: a zombie is dead.
    CHECK(becomes(calls, 2, 0.5));
    usleep(50000);
    CHECK(calls == 2);
    CHECK(other_calls == 0);
    waitpid(child, nullptr, 0);
    end(other);
    CHECK(becomes(other_calls, 1, 0.5));
  }
}

TEST_CASE("a process that is already dead is told at once, reaped or not", "[watchdog]") {
  const NothingLeft nothing_left;
  const pid_t reaped = sleeper();
  end(reaped);
  const pid_t zombie = sleeper();
  kill(zombie, SIGKILL);
  std::atomic<int> calls{0};
  const auto first = watch(reaped, [&] { ++calls; });
  CHECK(becomes(calls, 1, 0.5));
  const auto second = watch(zombie, [&] { ++calls; });
  CHECK(becomes(calls, 2, 0.5));
  waitpid(zombie, nullptr, 0);
  CHECK_FALSE(watch_process(0, [] {}).ok());
  CHECK_FALSE(watch_process(-5, [] {}).ok());
}

TEST_CASE("after unwatching the callback neither runs nor is running", "[watchdog]") {
  const NothingLeft nothing_left;
  const pid_t child = sleeper();
  std::atomic<int> calls{0};
  auto kept = watch(child, [&] { calls += 100; });
  watch(child, [&] { ++calls; }).reset();
  end(child);
  CHECK(becomes(calls, 100, 0.5));
  usleep(30000);
  CHECK(calls == 100);

  const pid_t second = sleeper();
  std::atomic<bool> inside{false};
  std::atomic<bool> finished{false};
  auto slow = watch(second, [&] {
    inside = true;
    usleep(100000);
    finished = true;
  });
  end(second);
  while (!inside) usleep(100);
  slow.reset();
  CHECK(finished);
}

TEST_CASE("watching and unwatching from many threads", "[watchdog]") {
  const NothingLeft nothing_left;
  const pid_t child = sleeper();
  std::atomic<int> calls{0};
  std::vector<std::thread> users;
  for (int user = 0; user < 4; ++user) {
    users.emplace_back([&] {
      for (int i = 0; i < 200; ++i) (void)watch_process(child, [&] { ++calls; });
    });
  }
  for (std::thread& user : users) user.join();
  CHECK(calls == 0);
  end(child);
}

TEST_CASE("a forked child has a watchdog of its own and leaves the parent's alone", "[watchdog][forks]") {
  const NothingLeft nothing_left;
  const pid_t watched = sleeper();
  std::atomic<int> calls{0};
  auto mine = watch(watched, [&] { ++calls; });
  const int descriptors = open_descriptors();
  const pid_t child = spawn([&]() -> std::string {
    if (open_descriptors() != descriptors - 2) return "the parent's descriptors are still here";
    const pid_t grandchild = sleeper();
    std::atomic<int> own_calls{0};
    auto own = watch_process(grandchild, [&] { ++own_calls; });
    if (!own.ok()) return own.error().message;
    mine.reset();
    end(grandchild);
    return becomes(own_calls, 1, 1) ? "" : "the child's watchdog did not bark";
  });
  CHECK(ended_well(child));
  CHECK(calls == 0);
  end(watched);
  CHECK(becomes(calls, 1, 0.5));
}

TEST_CASE("without free descriptors the watchdog looks at processes in intervals", "[watchdog]") {
  const NothingLeft nothing_left;
  const pid_t child = spawn([]() -> std::string {
    const pid_t watched = sleeper();
    const pid_t zombie = sleeper();
    const rlimit none = {static_cast<rlim_t>(open_descriptors()), 64};
    if (setrlimit(RLIMIT_NOFILE, &none) != 0) return "setrlimit failed";
    for (rlim_t fd = 0; fd < 64; ++fd) dup(0);
    std::atomic<int> calls{0};
    auto first = watch_process(watched, [&] { ++calls; });
    if (!first.ok()) return first.error().message;
    usleep(60000);
    if (calls != 0) return "barked at a living process";
    end(watched);
    if (!becomes(calls, 1, 1)) return "a dead process was not noticed";
    auto second = watch_process(zombie, [&] { ++calls; });
    kill(zombie, SIGKILL);
    usleep(10000);
    waitpid(zombie, nullptr, 0);
    return becomes(calls, 2, 1) ? "" : "the second was not noticed";
  });
  CHECK(ended_well(child));
}
