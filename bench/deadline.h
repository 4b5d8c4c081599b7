// -T: aborts the communicator when one size takes too long.
#pragma once

#include "library.h"

#include <nccl.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace tutti::bench {

/// Lives for one size. Without a limit it does nothing. Aborting is what the library allows another thread to do.
class Deadline {
 public:
  Deadline(const Library& library, ncclComm_t comm, int limit_s) : library_(library), comm_(comm) {
    if (limit_s > 0) thread_ = std::thread([this, limit_s] { watch(std::chrono::seconds(limit_s)); });
  }
  ~Deadline() {
    (void)passed();
    if (thread_.joinable()) thread_.join();
  }
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

  /// Ends the watch. True: the communicator was aborted, and is gone; false: nothing will abort it any more.
  bool passed() {
    const std::lock_guard lock(mutex_);
    done_ = true;
    wake_.notify_one();
    return passed_;
  }
  /// For those who go on, as graphs do that no error ends.
  bool is_over() const { return passed_.load(std::memory_order_relaxed); }

 private:
  void watch(std::chrono::seconds limit) {
    std::unique_lock lock(mutex_);
    if (wake_.wait_for(lock, limit, [this] { return done_; })) return;
    passed_ = true;
    (void)library_.ncclCommAbort(comm_);
  }

  const Library& library_;
  ncclComm_t comm_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool done_ = false;
  std::atomic<bool> passed_ = false;
  std::thread thread_;
};

}  // namespace tutti::bench
