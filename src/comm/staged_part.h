// A part of a call on device memory, as the rank's thread makes a host call of it.
#pragma once

#include "comm/comm.h"

#include <cstddef>
#include <cstdint>

namespace tutti::comm {

/// What a part has of one of its call's buffers. None: the rank's call has no such buffer.
struct StagedBlocks {
  std::size_t count = 0;
  std::size_t bytes = 0;  ///< of each
  std::size_t pitch = 0;  ///< from one to the next, in the buffer
  std::size_t at = 0;     ///< in the round's memory, where they lie one behind another

  std::size_t all_bytes() const { return count * bytes; }
};

/// What the stream does itself about a first shot (two_shot.h).
struct ShotWork {
  /// PreMulSum, before it is sent: `unscaled`, as `blocks` say, times the factor becomes what lies at the part's `send`.
  const std::byte* unscaled = nullptr;
  StagedBlocks blocks;
  std::uint64_t factor = 0;
  bool factor_is_address = false;
  /// When all have come: this rank's own share and what it got from the others add up to `result`. Of a broadcast: it is copied there.
  const std::byte* own = nullptr;
  std::byte* result = nullptr;
  std::size_t count = 0;  ///< elements; of a broadcast: bytes
};

struct StagedPart {
  /// The part as a host call, but for its buffers; `send`, `receive`: the device's, where the part begins.
  CallArgs args;
  StagedBlocks input;
  StagedBlocks output;
  std::size_t pitch_bytes = 0;  ///< from one block to the next in the call's buffers
  std::size_t scale_at = 0;     ///< a factor that lies in device memory
  bool is_in_place = false;     ///< the host call works on the call's own buffers: the part has no memory in the round
  ShotWork shot;
};

}  // namespace tutti::comm
