// How kernels do a call on device memory: the one place that decides, for all ranks alike.
//
//   direct           tutti_fold: straight from buffer to buffer; twice the latency of the link among kernels that wait, none in one launch
//   one-shot lines   tutti_lines: everybody pushes its block to everybody, with flags in the words; the latency once, the bytes twice
//   two-shot lines   tutti_lines, all-reduce: shares, then their sums; the latency twice, the bytes of each share twice
//   lanes            tutti_lanes: the planner's rings and trees, each message between two GPUs that are linked (device_lanes.h)
//
// All but lanes sum in rank order: their bits are the same. Lanes have the bits of their schedule.
#pragma once

#include "base/config.h"
#include "base/dtype.h"
#include "cuda/kernel_abi.h"
#include "planner/plan.h"
#include "planner/rules.h"

#include <cstdint>
#include <string_view>

namespace tutti::comm {

enum class DevicePath : std::uint8_t { kDirect, kOneShotLines, kTwoShotLines, kLanes };
std::string_view name_of(DevicePath path);

/// Whether a communicator's kernels wait for each other.
enum class DeviceCrew : std::uint8_t {
  kOneLaunch,  ///< one launch does everybody's part
  kTogether,   ///< a launch for each device or process, all of which run at once
  kByTurns,    ///< of several processes, ranks of which share a GPU: none may wait for another one's
};

/// Which of a communicator's GPUs reach each other's memory, and how.
enum class DevicePairs : std::uint8_t {
  kAllLinked,  ///< all, and nothing says that some are nearer than others
  kSomeApart,  ///< all, but some pairs have no link of their own
  kSomeBlind,  ///< some do not
};

/// What a communicator has, beside what the rules say.
struct DeviceWays {
  DeviceCrew crew = DeviceCrew::kOneLaunch;
  Protocols protocols = Protocols::kAny;
  bool has_lines = false;
  DevicePairs pairs = DevicePairs::kAllLinked;

  /// Whether some collectives go by kernels and others through host memory.
  bool are_mixed() const { return pairs == DevicePairs::kSomeBlind || crew == DeviceCrew::kByTurns; }
};

/// What lanes are to a call.
enum class LaneOffer : std::uint8_t {
  kNone,     ///< there is no schedule that keeps to the links
  kOnlyWay,  ///< there is one, but NCCL_ALGO leaves other ways alone, or it was not made for the links
  kThere,    ///< there is one that follows the links
  kNamed,    ///< and NCCL_ALGO leaves nothing else
};

/// What has decided.
enum class DeviceReason : std::uint8_t {
  kNoWaiting,  ///< direct: one launch, in which nobody waits
  kTurns,      ///< direct: no kernel may wait
  kNoMemory,   ///< direct: there is no line memory
  kTooLong,    ///< direct: the message does not fit into line memory, or is longer than the table's
  kTable,      ///< lines: the table's
  kProtocol,   ///< NCCL_PROTO
  kAlgorithm,  ///< NCCL_ALGO
  kTuning,     ///< a rule of the tuning
  kLinks,      ///< lanes: some pairs of GPUs have no link of their own
  kBlind,      ///< lanes: some GPUs do not reach others' memory
};

struct DeviceChoice {
  DevicePath path = DevicePath::kDirect;
  DeviceReason reason = DeviceReason::kNoWaiting;
};

/// The question's access and form are those of the tuning's rules.
DeviceChoice choose_path(const planner::Question& question, const DeviceWays& ways, const planner::Rules& rules,
                         LaneOffer lanes = LaneOffer::kNone);
std::string_view describe(DeviceReason reason);

/// The line memory of so many ranks: as long as the table's longest messages. Little more than 1 MiB.
cuda::LineMemory line_memory_for(int ranks);
/// The longest message of a call of so many bytes in a block.
std::uint64_t message_bytes(DevicePath path, std::uint64_t bytes, int ranks);

}  // namespace tutti::comm
