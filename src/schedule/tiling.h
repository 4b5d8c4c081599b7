// Where the pieces of a buffer lie: block -> lane share -> round (slab) -> unit. Every rank computes the same.
//
//   block   |<------------------------------ count ------------------------------>|
//   lanes   |<-------- share of lane 0 ------->|<-------- share of lane 1 ------->|
//   rounds  |<- slab ->|<- slab ->|<- last  ->|
//   units   | 0| 1| 2|3|
#pragma once

#include "base/device_call.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace tutti::schedule {

/// Offset and length in elements, the offset counted from the start of the block.
struct Piece {
  std::uint64_t offset = 0;
  std::uint64_t count = 0;
};

/// The slots of a channel: so many messages, each so long at most, can be under way. Equal for all channels of a communicator.
struct SlotShape {
  std::uint32_t slots = 0;
  std::uint32_t slot_bytes = 0;

  TUTTI_DEVICE_CALL std::size_t bytes() const { return std::size_t{slots} * slot_bytes; }
};

/// Schedules come to their ends where a channel holds so many messages; all communicators have as many slots, or more.
inline constexpr std::uint32_t kSlotsMin = 4;

/// Over a network an acknowledgement may wait until so many messages were read, so that one stands for them all: as long as the peer can
/// do with the slots that it knows to be free.
constexpr std::uint32_t messages_per_acknowledgement(std::uint32_t slots) {
  const std::uint32_t spare = slots > kSlotsMin ? slots - kSlotsMin : 0;
  return std::min((slots + 1) / 2, spare + 1);
}

struct Tiling {
  std::uint64_t count = 0;  ///< elements of a block
  std::uint32_t element_bytes = 1;
  std::uint32_t units = 1;
  std::uint32_t lanes = 1;
  std::uint64_t slab = 1;  ///< elements of a lane share that one round covers, at least 1

  static constexpr std::uint64_t kAlignBytes = 64;  ///< units start at such offsets where they can

  TUTTI_DEVICE_CALL std::uint64_t align() const { return std::max<std::uint64_t>(1, kAlignBytes / element_bytes); }

  TUTTI_DEVICE_CALL static std::uint64_t divide_up(std::uint64_t a, std::uint64_t b) { return a / b + (a % b != 0); }
  TUTTI_DEVICE_CALL std::uint64_t part(std::uint64_t whole, std::uint32_t parts) const {
    return divide_up(divide_up(whole, parts), align()) * align();
  }

  TUTTI_DEVICE_CALL Piece share(std::uint32_t lane) const {
    const std::uint64_t part_count = lanes == 1 ? count : part(count, lanes);
    const std::uint64_t begin = std::min<std::uint64_t>(lane * part_count, count);
    return {begin, std::min<std::uint64_t>(part_count, count - begin)};
  }
  TUTTI_DEVICE_CALL std::uint64_t rounds(std::uint32_t lane) const { return divide_up(share(lane).count, slab); }

  TUTTI_DEVICE_CALL Piece slab_of(std::uint32_t lane, std::uint64_t round) const {
    const Piece whole = share(lane);
    const std::uint64_t begin = std::min(round * slab, whole.count);
    return {whole.offset + begin, std::min(slab, whole.count - begin)};
  }
  /// Elements of each unit (but the last ones) of a slab of so many.
  TUTTI_DEVICE_CALL std::uint64_t unit_count(std::uint64_t slab_count) const {
    return units == 1 ? slab_count : part(slab_count, units);
  }
  /// `width` units of `unit_count` elements each, the offset counted from the start of their slab.
  TUTTI_DEVICE_CALL static Piece piece_in_slab(std::uint64_t slab_count, std::uint64_t unit_count, std::uint32_t unit,
                                               std::uint32_t width) {
    const std::uint64_t begin = std::min(unit * unit_count, slab_count);
    const std::uint64_t end = std::min((std::uint64_t{unit} + width) * unit_count, slab_count);
    return {begin, end - begin};
  }
  TUTTI_DEVICE_CALL Piece piece(std::uint32_t lane, std::uint64_t round, std::uint32_t unit,
                                std::uint32_t width) const {
    const Piece slab = slab_of(lane, round);
    const Piece in_slab = piece_in_slab(slab.count, unit_count(slab.count), unit, width);
    return {slab.offset + in_slab.offset, in_slab.count};
  }
  /// The longest a message of `width` units can be, in bytes.
  TUTTI_DEVICE_CALL std::uint64_t message_bytes_max(std::uint32_t width) const {
    const std::uint64_t longest = std::min(slab, count);
    return std::min(unit_count(longest) * width, longest) * element_bytes;
  }
};

}  // namespace tutti::schedule
