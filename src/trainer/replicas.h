// This rank's place among the replicas: the only file of the trainer that talks to the library. Collectives go to a host stream,
// so they run while the caller computes; wait() is where it stands still.
#pragma once

#include "trainer/outcome.h"

#include <nccl.h>
#include <tutti/tutti.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tutti::trainer {

/// Floats that the ranks' processes can read in place, zero at first: parameters and gradients live here.
class SharedFloats {
 public:
  static Outcome<SharedFloats> make(std::size_t count);

  float* data() { return floats_.get(); }
  std::span<float> span() { return {floats_.get(), count_}; }
  std::size_t size() const { return count_; }

 private:
  struct Free {
    void operator()(float* floats) const { (void)tuttiMemFree(floats); }
  };
  std::unique_ptr<float, Free> floats_;
  std::size_t count_ = 0;
};

class Replicas {
 public:
  /// Every rank calls it, with the same id. The communicator adds in rank order (reproducible mode), whatever the size.
  static Outcome<Replicas> join(int rank, int size, const ncclUniqueId& id);

  Replicas(Replicas&& other) noexcept;
  Replicas& operator=(Replicas&&) = delete;
  /// Gives up if neither leave() nor give_up() was called.
  ~Replicas();
  /// The orderly end, when this rank has no more to send.
  Problem leave();
  /// Aborts: nothing touches the buffers any more, and the other ranks are told, so that none waits for this one.
  void give_up();

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// These return at once. The buffer must not be touched until wait().
  Problem start_broadcast(float* values, std::size_t count);
  Problem start_sum(float* values, std::size_t count);
  Problem start_sum(double* values, std::size_t count);
  /// Everything started so far is done, or failed: then the message says why, naming the rank that is gone.
  Problem wait();

  /// All ranks' values, in rank order. Waits.
  Outcome<std::vector<std::uint64_t>> gather(std::uint64_t value);

 private:
  Replicas(int rank, int size) : rank_(rank), size_(size) {}
  Problem check(ncclResult_t result, const char* what);

  int rank_, size_;
  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

/// Compares one hash per replica; the failure names the ranks that differ from the others. Every rank gets the same answer.
Problem compare_replicas(Replicas& replicas, std::uint64_t hash);

}  // namespace tutti::trainer
