// Which way kernels do a call: the table of sizes, and what wins over it.
#include "comm/device_path.h"
#include "planner/tuning.h"

#include <catch2/catch.hpp>

#include <memory>

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
