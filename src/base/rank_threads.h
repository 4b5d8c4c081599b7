// The ranks of a tool as threads of its process.
#pragma once

#include "base/standard_output.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace tutti {

/// `live(rank)` in a thread for each rank: the largest exit code that they return. 1 for one that throws, or cannot be started, which is
/// said. Where one has failed and others do not end, the process does: they hear of the failure by the communicator, unless they still wait
/// for that rank to join it.
template <class Live>
int run_as_threads(const char* tool, int ranks, const Live& live) {
  constexpr int kFailed = 1;
  constexpr auto kGrace = std::chrono::seconds(3);
  const auto told = [&](int rank, const std::exception& problem, const char* doing) {
    complain("{}: {}rank {}: {}\n", tool, doing, rank, problem.what());
    return kFailed;
  };
  std::mutex mutex;
  std::condition_variable changed;
  int ended = 0, exit_code = 0;
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(ranks));
  const auto run = [&](int rank) {
    int code = 0;
    try {
      code = live(rank);
    } catch (const std::exception& thrown) {
      code = told(rank, thrown, "");
    }
    const std::lock_guard lock(mutex);
    ++ended;
    exit_code = std::max(exit_code, code);
    changed.notify_one();
  };
  try {
    while (static_cast<int>(threads.size()) < ranks) threads.emplace_back(run, static_cast<int>(threads.size()));
  } catch (const std::exception& refused) {
    const std::lock_guard lock(mutex);
    exit_code = std::max(exit_code, told(static_cast<int>(threads.size()), refused, "cannot start a thread for "));
  }
  std::unique_lock lock(mutex);
  const auto all_ended = [&] { return ended == static_cast<int>(threads.size()); };
  changed.wait(lock, [&] { return all_ended() || exit_code != 0; });
  if (!changed.wait_for(lock, kGrace, all_ended)) {
    std::fflush(nullptr);
    std::_Exit(exit_code);
  }
  lock.unlock();
  for (std::thread& thread : threads) thread.join();
  return exit_code;
}

}  // namespace tutti
