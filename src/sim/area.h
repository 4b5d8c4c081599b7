// What memory of a run is: areas with names, so that a report can say whose byte it talks about, and positions, so that it
// can say when.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tutti::sim {

enum class AreaKind : std::uint8_t { kInput, kOutput, kScratch, kSlots, kLines, kCounts, kAnnounce, kCarried, kAbort };

/// One allocation. Channel memory (slots, lines, counts) is written by `rank` for `peer`.
struct Area {
  AreaKind kind = AreaKind::kInput;
  int rank = 0;   ///< whose it is; the announce lines and what they carry are everybody's: 0
  int peer = -1;  ///< announce lines: how many ranks there are
  int lane = -1;
  std::uint32_t part_bytes = 0;  ///< slots and lines: of one slot; announcements: of one
  std::size_t begin = 0;         ///< set by whoever gives the memory
  std::size_t bytes = 0;
};

/// Gives memory that lives as long as the run, zeroed. Never null.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  virtual std::byte* take(std::size_t bytes, const Area& area) = 0;
};

/// The rank that writes there.
int writer_of(const Area& area, std::size_t offset);

/// What a rank does in a call, in this order.
enum class Phase : std::uint8_t { kFill, kRoom, kOpen, kLanes, kDrain, kCheck, kOver };

struct Position {
  std::uint16_t call = 0;
  Phase phase = Phase::kFill;
  std::int8_t lane = -1;
  std::uint32_t round = 0;
  std::uint32_t step = 0;

  friend bool operator==(const Position&, const Position&) = default;
};

/// "slot 1 of the channel from rank 0 to rank 2, lane 0, bytes 0..63"; offsets within the area, `end` not included.
std::string describe(const Area& area, std::size_t begin, std::size_t end);
/// "tail from rank 0 to rank 2, lane 1": a protocol word at that offset.
std::string describe_word(const Area& area, std::size_t offset);

}  // namespace tutti::sim
