// One call of a run, as all ranks make it, and what its numbers must be. For every machine.
#pragma once

#include "algorithm/algorithm.h"
#include "schedule/schedule.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tutti::sim {

/// How the bytes of a call cross.
enum class Protocol : std::uint8_t {
  kSlots,       ///< messages through the channels' slots
  kLines,       ///< messages as flag-in-word lines
  kDirect,      ///< announced buffers, mapped: pulls and pushes; other messages through slots
  kSingleCopy,  ///< announced buffers, by system call
  kAnnounce,    ///< inputs in the announce lines themselves
};
inline constexpr int kProtocols = 5;
std::string_view name_of(Protocol protocol);
std::optional<Protocol> protocol_named(std::string_view name);
constexpr bool opens_with_announcement(Protocol p) {
  return p == Protocol::kDirect || p == Protocol::kSingleCopy || p == Protocol::kAnnounce;
}

struct CallCase {
  schedule::Request request;
  const algorithm::Algorithm* algorithm = nullptr;
  Protocol protocol = Protocol::kSlots;
  std::uint64_t count = 1;
  bool in_place = false;
};

/// "all_reduce by ring over slots, 3 ranks, 37 elements, in place"
std::string describe(const CallCase& c);

using Value = std::uint32_t;
inline constexpr Value kPoison = 0xdeadbeef;

/// Element i of block `block` of a rank's input. Sums of these tell ranks, blocks, positions and calls apart.
constexpr Value input_value(int call, int rank, std::uint32_t block, std::uint64_t i) {
  return static_cast<Value>(1 + static_cast<std::uint64_t>(call) * 40503u +
                            static_cast<std::uint64_t>(rank) * 1000003u + block * 10007u + i * 31u);
}
/// Where a block of a rank's output comes from, by the definition of the collective: a block of one rank's input, or the sum over all
/// ranks of that block.
struct Origin {
  bool reduced = false;
  int rank = 0;  ///< not for sums
  std::uint32_t block = 0;
};
Origin origin_of(const schedule::Request& request, int rank, std::uint32_t block);
/// Element i of block `block` of a rank's output.
Value promised_value(int call, const schedule::Request& request, int rank, std::uint32_t block, std::uint64_t i);

}  // namespace tutti::sim
