#include "comm/far_inputs.h"

#include "base/float_mode.h"
#include "protocol/announce.h"

#include <algorithm>
#include <bit>

namespace tutti::comm {

std::byte* FarInputs::place_for(std::uint32_t number, std::uint32_t part, std::size_t bytes, std::uint32_t current) {
  if (const Expected* const sum = expected(part); sum != nullptr && sum->is(number, bytes)) return sum->place;
  if (bytes > kBytesMax || part >= kPartsMax) return nullptr;
  // Nobody is further ahead: what seems to be lies very many calls back.
  const auto is_read = [&](const Input& one) { return !one.block || one.number - current > protocol::kAnnounceDepth; };
  auto& inputs = parts_[part].inputs;
  Input& input = is_read(inputs[0]) ? inputs[0] : inputs[1];
  if (!is_read(input)) return nullptr;
  if (const std::size_t lines = std::bit_ceil((bytes + sizeof(Line) - 1) / sizeof(Line)); lines > input.lines) {
    input.block = std::make_unique_for_overwrite<Line[]>(lines);
    input.lines = lines;
  }
  input.number = number;
  input.bytes = bytes;
  input.arrived = false;
  return input.begin();
}

void FarInputs::expect(std::uint32_t number, std::uint32_t part, std::size_t bytes, std::byte* place) {
  *expected(part) = {number, bytes, place, false};
}

void FarInputs::note_arrived(std::uint32_t number, std::uint32_t part) {
  if (Expected* const sum = expected(part); sum != nullptr && sum->is(number, sum->bytes)) {
    sum->arrived = true;
    return;
  }
  if (part >= kPartsMax) return;  // the call that expected it is over
  for (Input& input : parts_[part].inputs) input.arrived = input.arrived || input.number == number;
}

bool FarInputs::has(std::uint32_t number, std::uint32_t part) const {
  return std::ranges::any_of(parts_[part].inputs,
                             [number](const Input& input) { return input.arrived && input.number == number; });
}

std::byte* FarInputs::of(std::uint32_t number, std::uint32_t part, std::size_t bytes) const {
  if (const Expected* const sum = expected(part); sum != nullptr && sum->is(number, bytes))
    return sum->arrived ? sum->place : nullptr;
  if (part >= kPartsMax) return nullptr;
  for (const Input& input : parts_[part].inputs)
    if (input.arrived && input.number == number && input.bytes == bytes) return input.begin();
  return nullptr;
}

FarLimits far_limits(int hosts, LineRoutes::Pattern pattern, const planner::NetworkCosts& network, bool regroups,
                     bool one_system) {
  const bool added_up = pattern == LineRoutes::Pattern::kDoubling;
  // Where calls differ, a sum of some may go to a rank that is through with its call: the network should have room for it.
  const std::size_t longest = one_system && !added_up ? FarInputs::kBytesMax : FarInputs::kOverNetworkMax;
  if (hosts == 2) return {longest, FarInputs::kOverNetworkMax};
  const bool pairs = std::has_single_bit(static_cast<unsigned>(hosts));
  if (hosts > static_cast<int>(FarInputs::kPartsMax) || (added_up && !(pairs && regroups))) return {};
  const auto limit = [&](double sent) {
    return in_standard_mode([&] {
      // Beside the lines a schedule takes two messages with each other host, and two ways.
      const double saved_us = 4 * (hosts - 1) * network.work_us + 2 * network.message_us;
      const double more = std::max(sent - 2.0 * (hosts - 1) / hosts, 1e-9);
      return std::min(longest, static_cast<std::size_t>(saved_us * network.gbps * 1e3 / more));
    });
  };
  // By any schedule an all-gather sends as much.
  if (added_up) return {limit(LineRoutes(hosts, pattern).rounds()), 0};
  FarLimits limits{limit(hosts - 1), FarInputs::kOverNetworkMax / static_cast<std::size_t>(hosts - 1)};
  const auto more_inputs = static_cast<std::size_t>((hosts - 1) * (hosts - 2));
  if (pattern == LineRoutes::Pattern::kStar && one_system) limits.passed_on = FarInputs::kPassedOnBytes / more_inputs;
  return limits;
}

}  // namespace tutti::comm
