#include "comm/device_path.h"

#include "planner/tuning.h"

#include <algorithm>
#include <iterator>
#include <optional>

namespace tutti::comm {
namespace {

/// Among up to so many ranks: bytes of a block up to which lines are taken.
///
/// By reckoning; no GPU has measured them. A link of 300 GB/s and 1.5 us each way takes 450 KB in the time of its latency. One-shot
/// lines are ahead of two-shot ones while (n - 1)(2 - 4/n) times the block is less than that: always at 2 ranks, up to 150 KB at 4,
/// 43 KB at 8. Two-shot lines are ahead of direct calls, which wait for each other at both ends and copy through the staging, up to
/// about 1 MB. What a rank may spend on line memory, 1 MiB, ends both earlier.
struct Crossover {
  int ranks;
  std::uint64_t one_shot;
  std::uint64_t two_shot;
};
constexpr std::uint64_t kKi = 1024;
constexpr Crossover kCrossovers[] = {
    {2, 64 * kKi, 128 * kKi}, {4, 32 * kKi, 128 * kKi}, {8, 16 * kKi, 128 * kKi}, {16, 8 * kKi, 128 * kKi}};

const Crossover& crossover_for(int ranks) {
  const auto* const row = std::ranges::find_if(kCrossovers, [&](const Crossover& c) { return ranks <= c.ranks; });
  return row != std::end(kCrossovers) ? *row : std::end(kCrossovers)[-1];
}

/// The ways that are left.
struct Ways {
  bool direct = true;
  bool one_shot = true;
  bool two_shot = true;

  bool has(DevicePath path) const {
    return path == DevicePath::kDirect ? direct : path == DevicePath::kOneShotLines ? one_shot : two_shot;
  }
  bool has_lines() const { return one_shot || two_shot; }
  /// Only what both have; all of this where that is nothing.
  Ways and_if_any(const Ways& other) const {
    const Ways both{direct && other.direct, one_shot && other.one_shot, two_shot && other.two_shot};
    return both.direct || both.has_lines() ? both : *this;
  }
};

bool fits(DevicePath path, const planner::Question& q) {
  const int ranks = q.request.ranks;
  return message_bytes(path, q.count * q.element_bytes, ranks) <= line_memory_for(ranks).payload_bytes();
}

Ways possible_ways(const planner::Question& q, const DeviceWays& ways) {
  const bool lines = ways.crew != DeviceCrew::kByTurns && ways.has_lines && ways.protocols != Protocols::kNoLines;
  return {true, lines && fits(DevicePath::kOneShotLines, q),
          lines && q.request.collective == Collective::kAllReduce && fits(DevicePath::kTwoShotLines, q)};
}
DeviceReason why_no_lines(const DeviceWays& ways) {
  if (ways.crew == DeviceCrew::kByTurns) return DeviceReason::kTurns;
  if (ways.protocols == Protocols::kNoLines) return DeviceReason::kProtocol;
  if (ways.crew == DeviceCrew::kOneLaunch) return DeviceReason::kNoWaiting;
  return ways.has_lines ? DeviceReason::kTooLong : DeviceReason::kNoMemory;
}

/// NCCL_ALGO for all-reduces: "oneshot" is one-shot lines, "twoshot" are two-shot lines and direct calls. Kernels do nothing else.
Ways named_ways(const planner::Rules& rules, Collective collective) {
  if (collective != Collective::kAllReduce) return {};
  const planner::AlgorithmFilter& special = rules.special[static_cast<std::size_t>(collective)];
  const planner::AlgorithmFilter& filter = special.present ? special : rules.everywhere;
  const bool two_shot = filter.admits("twoshot");
  return {two_shot, filter.admits("oneshot"), two_shot};
}

DevicePath preferred(const Ways& left, const planner::Question& q, const DeviceWays& ways) {
  using enum DevicePath;
  const std::uint64_t bytes = q.count * q.element_bytes;
  const Crossover& row = crossover_for(q.request.ranks);
  if (ways.crew == DeviceCrew::kOneLaunch && left.direct) return kDirect;
  if (left.one_shot && bytes <= row.one_shot) return kOneShotLines;
  if (left.two_shot && bytes <= row.two_shot) return kTwoShotLines;
  if (left.direct) return kDirect;
  return left.two_shot ? kTwoShotLines : kOneShotLines;
}

/// What a rule of the tuning says; nullopt: nothing that kernels do.
std::optional<DevicePath> tuned_path(const planner::Question& q, const planner::Rules& rules) {
  const planner::TunedChoice* const choice = rules.tuning ? rules.tuning->find(q) : nullptr;
  if (choice == nullptr || choice->algorithm.empty()) return std::nullopt;
  if (choice->direct) return DevicePath::kDirect;
  if (choice->algorithm == "oneshot") return DevicePath::kOneShotLines;
  if (choice->algorithm == "twoshot") return DevicePath::kTwoShotLines;
  return std::nullopt;
}

/// Between buffers, or as lines.
DeviceChoice choose_buffers(const planner::Question& q, const DeviceWays& ways, const planner::Rules& rules) {
  const Ways possible = possible_ways(q, ways);
  if (!possible.has_lines()) return {DevicePath::kDirect, why_no_lines(ways)};
  const Ways named = possible.and_if_any(named_ways(rules, q.request.collective));
  const Ways left = ways.protocols == Protocols::kLines ? named.and_if_any({false, true, true}) : named;
  if (const auto tuned = tuned_path(q, rules); tuned && left.has(*tuned)) return {*tuned, DeviceReason::kTuning};
  const DevicePath path = preferred(left, q, ways);
  if (path != preferred(named, q, ways)) return {path, DeviceReason::kProtocol};
  if (path != preferred(possible, q, ways)) return {path, DeviceReason::kAlgorithm};
  if (path != DevicePath::kDirect) return {path, DeviceReason::kTable};
  return {path, ways.crew == DeviceCrew::kOneLaunch ? DeviceReason::kNoWaiting : DeviceReason::kTooLong};
}

}  // namespace

std::string_view name_of(DevicePath path) {
  switch (path) {
    case DevicePath::kDirect: return "direct";
    case DevicePath::kOneShotLines: return "one-shot lines";
    case DevicePath::kTwoShotLines: return "two-shot lines";
    case DevicePath::kLanes: return "lanes";
  }
  return "";
}

cuda::LineMemory line_memory_for(int ranks) {
  const Crossover& row = crossover_for(ranks);
  const std::uint64_t longest =
      std::max(row.one_shot, cuda::lines_share_bytes(row.two_shot, static_cast<std::uint32_t>(ranks)));
  return {static_cast<std::uint32_t>((longest + cuda::LineMemory::kUnitPayloadBytes - 1) /
                                     cuda::LineMemory::kUnitPayloadBytes)};
}

std::uint64_t message_bytes(DevicePath path, std::uint64_t bytes, int ranks) {
  return path == DevicePath::kTwoShotLines ? cuda::lines_share_bytes(bytes, static_cast<std::uint32_t>(ranks)) : bytes;
}

DeviceChoice choose_path(const planner::Question& q, const DeviceWays& ways, const planner::Rules& rules,
                         LaneOffer lanes) {
  if (lanes != LaneOffer::kNone && ways.crew != DeviceCrew::kByTurns) {
    if (ways.pairs == DevicePairs::kSomeBlind) return {DevicePath::kLanes, DeviceReason::kBlind};
    if (lanes == LaneOffer::kNamed) return {DevicePath::kLanes, DeviceReason::kAlgorithm};
  }
  const DeviceChoice choice = choose_buffers(q, ways, rules);
  // Few bytes go any way as quickly.
  const bool is_asked = choice.reason == DeviceReason::kTuning || choice.reason == DeviceReason::kAlgorithm ||
                        (ways.protocols == Protocols::kLines && choice.path != DevicePath::kDirect);
  const bool may_go_along = !is_asked && choice.path != DevicePath::kOneShotLines && ways.crew == DeviceCrew::kTogether;
  if (lanes == LaneOffer::kThere && ways.pairs == DevicePairs::kSomeApart && may_go_along) {
    return {DevicePath::kLanes, DeviceReason::kLinks};
  }
  return choice;
}

std::string_view describe(DeviceReason reason) {
  switch (reason) {
    case DeviceReason::kNoWaiting: return "one launch does everybody's part, and nobody in it waits";
    case DeviceReason::kTurns: return "ranks share a GPU, so that no kernel may wait for another one's";
    case DeviceReason::kNoMemory: return "some rank has no line memory";
    case DeviceReason::kTooLong: return "the message is too long for lines";
    case DeviceReason::kTable: return "by the table of sizes, which is reckoned, not measured";
    case DeviceReason::kProtocol: return "by NCCL_PROTO";
    case DeviceReason::kAlgorithm: return "by NCCL_ALGO";
    case DeviceReason::kTuning: return "by a rule of the tuning";
    case DeviceReason::kLinks: return "some pairs of GPUs have no link of their own";
    case DeviceReason::kBlind: return "some GPUs do not reach others' memory";
  }
  return "";
}

}  // namespace tutti::comm
