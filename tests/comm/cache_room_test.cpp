// What goes past the caches: the machine's room, and calls that have more.
#include "comm/cache_room.h"
#include "protocol/channel.h"

#include <catch2/catch.hpp>

using namespace tutti;
using namespace tutti::comm;

namespace {

constexpr std::size_t kMi = std::size_t{1} << 20;

CallArgs call_of(Collective collective, std::size_t bytes) {
  CallArgs args;
  args.collective = collective;
  args.type = DataType::kFloat32;
  args.count = bytes / 4;
  return args;
}

std::uint32_t parts(std::size_t bytes, std::size_t told, int ranks = 2) {
  return streamed_parts(call_of(Collective::kAllReduce, bytes), ranks, false,
                        cache_room(told, 2, static_cast<std::size_t>(ranks)));
}

}  // namespace

TEST_CASE("what the system tells of caches is believed up to a processor's share", "[streams]") {
  CHECK(cache_room(32 * kMi, 2, 2).bytes == 48 * kMi);
  CHECK(cache_room(32 * kMi, 2, 4).bytes == 32 * kMi);
  CHECK(cache_room(32 * kMi, 2, 5).bytes == 24 * kMi);
  CHECK(cache_room(16 * kMi, 2, 2).bytes == 24 * kMi);
  CHECK(cache_room(260 * kMi, 2, 2).bytes == 48 * kMi);
  CHECK(cache_room(260 * kMi, 2, 2).told_bytes == 260 * kMi);
  CHECK(cache_room(384 * kMi, 96, 32).bytes == 288 * kMi);
  CHECK(cache_room(384 * kMi, 96, 2).bytes == 48 * kMi);  // two processors fill no more
  CHECK(cache_room(0, 2, 2).bytes == 48 * kMi);
  CHECK(cache_room(0, 0, 0).bytes == CacheRoom{}.bytes);
}

TEST_CASE("as much of the outputs goes past the caches as they have no room for", "[streams]") {
  CHECK(parts(12 * kMi, 32 * kMi) == 0);
  CHECK(parts(16 * kMi, 32 * kMi) == protocol::kStreamedParts / 2);  // 16 of 32 MiB
  CHECK(parts(2 * kMi, 32 * kMi, 8) == protocol::kStreamedParts / 2);
  CHECK(parts(24 * kMi, 32 * kMi) == protocol::kStreamedParts);
  CHECK(parts(256 * kMi, 32 * kMi) == protocol::kStreamedParts);
  CHECK(parts(8 * kMi, 16 * kMi) == protocol::kStreamedParts / 2);
  std::uint32_t least = 0;
  for (std::size_t bytes = kMi; bytes < 32 * kMi; bytes += kMi / 8) {
    CHECK(parts(bytes, 32 * kMi) >= least);
    least = parts(bytes, 32 * kMi);
  }
  const CacheRoom room = cache_room(32 * kMi, 2, 2);
  CHECK(streamed_parts(call_of(Collective::kAllReduce, 256 * kMi), 2, true, room) == 0);
  // Of several hosts each has room for its own ranks' buffers.
  const CacheRoom of_one = cache_room(32 * kMi, 16, 1);
  CHECK(of_one.bytes == 24 * kMi);
  CHECK(streamed_parts(call_of(Collective::kAllReduce, 12 * kMi), 16, false, of_one) == 0);
  CHECK(streamed_parts(call_of(Collective::kAllReduce, 24 * kMi), 16, false, of_one) == protocol::kStreamedParts);
  CHECK(streamed_parts(call_of(Collective::kSend, 24 * kMi), 16, false, of_one) == protocol::kStreamedParts);
  // A send has one input and one output.
  CHECK(streamed_parts(call_of(Collective::kSend, 24 * kMi), 8, false, room) == 0);
  CHECK(streamed_parts(call_of(Collective::kSend, 48 * kMi), 8, false, room) == protocol::kStreamedParts);
}

TEST_CASE("what goes past the caches is said, and why", "[streams]") {
  const CallArgs args = call_of(Collective::kAllReduce, 16 * kMi);
  CHECK(describe_streams(args, 2, true, cache_room(32 * kMi, 2, 2)).empty());
  CHECK(describe_streams(args, 2, false, cache_room(32 * kMi, 2, 2)) ==
        "50 % of each output, but for what the system copies, is written past the caches: ordinary stores are "
        "taken to be best up to 49152 KiB of buffers (the system tells "
        "of 32768 KiB)");
  CHECK(describe_streams(args, 2, false, cache_room(0, 2, 2)) ==
        "50 % of each output, but for what the system copies, is written past the caches: ordinary stores are "
        "taken to be best up to 49152 KiB of buffers (the system does not "
        "tell how large they are)");
}
