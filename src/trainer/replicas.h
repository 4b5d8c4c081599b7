// This rank's place among the replicas. Collectives go to a stream of the back end's, so they run while it computes.
#pragma once

#include "trainer/backend.h"
#include "trainer/outcome.h"

#include <nccl.h>
#include <tutti/tutti.h>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace tutti::trainer {

class Replicas {
 public:
  /// Every rank calls it, with the same id and a back end of the same kind, which must outlive it. The communicator adds in rank order
  /// (reproducible mode), whatever the size.
  static Outcome<Replicas> join(int rank, int size, const ncclUniqueId& id, Backend& backend);

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

  /// Lets sums of these values, of Backend::shared_zeros() and as many on every rank, work on them where they lie. Once. They stay until leave()
  /// or give_up().
  Problem share(float* values, std::size_t count);

  /// Of values in the back end's memory, in place, when all that has been computed so far is done. What is computed later sees the results
  /// behind Backend::after_collectives(), and must not touch the values before.
  Problem start_broadcast(float* values, std::size_t count);
  Problem start_sum(float* values, std::size_t count);
  Problem start_sum(double* values, std::size_t count);
  /// Everything started and computed so far is done, or failed: then the message says why, naming the rank that is gone.
  Problem wait();

  /// All ranks' values, in rank order. Waits.
  Outcome<std::vector<std::uint64_t>> gather(std::uint64_t value);

 private:
  Replicas(int rank, int size, Backend& backend);
  Problem check(ncclResult_t result, const char* what);

  int rank_, size_;
  Backend& backend_;
  ncclComm_t comm_ = nullptr;
  ncclWindow_t window_ = nullptr;
  Array<std::uint64_t> hashes_;  ///< all ranks', then this one's
};

/// Compares one hash per replica; the failure says `differ` and names the ranks that differ from the others. Every rank gets the same answer.
Problem compare_replicas(Replicas& replicas, std::uint64_t hash,
                         std::string_view differ = "the replicas' parameters are no longer equal");

}  // namespace tutti::trainer
