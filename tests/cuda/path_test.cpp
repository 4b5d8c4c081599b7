// Which way kernels do a call: the table of sizes, and what wins over it.
#include "algorithm/algorithm.h"
#include "comm/device_lanes.h"
#include "comm/device_path.h"
#include "comm/ring_order.h"
#include "planner/tuning.h"
#include "schedule/verifier.h"

#include <catch2/catch.hpp>

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

namespace tutti::comm {
namespace {

using enum DevicePath;
using enum DeviceReason;

planner::Question question(std::uint64_t bytes, int ranks, Collective collective = Collective::kAllReduce) {
  planner::Question q;
  q.request = {collective, ranks, 0, 0};
  q.count = bytes;
  q.element_bytes = 1;
  q.access = planner::Access::kMapped;
  return q;
}
constexpr DeviceWays kApart{DeviceCrew::kTogether, Protocols::kAny, true};
constexpr DeviceWays kFused{DeviceCrew::kOneLaunch, Protocols::kAny, true};

planner::Rules rules(const char* nccl_algo = "", const char* tuning = nullptr) {
  planner::Rules made = planner::make_rules(nccl_algo, false).value();
  if (tuning) made.tuning = std::make_shared<planner::Tuning>(planner::parse_tuning(tuning).value());
  return made;
}
bool is(const DeviceChoice& choice, DevicePath path, DeviceReason reason) {
  CAPTURE(name_of(choice.path), describe(choice.reason));
  CHECK(choice.path == path);
  CHECK(choice.reason == reason);
  return choice.path == path && choice.reason == reason;
}

}  // namespace

TEST_CASE("paths: by size and ranks, where kernels wait for each other", "[device][path]") {
  CHECK(is(choose_path(question(0, 8), kApart, rules()), kOneShotLines, kTable));
  CHECK(is(choose_path(question(16 << 10, 8), kApart, rules()), kOneShotLines, kTable));
  CHECK(is(choose_path(question((16 << 10) + 1, 8), kApart, rules()), kTwoShotLines, kTable));
  CHECK(is(choose_path(question(128 << 10, 8), kApart, rules()), kTwoShotLines, kTable));
  CHECK(is(choose_path(question((128 << 10) + 1, 8), kApart, rules()), kDirect, kTooLong));
  CHECK(is(choose_path(question(64 << 10, 2), kApart, rules()), kOneShotLines, kTable));
  // Two-shot is of all-reduces.
  CHECK(is(choose_path(question(16 << 10, 8, Collective::kAllGather), kApart, rules()), kOneShotLines, kTable));
  CHECK(choose_path(question((64 << 10) + 1, 8, Collective::kAllGather), kApart, rules()).path == kDirect);
}

TEST_CASE("paths: one launch waits for nobody, and processes on one GPU may not wait", "[device][path]") {
  CHECK(is(choose_path(question(8, 8), kFused, rules()), kDirect, kNoWaiting));
  CHECK(is(choose_path(question(8, 8), {DeviceCrew::kByTurns, Protocols::kLines, true}, rules("oneshot")), kDirect,
           kTurns));
  CHECK(
      is(choose_path(question(8, 8), {DeviceCrew::kTogether, Protocols::kLines, false}, rules()), kDirect, kNoMemory));
}

TEST_CASE("paths: NCCL_PROTO and NCCL_ALGO win over the table", "[device][path]") {
  const DeviceWays fused_lines{DeviceCrew::kOneLaunch, Protocols::kLines, true};
  CHECK(is(choose_path(question(8, 8), fused_lines, rules()), kOneShotLines, kProtocol));
  CHECK(is(choose_path(question(100 << 10, 8), fused_lines, rules()), kTwoShotLines, kProtocol));
  CHECK(choose_path(question(1 << 20, 8), fused_lines, rules()).path == kDirect);
  const DeviceWays no_lines{DeviceCrew::kTogether, Protocols::kNoLines, true};
  CHECK(is(choose_path(question(8, 8), no_lines, rules()), kDirect, kProtocol));
  CHECK(is(choose_path(question(8, 8), kFused, rules("oneshot")), kOneShotLines, kAlgorithm));
  CHECK(is(choose_path(question(8, 8), kApart, rules("twoshot")), kTwoShotLines, kAlgorithm));
  CHECK(is(choose_path(question(8, 8), kApart, rules("^oneshot")), kTwoShotLines, kAlgorithm));
  CHECK(choose_path(question(8, 8), kFused, rules("twoshot")).path == kDirect);
  CHECK(choose_path(question(8, 8), fused_lines, rules("allreduce:twoshot")).path == kTwoShotLines);
  // No kernel's: they leave everything.
  CHECK(is(choose_path(question(8, 8), kApart, rules("ring")), kOneShotLines, kTable));
  CHECK(choose_path(question(8, 8, Collective::kAllGather), kApart, rules("twoshot")).path == kOneShotLines);
}

TEST_CASE("paths: a tuning's rules win over the table, and NCCL_ALGO over them", "[device][path]") {
  constexpr const char* kText =
      "tutti-tuning 1\nall_reduce ranks 8 access direct out_of_place: from 0 twoshot slots, from 1K oneshot slots, "
      "from 4K twoshot direct, from 8K model, from 64K oneshot slots\n";
  const planner::Rules tuned = rules("", kText);
  CHECK(is(choose_path(question(8, 8), kApart, tuned), kTwoShotLines, kTuning));
  CHECK(is(choose_path(question(8, 8), kFused, tuned), kTwoShotLines, kTuning));
  CHECK(is(choose_path(question(1 << 10, 8), kApart, tuned), kOneShotLines, kTuning));
  CHECK(is(choose_path(question(4 << 10, 8), kApart, tuned), kDirect, kTuning));
  CHECK(is(choose_path(question(8 << 10, 8), kApart, tuned), kOneShotLines, kTable));
  // Too long for that: the rule says nothing.
  CHECK(is(choose_path(question(64 << 10, 8), kApart, tuned), kTwoShotLines, kTable));
  CHECK(is(choose_path(question(8, 8), kApart, rules("oneshot", kText)), kOneShotLines, kTable));
  // Another number of ranks.
  CHECK(is(choose_path(question(8, 4), kApart, tuned), kOneShotLines, kTable));
}

TEST_CASE("paths: lanes where GPUs are not all linked, or NCCL_ALGO names their schedules", "[device][path]") {
  using enum LaneOffer;
  const auto ways = [](DevicePairs pairs, DeviceCrew crew = DeviceCrew::kTogether,
                       Protocols protocols = Protocols::kAny) {
    return DeviceWays{crew, protocols, pairs != DevicePairs::kSomeBlind, pairs};
  };
  const planner::Question small = question(8, 8);
  const planner::Question large = question(1 << 20, 8);
  const DeviceWays linked = ways(DevicePairs::kAllLinked);
  CHECK(is(choose_path(large, linked, rules(), kThere), kDirect, kTooLong));
  CHECK(is(choose_path(small, linked, rules("ring"), kNamed), kLanes, kAlgorithm));
  const DeviceWays apart = ways(DevicePairs::kSomeApart);
  CHECK(is(choose_path(small, apart, rules(), kThere), kOneShotLines, kTable));
  CHECK(is(choose_path(question(64 << 10, 8), apart, rules(), kThere), kLanes, kLinks));
  CHECK(is(choose_path(large, apart, rules(), kThere), kLanes, kLinks));
  CHECK(is(choose_path(large, apart, rules(), kNone), kDirect, kTooLong));
  CHECK(choose_path(question(64 << 10, 8), apart, rules("twoshot"), kOnlyWay).path == kTwoShotLines);
  // Lines on demand, and none on demand.
  const DeviceWays with_lines = ways(DevicePairs::kSomeApart, DeviceCrew::kTogether, Protocols::kLines);
  CHECK(is(choose_path(question(100 << 10, 8), with_lines, rules(), kThere), kTwoShotLines, kTable));
  CHECK(
      is(choose_path(small, ways(DevicePairs::kSomeApart, DeviceCrew::kTogether, Protocols::kNoLines), rules(), kThere),
         kLanes, kLinks));
  // There is nothing else.
  CHECK(is(choose_path(small, ways(DevicePairs::kSomeBlind), rules(), kThere), kLanes, kBlind));
  CHECK(is(choose_path(small, ways(DevicePairs::kSomeBlind), rules("twoshot"), kOnlyWay), kLanes, kBlind));
  CHECK(choose_path(small, ways(DevicePairs::kSomeBlind), rules(), kNone).path == kDirect);
  // Nobody waits, or may wait.
  CHECK(is(choose_path(large, ways(DevicePairs::kSomeApart, DeviceCrew::kOneLaunch), rules(), kThere), kDirect,
           kNoWaiting));
  CHECK(is(choose_path(large, ways(DevicePairs::kSomeApart, DeviceCrew::kByTurns), rules("ring"), kNamed), kDirect,
           kTurns));
}

namespace {

DeviceLinks links_of(int ranks, std::initializer_list<std::pair<int, int>> pairs) {
  DeviceLinks links(ranks);
  for (const auto& [a, b] : pairs) links.join(a, b);
  return links;
}
using Order = std::vector<int>;

}  // namespace

TEST_CASE("paths: a ring visits the ranks along their links", "[device][path]") {
  const DeviceLinks crossed = links_of(4, {{0, 2}, {2, 1}, {1, 3}, {3, 0}});
  const Order along = ring_order(crossed, {});
  CHECK((along == Order{0, 2, 1, 3} || along == Order{0, 3, 1, 2}));
  // What somebody suggests counts if it keeps to the links.
  CHECK(ring_order(crossed, Order{3, 1, 2, 0}) == Order{3, 1, 2, 0});
  for (const Order& wrong : {Order{0, 1, 2, 3}, Order{0, 2, 1, 1}, Order{0, 2, 1}, Order{0, 2, 1, 9}, Order(4, 0)}) {
    CHECK(ring_order(crossed, wrong) == along);
  }
  DeviceLinks all = links_of(5, {});
  for (int a = 0; a < 5; ++a) {
    for (int b = 0; b < a; ++b) all.join(a, b);
  }
  CHECK(ring_order(all, {}) == Order{0, 1, 2, 3, 4});
  CHECK(ring_order(all, Order{0, 3, 1, 4, 2}) == Order{0, 3, 1, 4, 2});
  CHECK(ring_order(links_of(4, {{0, 1}, {1, 2}, {2, 3}}), {}).empty());
  CHECK(ring_order(links_of(5, {{0, 1}, {1, 2}, {2, 0}, {2, 3}, {3, 4}, {4, 2}}), {}).empty());  // two rings that touch
  CHECK(ring_order(links_of(2, {{0, 1}}), {}) == Order{0, 1});
}

TEST_CASE("paths: rings in any order do what their collectives promise", "[device][path]") {
  for (const Order& order : {Order{0, 2, 1, 3}, Order{2, 0, 3, 1}, Order{4, 1, 0, 3, 2}, Order{1, 0}, Order{0, 1, 2}}) {
    for (const Collective collective : {Collective::kAllReduce, Collective::kAllGather, Collective::kReduceScatter,
                                        Collective::kBroadcast, Collective::kReduce}) {
      for (int root = 0; root < (is_rooted(collective) ? static_cast<int>(order.size()) : 1); ++root) {
        const schedule::Request request{collective, static_cast<int>(order.size()), root, 0};
        const algorithm::Algorithm& row = *algorithm::find("ring", request);
        const schedule::Schedule ring = in_order(algorithm::make_schedule(row, in_places(request, order)), order);
        CAPTURE(order, collective, root);
        CHECK(ring.request == request);
        for (const auto& [direct, in_place] : {std::pair{false, false}, {false, true}, {true, false}, {true, true}}) {
          if (direct && !(in_place ? row.direct_in_place : row.direct)) continue;
          const Status right = schedule::verify(ring, {.slots = 4, .in_place = in_place, .direct = direct});
          CHECK((right.ok() ? "" : right.error().message) == "");
        }
      }
    }
  }
}

TEST_CASE("paths: an explanation takes no room from calls", "[device][path]") {
  const DeviceLinks links = links_of(4, {{0, 1}, {1, 2}, {2, 3}, {3, 0}});
  std::vector<std::byte> memory(4 * DeviceFifos::kBytes);
  // Where the program of a broadcast is, after these uses of an all-reduce.
  const auto place_after = [&](std::initializer_list<LaneUse> uses) {
    DeviceLanes lanes(lane_rules(planner::Rules(), links), links, 0, 32);
    std::vector<std::byte*> parts;
    for (std::size_t rank = 0; rank < 4; ++rank) parts.push_back(memory.data() + rank * DeviceFifos::kBytes);
    REQUIRE(lanes.connect(parts, [](std::size_t, const void*, std::size_t) { return Status(); }).ok());
    CallArgs call;
    call.count = 1000;
    for (const LaneUse use : uses) CHECK(lanes.find(call, use) != nullptr);
    call.collective = Collective::kBroadcast;
    const auto part = lanes.prepare(call);
    REQUIRE(part.ok());
    return reinterpret_cast<const std::byte*>(part.value().programs) - memory.data();
  };
  const std::ptrdiff_t alone = place_after({});
  CHECK(place_after({LaneUse::kExplanation}) == alone);
  CHECK(place_after({LaneUse::kCall}) > alone);
  CHECK(place_after({LaneUse::kExplanation, LaneUse::kCall}) == place_after({LaneUse::kCall}));
}

TEST_CASE("paths: what is chosen fits into line memory, of little more than 1 MiB", "[device][path]") {
  for (int ranks = 2; ranks <= 16; ++ranks) {
    const cuda::LineMemory memory = line_memory_for(ranks);
    CAPTURE(ranks, memory.bytes(static_cast<std::uint32_t>(ranks)));
    CHECK(memory.bytes(static_cast<std::uint32_t>(ranks)) < (std::size_t{1} << 20) + (64 << 10));
    for (const Protocols protocols : {Protocols::kAny, Protocols::kLines}) {
      for (const char* const algorithms : {"", "oneshot", "twoshot"}) {
        for (std::uint64_t bytes = 1; bytes < (4 << 20); bytes += bytes / 2 + 1) {
          const DeviceWays ways{DeviceCrew::kTogether, protocols, true};
          const DevicePath path = choose_path(question(bytes, ranks), ways, rules(algorithms)).path;
          if (path != kDirect) CHECK(message_bytes(path, bytes, ranks) <= memory.payload_bytes());
        }
      }
    }
  }
}

}  // namespace tutti::comm
