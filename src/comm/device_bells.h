// How the streams of ranks in several processes wait for each other without a kernel that spins: words in the control segment, which
// streams store and wait for. Processes without MPS have a shared GPU by turns of milliseconds each; a kernel that waits for another
// process's would use its turns up, a stream that waits leaves them to the others.
//
// One word per meeting point, from each rank to each other:
//
//   rank a                                rank b
//   word[a][b] = 1   -----------------.   word[b][a] = 1
//   wait for word[b][a] == 1          '-> wait for word[a][b] == 1
//   word[b][a] = 0                        word[a][b] = 0
//
//  B1. Stream order, and a store's place behind all memory accesses before it, put all that a rank's stream did before a meeting before
//      all that any rank's does after it.
//  B2. A rank stores 1 again only when the other has stored 0: between two meetings at one point there is one at the other point, which
//      the other rank's stream comes to after its 0.
//  B3. After each meeting all words are 0 again: a captured meeting can be replayed.
#pragma once

#include "cuda/device.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace tutti::comm {

class DeviceBells {
 public:
  /// Used by turns.
  enum class Point : std::uint8_t { kOpen, kClose };

  static std::size_t bytes_for(std::size_t ranks) { return 2 * ranks * ranks * sizeof(std::uint32_t); }
  /// `words`: the control segment's, whole pages; outlives it.
  static Result<std::unique_ptr<DeviceBells>> open(std::shared_ptr<cuda::Device> device, std::span<std::byte> words,
                                                   int ranks, int rank);

  /// What follows on the stream waits for all other ranks' streams.
  Status meet(Point point, cuda::StreamHandle stream) const;
  /// Whether a stream of this rank is at a meeting to which none of that rank's has come.
  bool waits_for(int peer) const;
  /// Lets this rank's streams go on for now, whomever they wait for: the communicator has failed.
  void let_go() const;

 private:
  DeviceBells(std::shared_ptr<cuda::Device> device, std::span<std::byte> words, int ranks, int rank)
      : device_(std::move(device)), words_(words), ranks_(ranks), rank_(rank) {}
  /// In the words.
  std::size_t index(Point point, int from, int to) const {
    return (static_cast<std::size_t>(point) * ranks_ + static_cast<std::size_t>(from)) * ranks_ +
           static_cast<std::size_t>(to);
  }

  const std::shared_ptr<cuda::Device> device_;
  const std::span<std::byte> words_;
  const int ranks_;
  const int rank_;
  cuda::SharedWords registered_;
};

}  // namespace tutti::comm
