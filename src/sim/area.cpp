#include "sim/area.h"

#include <fmt/format.h>

namespace tutti::sim {
namespace {

std::string channel_name(const Area& a) {
  return fmt::format("of the channel from rank {} to rank {}, lane {}", a.rank, a.peer, a.lane);
}

/// "bytes 0..63", the last one included, as people count.
std::string bytes_name(std::size_t begin, std::size_t end) { return fmt::format("bytes {}..{}", begin, end - 1); }

std::size_t announce_line(const Area& area, std::size_t offset) { return offset / area.part_bytes; }

std::string announce_name(const Area& area, std::size_t offset) {
  return fmt::format("{} of rank {}", announce_line(area, offset) / static_cast<std::size_t>(area.peer),
                     writer_of(area, offset));
}

}  // namespace

int writer_of(const Area& area, std::size_t offset) {
  if (area.kind != AreaKind::kAnnounce && area.kind != AreaKind::kCarried) return area.rank;
  return static_cast<int>(announce_line(area, offset) % static_cast<std::size_t>(area.peer));
}

std::string describe_word(const Area& area, std::size_t offset) {
  switch (area.kind) {
    case AreaKind::kCounts:
      return offset == 0 ? fmt::format("tail from rank {} to rank {}, lane {}", area.rank, area.peer, area.lane)
                         : fmt::format("head of rank {} for rank {}, lane {}", area.rank, area.peer, area.lane);
    case AreaKind::kLines: {
      const std::size_t slot = area.part_bytes == 0 ? 0 : offset / area.part_bytes;
      const std::size_t word = (offset - slot * area.part_bytes) / 8;
      return fmt::format("line word {} in slot {} from rank {} to rank {}, lane {}", word, slot, area.rank, area.peer,
                         area.lane);
    }
    case AreaKind::kAnnounce: return "announce word " + announce_name(area, offset);
    case AreaKind::kAbort: return "abort word";
    default: return fmt::format("word at {}", describe(area, offset, offset + 8));
  }
}

std::string describe(const Area& area, std::size_t begin, std::size_t end) {
  switch (area.kind) {
    case AreaKind::kInput: return fmt::format("the input of rank {}, {}", area.rank, bytes_name(begin, end));
    case AreaKind::kOutput: return fmt::format("the output of rank {}, {}", area.rank, bytes_name(begin, end));
    case AreaKind::kScratch:
      return fmt::format("the scratch of rank {}, lane {}, {}", area.rank, area.lane, bytes_name(begin, end));
    case AreaKind::kSlots:
    case AreaKind::kLines: {
      const std::size_t slot = area.part_bytes == 0 ? 0 : begin / area.part_bytes;
      const std::size_t base = slot * area.part_bytes;
      return fmt::format("{} {} {}, {}", area.kind == AreaKind::kSlots ? "slot" : "line slot", slot, channel_name(area),
                         bytes_name(begin - base, end - base));
    }
    case AreaKind::kCounts: return fmt::format("the {}", describe_word(area, begin));
    case AreaKind::kAnnounce:
    case AreaKind::kCarried: {
      const std::size_t base = announce_line(area, begin) * area.part_bytes;
      return fmt::format("{} {}, {}",
                         area.kind == AreaKind::kAnnounce ? "announce line" : "the input beside announce line",
                         announce_name(area, begin), bytes_name(begin - base, end - base));
    }
    case AreaKind::kAbort: return "the abort word";
  }
  return "?";
}

}  // namespace tutti::sim
