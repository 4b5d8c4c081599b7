#include "comm/cache_room.h"

#include "base/config.h"
#include "comm/call.h"

#include <fmt/format.h>

#include <algorithm>

namespace tutti::comm {
namespace {

using protocol::kStreamedParts;

/// Virtual machines report whole caches of which they have a share. No rank is taken to have more than this.
constexpr std::size_t kOfRankMax = std::size_t{16} << 20;
constexpr std::size_t kUsualCaches = std::size_t{32} << 20;

/// Of all buffers of the host's ranks, which have their part of all; of a send one pair's.
struct Footprint {
  std::size_t inputs = 0;
  std::size_t outputs = 0;
};
Footprint footprint_of(const CallArgs& args, int ranks, std::size_t ranks_here) {
  const std::size_t block = args.count * size_of(args.type);
  if (is_point_to_point(args)) return {block, block};
  const schedule::Request request{args.collective, ranks, args.root, 0};
  Footprint all;
  for (int r = 0; r < ranks; ++r) {
    all.inputs += schedule::input_blocks(request, r) * block;
    all.outputs += schedule::output_blocks(request, r) * block;
  }
  if (ranks_here == 0) return all;
  return {all.inputs / ranks * ranks_here, all.outputs / ranks * ranks_here};
}

/// Where ordinary stores are best: up to buffers of so many quarters of the caches. Somewhat past what these hold a part
/// of the lines is still found there; the more ranks' buffers are read at a time, the fewer (measured, decision 42).
std::size_t quarters_of_room(std::size_t ranks) { return ranks <= 2 ? 6 : ranks <= 4 ? 4 : 3; }

}  // namespace

CacheRoom cache_room(std::size_t told_bytes, std::size_t processors, std::size_t ranks) {
  const std::size_t caches =
      told_bytes == 0 ? kUsualCaches : std::min(told_bytes, std::min(processors, ranks) * kOfRankMax);
  return {told_bytes, caches / 4 * quarters_of_room(ranks), ranks};
}

std::uint32_t streamed_parts(const CallArgs& args, int ranks, bool in_place, const CacheRoom& room) {
  if (in_place) return 0;
  const Footprint all = footprint_of(args, ranks, room.ranks);
  const std::size_t both = all.inputs + all.outputs;
  if (const std::size_t least = config().stream_min_bytes; least != 0) return both >= least ? kStreamedParts : 0;
  if (both <= room.bytes) return 0;
  const double part = static_cast<double>(both - room.bytes) / static_cast<double>(all.outputs);
  return static_cast<std::uint32_t>(std::min(part, 1.0) * kStreamedParts);
}

std::string describe_streams(const CallArgs& args, int ranks, bool in_place, const CacheRoom& room) {
  const std::uint32_t parts = streamed_parts(args, ranks, in_place, room);
  if (parts == 0) return {};
  const std::string what =
      parts == kStreamedParts
          ? "outputs, but for what the system copies, are written past the caches"
          : fmt::format("{} % of each output, but for what the system copies, is written past the caches",
                        100 * parts / kStreamedParts);
  if (config().stream_min_bytes != 0) return what + ", as TUTTI_STREAM_MIN_BYTES says";
  const std::string told = room.told_bytes == 0 ? "the system does not tell how large they are"
                                                : fmt::format("the system tells of {} KiB", room.told_bytes >> 10);
  return fmt::format("{}: ordinary stores are taken to be best up to {} KiB of buffers ({})", what, room.bytes >> 10,
                     told);
}

}  // namespace tutti::comm
