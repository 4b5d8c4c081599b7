// MpiCalls: whether this process may call MPI. Every call of the plug-in's but MPI_Comm_create_group, which waits for others, is made
// between enter() and the end of what it returns; all of them return at once.
#pragma once

#include "transport/mpi_pipe.h"

#include <atomic>
#include <chrono>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <thread>

namespace tutti::transport {

class MpiCalls {
 public:
  class Pass {
   public:
    Pass(std::shared_mutex& under_way, const std::atomic<bool>& ended) {
      if (ended.load(std::memory_order_acquire)) return;
      lock_ = std::shared_lock(under_way);
      if (ended.load(std::memory_order_acquire)) lock_.unlock();
    }
    bool owns_lock() const { return lock_.owns_lock(); }

   private:
    std::shared_lock<std::shared_mutex> lock_;
    MpiPipe pipe_;
  };

  /// Owns nothing if MPI must not be called any more. Not to be nested.
  Pass enter() { return Pass(under_way_, ended_); }

  /// No call begins after this. The first reason stays.
  void forbid(const std::string& why) {
    {
      const std::lock_guard lock(mutex_);
      if (why_.empty()) why_ = why;
    }
    ended_.store(true, std::memory_order_release);
  }

  /// The same, and waits for those under way, at most so long.
  void end(const std::string& why, std::chrono::milliseconds patience) {
    forbid(why);
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
