// The faults that can be planted in a simulated run. Protocol code stays as it is: the machine, or what the harness hands
// to the protocol, is wrong.
#pragma once

#include "sim/call_case.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace tutti::sim {

enum class Fault : std::uint8_t {
  kNone,
  kTailWithoutRelease,
  kHeadWithoutRelease,
  kAnnounceWithoutRelease,
  kTailWithoutAcquire,
  kHeadWithoutAcquire,
  kAnnounceWithoutAcquire,
  kTailAhead,
  kAnnounceAhead,
  kCreditTooMany,
  kLineFlagEarly,
  kAnnounceFlagEarly,
  kRoomWithoutAcquire,
  kRoomAhead,
  kRoomTooMuch,
  kNoDrain,
};

struct FaultRow {
  Fault fault;
  std::string_view name;
  std::string_view summary;
  std::uint32_t protocols;  ///< bits by Protocol: where it is a mistake
};

/// Every fault, kNone left out.
std::span<const FaultRow> faults();
const FaultRow& row_of(Fault fault);
std::optional<Fault> fault_named(std::string_view name);
bool applies(Fault fault, Protocol protocol);

}  // namespace tutti::sim
