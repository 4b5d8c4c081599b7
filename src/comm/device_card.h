// What each rank tells the others of the memory that it works on, in the control segment.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tutti::comm {

/// What a rank has called, for messages of ranks that find that theirs differ. Written word by word, while others may read.
struct DeviceCallNote {
  std::uint64_t what =
      0;  ///< fingerprint << 32 | through the host << 26 | in windows << 25 | scaled << 24 | operation << 16 | data type << 8 | collective
  std::uint64_t root = 0;
  std::uint64_t count = 0;
  std::uint64_t stream = 0;  ///< what ranks of one process tell their streams apart by (DeviceWatch); 0: none
};

/// How other processes come to a window's memory.
enum class DeviceWindowKind : std::uint64_t {
  kNone,    ///< they do not
  kHandle,  ///< by `handle`, CUDA's for IPC
  kMailed,  ///< by descriptors that were sent to them (device_mail.h)
};

/// A window of the rank's (device_windows.h).
struct DeviceWindow {
  std::uint64_t allocation = 0;  ///< where it begins at that rank
  std::uint64_t bytes = 0;       ///< of the allocation
  std::uint8_t handle[64] = {};
  DeviceWindowKind kind = DeviceWindowKind::kNone;
  std::uint64_t number = 0;  ///< of the rank's windows, from 1; written last
};

/// Whether the rank has mapped the others' segments, or those of DeviceCard::mapped.
enum class DeviceLink : std::uint32_t { kUnknown, kMapped, kFailed };

struct DeviceCard {
  std::int32_t device = -1;  ///< kHostMemory, or the device's number in that rank's process
  std::uint32_t multiprocessors = 0;
  std::uint8_t uuid[16] = {};
  char bus_id[16] = {};
  std::uint64_t segment = 0;  ///< DeviceRank's memory for the others: its address at that rank ...
  std::uint64_t segment_bytes = 0;
  std::uint8_t handle[64] = {};  ///< ... and what other processes open it with
  std::uint32_t exported = 0;    ///< 1: these count
  std::uint32_t resident_blocks = 0;
  DeviceLink link = DeviceLink::kUnknown;
  std::uint32_t mapped = 0;  ///< a bit for each rank whose segment it has mapped, or, in its own process, whose GPU it reaches
  std::uint32_t far =
      0;  ///< a bit for each rank whose GPU NCCL_P2P_LEVEL keeps apart from this one's; rank 0 writes all of them
  char why[232] = {};  ///< what a link or an export has failed of
  char mail[64] = {};  ///< where it takes descriptors; "": it does not
  std::uint64_t mail_token[2] = {};
  std::uint64_t maps = 0;  ///< 1: the rank has others' segments mapped, or is about to
  // While the communicator works, of ranks in several processes, and of those whose GPUs do not all reach each other's memory:
  static constexpr std::size_t kNotes = 32;
  std::uint64_t calls = 0;  ///< eager collectives so far; written last
  DeviceCallNote notes[kNotes];
  std::uint64_t captured = 0;  ///< 1: collectives of graphs too, of whose replays `calls` knows nothing
  static constexpr std::size_t kWindows = 8;
  DeviceWindow windows[kWindows];
};

}  // namespace tutti::comm
