// How the streams of ranks in several processes wait for each other without a kernel that spins: words in the control segment, which
// streams store and wait for. Processes without MPS have a shared GPU by turns: a kernel that waits for another process's would use its
// turns up, a stream that waits leaves them to the others. Ranks of one process that share a GPU, beside other processes, go so too: where they
// share a stream, or one of the GPU's queues, a kernel that waits could stand before the one that it waits for, and nobody would see it.
//
// Going from one process to another takes a GPU an eighth of a millisecond (H100), more than most calls do. So one rank of each GPU leads: its
// launch does the parts of all ranks there, and the others' streams only say what their buffers are.
//
//   rank p                                     leader l, of p's GPU or another one
//   call[p] = its buffers                      call[l] = its buffers
//   came[l][p] = fingerprint | 1 (each l) -->  wait for came[l][p] (all p)
//                                              the launch, which reads all call[p]
//                                              came[l][p] = 0 (all p)
//   wait for done[l][p] (each l)          <--  done[l][p] = 1 (all p)
//   done[l][p] = 0
//
//  B1. Stream order, and a store's place behind all memory accesses before it, put all that a rank's stream did before a call before
//      all launches of the call, and those before all that any rank's stream does after it.
//  B2. call[p] and came[l][p] are stored again when all leaders have stored done[l][p]: those have read the one and cleared the other
//      before. done[l][p] is stored again when came[l][p] is there again, which p stores after it has cleared done[l][p].
//  B3. After each call all words but call[p] are 0 again, and every store is of the call's own arguments: a captured call can be replayed.
#pragma once

#include "cuda/device.h"
#include "cuda/kernel_abi.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace tutti::comm {

class DeviceBells {
 public:
  static std::size_t bytes_for(std::size_t ranks) {
    return ranks * sizeof(cuda::StreamCall) + 2 * ranks * ranks * sizeof(std::uint32_t);
  }
  /// `words`: the control segment's, whole pages; outlives it. `leaders`: by rank, the first rank on the same GPU.
  static Result<std::unique_ptr<DeviceBells>> open(std::shared_ptr<cuda::Device> device, std::span<std::byte> words,
                                                   std::vector<int> leaders, int rank);

  /// Whether this rank launches, between begin() and end().
  bool leads() const { return leads(rank_); }
  /// For whom, and where they say what they want.
  cuda::FoldMembers members() const;
  /// A leader's stream goes on when all ranks' streams have come.
  /// `factor`: nullptr, or that of a scaled call.
  Status begin(const cuda::AnnouncedBuffers& own, const cuda::Factor* factor, std::size_t element_bytes,
               cuda::StreamHandle stream) const;
  /// What follows on the stream waits for all leaders' launches.
  Status end(cuda::StreamHandle stream) const;

  /// Whether a stream of this rank is in a call to which none of that rank's has come, or for the end of which it is the leader's turn.
  bool waits_for(int peer) const;
  /// Lets this rank's streams go on for now, whomever they wait for: the communicator has failed.
  void let_go() const;

 private:
  DeviceBells(std::shared_ptr<cuda::Device> device, std::span<std::byte> words, std::vector<int> leaders, int rank)
      : device_(std::move(device)),
        words_(words),
        ranks_(static_cast<int>(leaders.size())),
        rank_(rank),
        leaders_(std::move(leaders)) {}
  bool leads(int rank) const { return leaders_[static_cast<std::size_t>(rank)] == rank; }
  bool has_come(int rank) const;
  // Where words lie in the segment, in bytes.
  std::size_t call_at(int rank) const { return static_cast<std::size_t>(rank) * sizeof(cuda::StreamCall); }
  std::size_t came_at(int leader, int rank) const { return call_at(ranks_) + pair_at(leader, rank); }
  std::size_t done_at(int leader, int rank) const { return came_at(ranks_, 0) + pair_at(leader, rank); }
  std::size_t pair_at(int leader, int rank) const {
    return (static_cast<std::size_t>(leader) * static_cast<std::size_t>(ranks_) + static_cast<std::size_t>(rank)) *
           sizeof(std::uint32_t);
  }
  std::uint32_t& word(std::size_t at) const { return *reinterpret_cast<std::uint32_t*>(words_.data() + at); }
  std::uint64_t address(std::size_t at) const { return registered_.address() + at; }

  const std::shared_ptr<cuda::Device> device_;
  const std::span<std::byte> words_;
  const int ranks_;
  const int rank_;
  const std::vector<int> leaders_;
  cuda::SharedWords registered_;
};

}  // namespace tutti::comm
