// The memory through which lanes pass data on from GPU to GPU (protocol/channel.h): FIFOs for each lane and neighbour, and what the
// interpreter of a rank works in. A piece of device memory of each rank, cut alike on all.
//
//   a rank's   | counts | slots ...                | homes | channels | workspaces | programs ... |
//              '-- its neighbours write here ------'------- its own kernels' alone ---------------'
//
// A FIFO lies at its receiver: data and counts go over the link as stores, and everybody polls its own memory.
#pragma once

#include "base/result.h"
#include "cuda/kernel_abi.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace tutti::comm {

/// Which ranks' GPUs reach each other's memory, or are the same. The same on all ranks.
class DeviceLinks {
 public:
  explicit DeviceLinks(int ranks = 1) : ranks_(ranks) {}
  void join(int a, int b) {
    of_[static_cast<std::size_t>(a)] |= 1u << b;
    of_[static_cast<std::size_t>(b)] |= 1u << a;
  }
  int ranks() const { return ranks_; }
  bool joins(int a, int b) const { return a == b || (of_[static_cast<std::size_t>(a)] >> b & 1) != 0; }
  bool joins_all() const;
  /// Whether all ranks are neighbours of neighbours.
  bool connects_all() const;
  /// Neighbours of the rank that has the most.
  std::uint32_t most() const;
  /// Of the rank's neighbours, those of a lower number than `other`.
  std::uint32_t place(int rank, int other) const;

 private:
  int ranks_;
  std::array<std::uint32_t, cuda::kRanksMax> of_{};  ///< by rank: a bit for each neighbour
};

/// How the memory is cut. Follows from the links and the number of blocks alone.
class DeviceFifos {
 public:
  static constexpr std::size_t kBytes = std::size_t{7} << 19;  ///< of a rank: 3.5 MiB
  static constexpr std::uint32_t kLanesMost = 32;

  /// `blocks_max`: that a rank may launch.
  DeviceFifos(const DeviceLinks& links, std::uint32_t blocks_max);

  /// Lanes there are FIFOs for; as many blocks at most has a rank's part of a launch.
  std::uint32_t lanes() const { return lanes_; }
  schedule::SlotShape slots() const { return slots_; }
  /// Of one lane, that a workspace has room for.
  std::size_t steps_most() const { return steps_most_; }
  std::size_t endpoints_most() const { return kEndpointsPerStep * steps_most_; }
  static constexpr std::size_t kSidesMost = 2 * cuda::kRanksMax;  ///< sources, or sinks, of one step
  /// Where programs lie.
  std::size_t programs() const { return programs_; }
  std::size_t program_bytes() const { return kBytes - programs_; }

  using Write = std::function<Status(std::size_t offset, const void* from, std::size_t bytes)>;
  /// Writes what lies in a rank's memory at first. `memory`: by rank, as this rank's GPU reaches it; nullptr where it does not, or need not.
  Status fill(const DeviceLinks& links, int rank, const std::vector<std::byte*>& memory, const Write& write) const;
  const cuda::LaneHome* homes(const std::byte* memory) const {
    return reinterpret_cast<const cuda::LaneHome*>(memory + homes_);
  }

 private:
  static constexpr std::size_t kEndpointsPerStep = 3;
  std::size_t counts_at(std::uint32_t lane, std::uint32_t place) const {
    return (std::size_t{lane} * neighbours_ + place) * sizeof(protocol::PairLine);
  }
  std::size_t slots_at(std::uint32_t lane, std::uint32_t place) const {
    return fifos_ + (std::size_t{lane} * neighbours_ + place) * slots_.bytes();
  }
  protocol::LaneWorkspace workspace(std::byte* memory) const;
  std::size_t workspace_bytes() const;

  std::uint32_t neighbours_;
  std::uint32_t lanes_;
  schedule::SlotShape slots_;
  std::size_t steps_most_ = 0;
  std::size_t fifos_ = 0;
  std::size_t homes_ = 0;
  std::size_t channels_ = 0;
  std::size_t workspaces_ = 0;
  std::size_t programs_ = 0;
};

}  // namespace tutti::comm
