// The device memory through which ranks of several processes work together: each rank has a segment, exports it, and maps everybody
// else's. In it are the kernels' words (cuda/kernel_abi.h: RankHome), line memory, and the staging of buffers that others cannot map. Ranks
// of one process have such segments where their kernels wait for each other; they need neither export nor staging.
#pragma once

#include "comm/control.h"
#include "cuda/device.h"
#include "cuda/pointers.h"

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <vector>

namespace tutti::comm {

class DeviceLinks;
class Reach;

enum class SegmentUse : std::uint8_t { kProcesses, kOneProcess };

/// The blocks that a rank may launch of kernels that wait for each other: all ranks of a GPU have a share of what is resident there at
/// once. The same on all ranks, once all have opened their segments.
std::uint32_t resident_share(const Control& control);

struct Membership;
bool same_gpu(const Control& control, int a, int b);
/// Whether two ranks are on one GPU, of whatever processes.
bool ranks_share_gpus(const Control& control);
/// Whether ranks of two processes are on one GPU.
bool processes_share_gpus(const Membership& members);

class DeviceSegment {
 public:
  /// Bytes of a rank's buffers that others see at once. With all the rest a segment has 6 MiB.
  static constexpr std::size_t kStagingBytes = std::size_t{9} << 19;
  /// Number of a rank's own segment in PeerMappings; 0 is what all ranks have at the same address.
  static constexpr std::uint64_t kMapping = 1;
  /// Names in PeerMappings. `which`: the number of the window, or of the rank's export, at this place.
  static constexpr std::uint64_t window_mapping(std::size_t place, std::uint64_t which) {
    return cuda::PeerMappings::name(kMapping + 1 + place, which);
  }
  static constexpr std::uint64_t export_mapping(std::size_t place, std::uint64_t which) {
    return cuda::PeerMappings::name(kMapping + 1 + DeviceCard::kWindows + place, which);
  }
  static constexpr std::size_t kExports = 32;  ///< allocations of a rank (device_exports.h)

  /// Allocates it, and writes on the rank's card how others open it.
  static Result<std::unique_ptr<DeviceSegment>> open(std::shared_ptr<cuda::Device> device, const Control& control,
                                                     int rank, SegmentUse use);
  /// Lets go of the others' segments at once, and of its own when nobody uses it any more: until then somebody keeps it (see sweep()).
  /// The device is done with all that used it.
  ~DeviceSegment();
  DeviceSegment(const DeviceSegment&) = delete;
  DeviceSegment& operator=(const DeviceSegment&) = delete;

  /// When all cards are there: maps what can be mapped of the others' segments.
  void map_others(const Reach& reach);
  /// When it is known who reaches whom: writes this rank's home. Ranks that are not joined are no peers of its kernels, though one of
  /// the two may have mapped the other's segment: nobody waits for what the other cannot write.
  Status link(const DeviceLinks& links);
  /// By rank, where its segment is mapped here; nullptr: nowhere, or they are not joined.
  const std::vector<std::byte*>& mapped() const { return mapped_; }
  /// Why the first that is mapped nowhere is not.
  const std::string& why_not() const { return why_not_; }

  const cuda::RankHome* home() const { return reinterpret_cast<const cuda::RankHome*>(memory_.data() + layout_.home); }
  std::byte* staging() const { return memory_.data() + layout_.staging; }
  /// An offset, the same for all ranks.
  std::size_t end_of_staging() const { return layout_.staging + kStagingBytes; }
  Status write(std::size_t offset, const void* from, std::size_t bytes) const {
    return memory_.write(offset, from, bytes);
  }
  /// What is announced for an address in here.
  protocol::BufferReference reference_to(const std::byte* address) const {
    return {kMapping, static_cast<std::uint64_t>(address - memory_.data())};
  }
  /// Where this rank has what a peer announces with this name; kNoMapping: nowhere.
  Status set_mapping(int peer, std::uint64_t name, std::uint64_t base) const;
  /// What the kernels of this rank report.
  const cuda::FailureRecord& failure() const { return words().failure; }
  /// Kernels of this rank that wait give up.
  void abort() const;

  /// Frees segments that have outlived their communicators and that nobody uses any more, as far as a thread that works on this device
  /// may_free() them.
  static void sweep(int device);

 private:
  static constexpr std::uint64_t kMappings = kMapping + 1 + DeviceCard::kWindows + kExports;
  static_assert(kMappings <= 1u << cuda::PeerMappings::kNumberBits);
  struct Words {
    cuda::FailureRecord failure;
    std::uint64_t abort;
  };
  /// Offsets in a segment, the same for all ranks.
  struct Layout {
    std::size_t state, learned, home, mappings, board, closings, lines, staging, end;
    Layout(std::uint32_t ranks, SegmentUse use);
  };
  struct Retired;

  DeviceSegment(std::shared_ptr<cuda::Device> device, const Control& control, int rank, SegmentUse use);
  Words& words() const { return *reinterpret_cast<Words*>(pinned_.data()); }
  Result<std::byte*> map(int peer, const Reach& reach);

  const std::shared_ptr<cuda::Device> device_;
  const Control control_;
  const int rank_;
  const Layout layout_;
  cuda::DeviceMemory memory_;
  cuda::PinnedMemory pinned_;
  std::vector<cuda::ImportedMemory> imports_;
  std::vector<std::byte*> mapped_;
  std::string why_not_;
  std::vector<std::int32_t> pids_;  ///< by rank, once linked
  std::list<Retired> retired_;      ///< one: what becomes of the memory, as there may be none for it at the end
};

}  // namespace tutti::comm
