// The cases of the conformance suite, written once for every transport, executor and machine, and what each needs of them.
#pragma once

#include "algorithm/algorithm.h"
#include "schedule/schedule.h"

#include "../../bench/element.h"

#include <cstdint>
#include <string>
#include <vector>

namespace tutti::conformance {

/// Elements per block. What takes several rounds is the backend's to say.
enum class Size : std::uint8_t { kNone, kOne, kCacheLine, kPrime, kRounds };

enum class Kind : std::uint8_t {
  kCalls,  ///< several calls in a row, on the same channels and buffers
  kGroup,  ///< the same in one group
  kAbort,  ///< the last rank aborts instead of calling: nobody hangs
  kStale,  ///< loads return older stores wherever they may
  kRow,    ///< so many calls in a row that ranks run out of announce lines where they run ahead
};
inline constexpr int kRowCalls = 40;

struct Case {
  schedule::Request request;                        ///< kSend: every rank to the next, from the one before
  const algorithm::Algorithm* algorithm = nullptr;  ///< nullptr: the planner's choice
  Size size = Size::kOne;
  bool in_place = false;
  Kind kind = Kind::kCalls;
  ncclDataType_t type = ncclUint32;
  ncclRedOp_t op = ncclSum;  ///< or bench::kScaledSum
  int place = 0;             ///< among those that make_cases made
};

/// "all_reduce by ring, 3 ranks, several rounds of slots, in place": what --case looks for.
std::string describe(const Case& c);

/// Which cases there are.
struct Wanted {
  bool quick = false;                        ///< a part that has everything once
  std::vector<int> ranks = {1, 2, 3, 5, 8};  ///< of each communicator
};

/// All of them, by rank count; aborts are the last of each.
std::vector<Case> make_cases(const Wanted& wanted);

/// What a backend has. A case that needs what is not there is skipped, and the reason printed.
enum class Capability : std::uint8_t {
  kSlots,
  kLines,
  kMapped,
  kSingleCopy,
  kAnnounceLines,
  kMessages,
  kOneThread,
  kThreads,
  kProcesses,
  kStream,
  kAlgorithms,
  kPlanner,
  kNothing,
  kSendReceive,
  kTypes,
  kAverages,
  kScaledSums,
  kGroups,
  kAborts,
  kStaleMemory,
};
inline constexpr int kCapabilities = 20;
using Capabilities = std::uint32_t;
constexpr Capabilities bit(Capability c) { return 1u << static_cast<int>(c); }
template <class... Some>
constexpr Capabilities bits(Some... some) {
  return (bit(some) | ... | 0u);
}

Capabilities needs_of(const Case& c);
std::string_view name_of(Capability capability);
/// Why a backend without it skips the cases that need it.
std::string_view reason_without(Capability capability);

}  // namespace tutti::conformance
