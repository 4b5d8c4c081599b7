// The collectives tutti-perf measures: one table row each, with its buffers, its call and its bandwidth's meaning.
#pragma once

#include "gpu.h"
#include "library.h"

#include <nccl.h>
#include <tutti/tutti.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace tutti::bench {

/// What one rank passes to the call.
struct Call {
  const Library* library = &this_library();  ///< whose communicator and operation these are
  const void* send = nullptr;
  void* receive = nullptr;
  std::size_t count = 0;
  ncclDataType_t type = ncclFloat;
  ncclRedOp_t op = ncclSum;
  int root = 0;
  int rank = 0;
  int ranks = 1;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  const Gpu* gpu = nullptr;       ///< whose memory and streams these are; nullptr: the host's
  std::int32_t* words = nullptr;  ///< on a GPU: two, for the barrier
};

/// Which block of the output holds what, in words that the exact check computes from.
enum class Pattern {
  kReduceAll,      ///< the reduction of everybody's input
  kReduceRoot,     ///< ... at the root
  kReduceScatter,  ///< ... of block `rank` of everybody's input
  kBroadcast,      ///< the root's input
  kGatherAll,      ///< block p is rank p's input
  kGatherRoot,     ///< ... at the root
  kScatter,        ///< block `rank` of the root's input
  kAllToAll,       ///< block p is block `rank` of rank p's input
  kRing,           ///< the input of the rank before
};

struct Collective {
  const char* name;  ///< "all_reduce"
  Pattern pattern;
  bool reduces;
  bool rooted;
  bool in_place;        ///< NCCL defines it in place
  bool send_blocks;     ///< the input has a block of `count` elements per rank, else one
  bool receive_blocks;  ///< so has the output
  ncclResult_t (*run)(const Call& call);
  tuttiCollective_t plan;  ///< for tuttiExplain

  std::size_t input_blocks(int ranks) const { return send_blocks ? static_cast<std::size_t>(ranks) : 1; }
  std::size_t output_blocks(int ranks) const { return receive_blocks ? static_cast<std::size_t>(ranks) : 1; }
  std::size_t blocks(int ranks) const { return send_blocks || receive_blocks ? static_cast<std::size_t>(ranks) : 1; }
  bool has_output(int rank, int root) const {
    return rank == root || (pattern != Pattern::kReduceRoot && pattern != Pattern::kGatherRoot);
  }
  /// Where the rank's input lies in the in-place buffer, in blocks, and its output.
  std::size_t in_place_input(int rank) const;
  std::size_t in_place_output(int rank) const;
  /// Bus bandwidth over algorithm bandwidth: what a link of the busiest rank carries per byte of the result
  /// (nccl-tests' doc/PERFORMANCE.md derives the factors).
  double bus_factor(int ranks) const;
  /// The least that ranks on hosts of their own send each, on average, per byte of the size.
  double wire_factor(int ranks) const;
};

std::span<const Collective> collectives();
/// nullptr where there is none of that name.
const Collective* collective_named(std::string_view name);

}  // namespace tutti::bench
