// How much of a call's outputs is written past the caches: what the host's last-level caches have no room for. Each
// rank decides for its own stores, which changes no result.
#pragma once

#include "comm/comm.h"

#include <cstddef>
#include <cstdint>
#include <string>

namespace tutti::comm {

struct CacheRoom {
  std::size_t told_bytes = 0;                 ///< of last-level cache, as the system says; 0: it does not
  std::size_t bytes = std::size_t{48} << 20;  ///< of a call, all buffers together, for which ordinary stores are best
  std::size_t ranks = 0;                      ///< of the host; 0: all of the communicator
};

/// For so many ranks of a host, of its processors those that they may use, whose last-level caches have so many bytes
/// (own_seat.h).
CacheRoom cache_room(std::size_t told_bytes, std::size_t processors, std::size_t ranks);

/// How many of protocol::kStreamedParts of each output: as many as the host's buffers of the call are larger than the
/// room, and none where an input is an output (what was read is in the cache already). TUTTI_STREAM_MIN_BYTES, if it is
/// set, decides on all or none.
std::uint32_t streamed_parts(const CallArgs& args, int ranks, bool in_place, const CacheRoom& room);

/// "25 % of each output ...": what was chosen for a call, and by what; empty where nothing is written past the caches.
std::string describe_streams(const CallArgs& args, int ranks, bool in_place, const CacheRoom& room);

}  // namespace tutti::comm
