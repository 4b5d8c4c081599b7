// MpiCalls: whether this process may call MPI. Every call of the plug-in's but MPI_Comm_create_group, which waits for others, is made
// between enter() and the end of what it returns; all of them return at once.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <thread>

namespace tutti::transport {

class MpiCalls {
 public:
  using Pass = std::shared_lock<std::shared_mutex>;

  /// Owns nothing if MPI must not be called any more. Not to be nested.
  Pass enter() {
    if (ended_.load(std::memory_order_acquire)) return {};
    Pass pass(under_way_);
    if (ended_.load(std::memory_order_acquire)) pass.unlock();
    return pass;
  }

  /// No call begins after this. Waits for those under way, at most so long. The first reason stays.
  void end(const std::string& why, std::chrono::milliseconds patience) {
    {
      const std::lock_guard lock(mutex_);
      if (why_.empty()) why_ = why;
    }
    ended_.store(true, std::memory_order_release);
    const auto until = std::chrono::steady_clock::now() + patience;
    while (!under_way_.try_lock()) {
      if (std::chrono::steady_clock::now() >= until) return;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    under_way_.unlock();
  }

  std::string why_ended() const {
    const std::lock_guard lock(mutex_);
    return why_;
  }

 private:
  std::shared_mutex under_way_;
  std::atomic<bool> ended_{false};
  mutable std::mutex mutex_;
  std::string why_;  ///< guarded by mutex_
};

/// The process's. Never destroyed: the plug-in's thread may outlive other static objects.
MpiCalls& mpi_calls();

}  // namespace tutti::transport
