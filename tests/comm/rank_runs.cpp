#include "rank_runs.h"

#include "base/mapping.h"
#include "comm/unique_id.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>
#include <catch2/catch.hpp>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

namespace rank_runs {

using tutti::comm::BootstrapArgs;
using tutti::comm::BootstrapResult;
using tutti::comm::UniqueId;

tutti::comm::UniqueId new_id() {
  auto id = tutti::comm::make_unique_id();
  REQUIRE(id.ok());
  return id.value();
}

void check_all_work(std::vector<Outcome>& outcomes) {
  for (Outcome& outcome : outcomes) {
    INFO(outcome.message);
    REQUIRE(outcome.ok);
    close(outcome.result.control.fd);
  }
}

std::size_t control_bytes(int local_ranks) { return 4096 * static_cast<std::size_t>(local_ranks); }

Outcome run_rank(const UniqueId& id, int rank, int ranks, const Arguments& change) {
  BootstrapArgs args;
  args.ids = {id};
  args.rank = rank;
  args.ranks = ranks;
  args.control_bytes = control_bytes;
  args.timeout_s = 20;
  if (change) change(args);
  const Stopwatch watch;
  auto result = tutti::comm::bootstrap(args);
  Outcome outcome;
  outcome.seconds = watch.seconds();
  outcome.ok = result.ok();
  if (result.ok()) {
    outcome.result = std::move(result).value();
  } else {
    outcome.code = result.error().code;
    outcome.message = result.error().message;
  }
  return outcome;
}

std::vector<Outcome> run_threads(const UniqueId& id, const std::vector<int>& numbers, int ranks,
                                 const Arguments& change) {
  std::vector<Outcome> outcomes(numbers.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    threads.emplace_back([&, i] { outcomes[i] = run_rank(id, numbers[i], ranks, change); });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

std::vector<int> all_ranks(int ranks) {
  std::vector<int> numbers(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) numbers[rank] = rank;
  return numbers;
}

pid_t spawn(const std::function<std::string()>& body) {
  const pid_t child = fork();
  if (child != 0) return child;
  const std::string wrong = body();
  if (!wrong.empty()) fmt::print(stderr, "child {}: {}\n", getpid(), wrong);
  _exit(wrong.empty() ? 0 : 1);
}

bool ended_well(pid_t child) {
  int status = -1;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

Maker::Maker() {
  int ends[2];
  if (pipe(ends) != 0) std::abort();
  pid = spawn([&]() -> std::string {
    const auto made = tutti::comm::make_unique_id();
    if (!made.ok() || write(ends[1], &made.value(), sizeof id) != sizeof id) return "no id";
    pause();
    return "";
  });
  if (read(ends[0], &id, sizeof id) != sizeof id) std::abort();
  close(ends[0]);
  close(ends[1]);
}

Maker::~Maker() {
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
}

std::string meet_in_control(const BootstrapResult& result, int rank) {
  auto mapped = tutti::Mapping::map_file(result.control.fd, result.control.bytes);
  close(result.control.fd);
  if (!mapped.ok()) return mapped.error().message;
  std::size_t place = 0;
  std::vector<int> local;
  for (const auto& peer : result.peers) {
    if (peer.host != result.peers[rank].host) continue;
    if (peer.rank == rank) place = local.size();
    local.push_back(peer.rank);
  }
  if (result.control.bytes != control_bytes(static_cast<int>(local.size()))) return "wrong size of the control segment";
  auto* marks = reinterpret_cast<std::uint64_t*>(mapped.value().data());
  const auto mark = [&](std::size_t i) { return std::atomic_ref<std::uint64_t>(marks[i * 512]); };
  mark(place).store(1000 + static_cast<std::uint64_t>(rank));
  const Stopwatch watch;
  for (std::size_t i = 0; i < local.size(); ++i) {
    while (mark(i).load() == 0 && watch.seconds() < 10) usleep(500);
    const auto seen = mark(i).load();
    if (seen != 1000 + static_cast<std::uint64_t>(local[i]))
      return fmt::format("rank {} sees {} of rank {}", rank, seen, local[i]);
  }
  return "";
}

namespace {

int entries(const char* directory) {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(directory)) ++count;
  return count;
}

}  // namespace

int open_descriptors() { return entries("/proc/self/fd") - 1; }
int live_threads() { return entries("/proc/self/task"); }

bool settles_to(int descriptors, int threads, double patience_s) {
  const Stopwatch watch;
  while (open_descriptors() != descriptors || live_threads() != threads) {
    if (watch.seconds() > patience_s) {
      fmt::print(stderr, "{} descriptors and {} threads, expected {} and {}\n", open_descriptors(), live_threads(),
                 descriptors, threads);
      return false;
    }
    usleep(2000);
  }
  return true;
}

NothingLeft::NothingLeft(double patience_s) : patience_s_(patience_s) {
  // Sanitizers start a thread of their own along with the first one. A joined thread is still listed for a moment.
  pid_t thread = 0;
  std::thread([&] { thread = gettid(); }).join();
  const std::filesystem::path listed = "/proc/self/task/" + std::to_string(thread);
  for (const Stopwatch watch; std::filesystem::exists(listed) && watch.seconds() < patience_s;) usleep(200);
  descriptors_ = open_descriptors();
  threads_ = live_threads();
}

NothingLeft::~NothingLeft() {
  // A thread that an earlier test had left to end may have been counted at the beginning, and takes its descriptors along. But for that,
  // fewer descriptors are some that were closed twice.
  const auto as_before = [this] {
    const int threads = live_threads();
    const int descriptors = open_descriptors();
    return threads == threads_ ? descriptors == descriptors_ : threads < threads_ && descriptors <= descriptors_;
  };
  for (const Stopwatch watch; watch.seconds() < patience_s_ && !as_before();) usleep(2000);
  INFO(open_descriptors() << " descriptors and " << live_threads() << " threads, " << descriptors_ << " and "
                          << threads_ << " before");
  CHECK(as_before());
}

}  // namespace rank_runs
