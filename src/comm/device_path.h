// How kernels do a call on device memory: the one place that decides, for all ranks alike.
//
//   direct           tutti_fold: straight from buffer to buffer; twice the latency of the link among kernels that wait, none in one launch
//   one-shot lines   tutti_lines: everybody pushes its block to everybody, with flags in the words; the latency once, the bytes twice
//   two-shot lines   tutti_lines, all-reduce: shares, then their sums; the latency twice, the bytes of each share twice
//
// All sum in rank order: the bits are the same.
#pragma once

#include "base/config.h"
#include "base/dtype.h"
#include "cuda/kernel_abi.h"
#include "planner/plan.h"
#include "planner/rules.h"

#include <cstdint>
#include <string_view>

namespace tutti::comm {

enum class DevicePath : std::uint8_t { kDirect, kOneShotLines, kTwoShotLines };
std::string_view name_of(DevicePath path);

/// Whether a communicator's kernels wait for each other.
enum class DeviceCrew : std::uint8_t {
  kOneLaunch,  ///< one launch does everybody's part
  kTogether,   ///< a launch for each device or process, all of which run at once
  kByTurns,    ///< processes share a GPU: none may wait for another one's
};

/// What a communicator has, beside what the rules say.
struct DeviceWays {
  DeviceCrew crew = DeviceCrew::kOneLaunch;
  Protocols protocols = Protocols::kAny;
  bool has_lines = false;
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
};

struct DeviceChoice {
  DevicePath path = DevicePath::kDirect;
  DeviceReason reason = DeviceReason::kNoWaiting;
};

/// The question's access and form are those of the tuning's rules.
DeviceChoice choose_path(const planner::Question& question, const DeviceWays& ways, const planner::Rules& rules);
std::string_view describe(DeviceReason reason);

/// The line memory of so many ranks: as long as the table's longest messages. Little more than 1 MiB.
cuda::LineMemory line_memory_for(int ranks);
/// The longest message of a call of so many bytes in a block.
std::uint64_t message_bytes(DevicePath path, std::uint64_t bytes, int ranks);

}  // namespace tutti::comm
