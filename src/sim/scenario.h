// A simulated run in full: what is called, over what, under which schedule, with what going wrong. A seed chooses it; whatever is
// pinned stays as it is given, and shifts nothing else.
#pragma once

#include "base/result.h"
#include "sim/simulation.h"
#include "sim/world.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tutti::sim {

/// What somebody wants, whatever the seed. Empty: the seed chooses.
struct Pins {
  std::optional<Protocol> protocol;
  std::string algorithm;
  std::optional<Collective> collective;
  std::optional<int> ranks;
  std::optional<std::uint64_t> count;
  std::optional<bool> in_place;
  std::optional<int> calls;
  std::optional<int> slots;
  std::optional<int> slot_bytes;
  std::optional<std::uint64_t> abort_at;
  std::optional<Death> death;
  Fault fault = Fault::kNone;
  bool report_races = true;
  bool strict_buffers = false;
};

struct Scenario {
  std::uint64_t seed = 0;
  RunShape shape;
  std::vector<PlannedCall> calls;
  SimulationOptions simulation;
};

/// kInvalidUsage: no run has all that is pinned, with the reason.
Result<Scenario> choose_scenario(std::uint64_t seed, const Pins& pins);

/// What the seed chose, in a few lines.
std::string describe(const Scenario& scenario);

}  // namespace tutti::sim
