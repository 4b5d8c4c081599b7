#include "comm/memory_rate.h"

#include "base/mapping.h"
#include "base/reduce.h"
#include "comm/own_seat.h"
#include "comm/quiet_thread.h"
#include "transport/memory_available.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

namespace tutti::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kThreadsMax = 16;
constexpr int kRounds = 3;  // the best counts
constexpr std::size_t kBytesMin = std::size_t{8} << 20;
constexpr std::size_t kBytesMax = std::size_t{64} << 20;

/// Of each buffer, so that all threads' together are several times the last cache.
std::size_t buffer_bytes(std::size_t threads) {
  const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
  const std::size_t wanted = cache > 0 ? 2 * static_cast<std::size_t>(cache) / threads : kBytesMin;
  return std::clamp(wanted, kBytesMin, kBytesMax) / 4096 * 4096;
}

struct Worker {
  Mapping from;
  Mapping to;
  std::thread thread;
};

/// All threads copy at the same time, `kRounds` times; seconds of the fastest round.
double fastest_round(std::vector<Worker>& workers, std::size_t bytes) {
  std::atomic<int> ready{0};
  std::atomic<int> round{0};
  std::atomic<int> done{0};
  std::atomic<bool> given_up{false};
  const int count = static_cast<int>(workers.size());
  const auto wait_for = [&](std::atomic<int>& word, int value) {
    while (word.load(std::memory_order_acquire) < value && !given_up.load(std::memory_order_relaxed))
      std::this_thread::yield();
  };
  for (Worker& worker : workers) {
    auto started = start_quiet_thread("tutti-memory", [&worker, &ready, &round, &done, &wait_for, bytes] {
      std::memset(worker.from.data(), 1, bytes);
      std::memset(worker.to.data(), 1, bytes);
      ready.fetch_add(1, std::memory_order_acq_rel);
      for (int r = 1; r <= kRounds; ++r) {
        wait_for(round, r);
        copy_past_caches(worker.to.data(), worker.from.data(), bytes);  // as calls write large outputs
        done.fetch_add(1, std::memory_order_acq_rel);
      }
    });
    if (!started.ok()) {
      given_up = true;
      break;
    }
    worker.thread = std::move(started).value();
  }
  double fastest = 0;
  wait_for(ready, count);
  for (int r = 1; r <= kRounds && !given_up; ++r) {
    const auto start = Clock::now();
    round.store(r, std::memory_order_release);
    wait_for(done, r * count);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (fastest == 0 || seconds < fastest) fastest = seconds;
  }
  for (Worker& worker : workers)
    if (worker.thread.joinable()) worker.thread.join();
  return given_up ? 0 : fastest;
}

double measure() {
  const std::size_t threads = std::clamp<std::size_t>(own_seat("").processors.size(), 1, kThreadsMax);
  const std::size_t bytes = buffer_bytes(threads);
  if (transport::memory_available_bytes() / 4 < 2 * bytes * threads) return 0;
  std::vector<Worker> workers(threads);
  for (Worker& worker : workers) {
    auto from = Mapping::map_anonymous(bytes);
    auto to = Mapping::map_anonymous(bytes);
    if (!from.ok() || !to.ok()) return 0;
    worker.from = std::move(from).value();
    worker.to = std::move(to).value();
  }
  const double seconds = fastest_round(workers, bytes);
  return seconds > 0 ? 2.0 * static_cast<double>(bytes * threads) / seconds * 1e-9 : 0;
}

}  // namespace

double memory_gbps() {
  static std::atomic<double> known{0};  // no lock: a process may fork at any time
  double gbps = known.load(std::memory_order_acquire);
  if (gbps == 0) {
    gbps = measure();
    known.store(gbps, std::memory_order_release);
  }
  return gbps;
}

}  // namespace tutti::comm
