#include "sim/scenario.h"

#include "sim/own_algorithms.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace tutti::sim {
namespace {

constexpr int kAttemptsMax = 2000;
/// What seeds choose from.
constexpr std::array<int, 12> kRanksDrawn = {2, 2, 3, 3, 3, 4, 4, 5, 5, 6, 7, 8};

template <class T, std::size_t kSize>
T any_of(Random& random, const std::array<T, kSize>& some) {
  return some[random.below(static_cast<std::uint32_t>(kSize))];
}

/// Of the table, whose rows of one name follow each other, and the simulator's own.
std::vector<std::string_view> algorithm_names() {
  std::vector<std::string_view> names;
  for (std::size_t i = 0; i < algorithm_count(); ++i) names.push_back(algorithm_at(i).name);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

/// What cannot be had together is found here; nothing is drawn.
Status check_pins(const Pins& pins) {
  const std::vector<std::string_view> names = algorithm_names();
  if (!pins.algorithm.empty() && std::ranges::find(names, pins.algorithm) == names.end()) {
    return error(Code::kInvalidUsage,
                 fmt::format("no algorithm is called \"{}\": {}", pins.algorithm, fmt::join(names, ", ")));
  }
  if (pins.ranks && (*pins.ranks < 1 || *pins.ranks > kRanksMax)) {
    return error(Code::kInvalidUsage, fmt::format("{} ranks; a simulation has 1 to {}", *pins.ranks, kRanksMax));
  }
  if (pins.count && (*pins.count < 1 || *pins.count > 20000)) {
    return error(Code::kInvalidUsage, fmt::format("a count of {}; a simulation has 1 to 20000 elements", *pins.count));
  }
  if (pins.calls && (*pins.calls < 1 || *pins.calls > 1000)) {
    return error(Code::kInvalidUsage, fmt::format("{} calls; a simulation has 1 to 1000", *pins.calls));
  }
  if (pins.slots && (*pins.slots < 2 || *pins.slots > 64)) {
    return error(Code::kInvalidUsage,
                 fmt::format("{} slots; the schedules need 2 at least, a simulation has 64 at most", *pins.slots));
  }
  if (pins.slot_bytes && (*pins.slot_bytes < 64 || *pins.slot_bytes > 65536 || *pins.slot_bytes % 64 != 0)) {
    return error(Code::kInvalidUsage,
                 fmt::format("slots of {} bytes; a multiple of 64, up to 65536, is possible", *pins.slot_bytes));
  }
  if (pins.fault != Fault::kNone && pins.protocol && !applies(pins.fault, *pins.protocol)) {
    return error(Code::kInvalidUsage, fmt::format("the fault {} is none of {}: --list-faults says where it applies",
                                                  row_of(pins.fault).name, name_of(*pins.protocol)));
  }
  if (pins.death && pins.ranks && pins.death->rank >= *pins.ranks) {
    return error(Code::kInvalidUsage,
                 fmt::format("rank {} cannot die: there are {} ranks", pins.death->rank, *pins.ranks));
  }
  if (pins.death && !pins.ranks && pins.death->rank >= kRanksDrawn.back()) {
    return error(Code::kInvalidUsage, fmt::format("rank {} cannot die: seeds choose up to {} ranks; --ranks makes more",
                                                  pins.death->rank, kRanksDrawn.back()));
  }
  return {};
}

RunShape choose_shape(Random& random, const Pins& pins) {
  RunShape shape;
  shape.ranks = any_of(random, kRanksDrawn);
  shape.slots.slots = any_of<std::uint32_t, 4>(random, {2, 2, 3, 4});
  shape.slots.slot_bytes = any_of<std::uint32_t, 3>(random, {64, 128, 256});
  shape.lines.words = any_of<std::uint32_t, 3>(random, {4, 16, 32});
  shape.first_count = any_of<std::uint64_t, 4>(random, {0, 0, 5, 0xfffffffd});
  const std::uint32_t period = random.below(3);
  if (pins.ranks) shape.ranks = *pins.ranks;
  if (pins.slots) shape.slots.slots = static_cast<std::uint32_t>(*pins.slots);
  if (pins.slot_bytes) {
    shape.slots.slot_bytes = static_cast<std::uint32_t>(*pins.slot_bytes);
    shape.lines.words = shape.slots.slot_bytes / 4;
  }
  shape.lines.slots = shape.slots.slots;
  // Flags wrap soon: after as few lines as a period may have, or a few more.
  if (period != 0) shape.lines.period = shape.lines.slots + (period == 1 ? 1 : 9);
  if (pins.fault == Fault::kLineFlagEarly) {
    shape.slots.slots = shape.lines.slots = 2;
    shape.lines.period = 1;
  }
  if (pins.fault == Fault::kAnnounceFlagEarly) shape.sequence_step = protocol::kAnnounceDepth;
  return shape;
}

/// A cheap look before the planner is asked.
bool is_possible(const CallCase& c) {
  switch (c.protocol) {
    case Protocol::kSlots:
    case Protocol::kLines: return !is_own(*c.algorithm);
    case Protocol::kAnnounce: return c.algorithm->name == "oneshot" && announced_bytes(c) <= kCarriedBytesMax;
    default: return c.in_place ? c.algorithm->direct_in_place : c.algorithm->direct;
  }
}

/// What a seed's calls have in common. With one root and data that goes one way, ranks run ahead as far as they can.
struct Habits {
  bool one_way = false;   ///< most calls are
  bool same_way = false;  ///< from the same root, or to it
  std::array<Collective, 2> way{};
  int root = 0;
};

/// Mistakes that show only where a rank has run ahead by all its announce lines.
bool is_of_room(Fault fault) {
  return fault == Fault::kRoomWithoutAcquire || fault == Fault::kRoomAhead || fault == Fault::kRoomTooMuch;
}

Habits choose_habits(Random& random, const RunShape& shape, const Pins& pins) {
  const bool any = !pins.protocol && pins.algorithm.empty() && !pins.count && pins.fault == Fault::kNone;
  const bool announces = any || pins.protocol == Protocol::kAnnounce || is_of_room(pins.fault);
  const bool rooted = !pins.collective || is_rooted(*pins.collective);
  Habits habits;
  habits.one_way = (random.chance(pins.protocol ? 128 : 64) || is_of_room(pins.fault)) && announces && rooted;
  habits.same_way = random.chance(192) || is_of_room(pins.fault);
  habits.root = static_cast<int>(random.below(static_cast<std::uint32_t>(shape.ranks)));
  habits.way = {Collective::kBroadcast, Collective::kScatter};
  if (random.chance(128)) habits.way = {Collective::kReduce, Collective::kGather};
  return habits;
}

void make_one_way(CallCase& c, Random& random, const Habits& habits, const Pins& pins) {
  constexpr std::array<Collective, 4> kRooted = {Collective::kReduce, Collective::kBroadcast, Collective::kGather,
                                                 Collective::kScatter};
  if (random.chance(habits.same_way ? 4 : 16)) return;
  if (!pins.protocol) c.protocol = Protocol::kAnnounce;
  if (habits.same_way) {
    c.request.root = habits.root;
    c.request.collective = any_of(random, habits.way);
  } else if (!is_rooted(c.request.collective)) {
    c.request.collective = any_of(random, kRooted);
  }
  if (pins.collective) c.request.collective = *pins.collective;
}

CallCase draw_call(Random& random, const RunShape& shape, const Pins& pins, const Habits& habits) {
  constexpr std::array<Collective, 8> kCollectivesHere = {
      Collective::kAllReduce, Collective::kReduce,   Collective::kBroadcast, Collective::kReduceScatter,
      Collective::kAllGather, Collective::kAllToAll, Collective::kGather,    Collective::kScatter};
  CallCase c;
  c.request.ranks = shape.ranks;
  c.request.collective = any_of(random, kCollectivesHere);
  c.request.root = static_cast<int>(random.below(static_cast<std::uint32_t>(shape.ranks)));
  c.protocol = static_cast<Protocol>(random.below(kProtocols));
  c.count = any_of<std::uint64_t, 10>(random, {1, 2, 5, 16, 17, 33, 64, 65, 100, 150});
  c.in_place = random.chance(128);
  c.algorithm = &algorithm_at(random.below(static_cast<std::uint32_t>(algorithm_count())));
  if (pins.collective) c.request.collective = *pins.collective;
  if (habits.one_way) make_one_way(c, random, habits, pins);
  if (!is_rooted(c.request.collective)) c.request.root = 0;
  if (pins.protocol) c.protocol = *pins.protocol;
  if (c.protocol == Protocol::kAnnounce) c.count = 1 + c.count % 78;
  if (c.protocol == Protocol::kLines) c.count = 1 + c.count % 34;
  if (pins.count) c.count = *pins.count;
  if (pins.in_place) c.in_place = *pins.in_place;
  return c;
}

Result<PlannedCall> choose_call(Random& random, const RunShape& shape, const Pins& pins, const Habits& habits) {
  for (int attempt = 0; attempt < kAttemptsMax; ++attempt) {
    CallCase c = draw_call(random, shape, pins, habits);
    if (!pins.algorithm.empty() && c.algorithm->name != pins.algorithm) continue;
    if (!c.algorithm->supports(c.request) || !is_possible(c)) continue;
    if (pins.fault != Fault::kNone && !applies(pins.fault, c.protocol)) continue;
    auto plans = make_plans(shape, c);
    if (plans.ok()) return PlannedCall{c, std::move(plans).value()};
  }
  return error(Code::kInvalidUsage,
               fmt::format("no call has all that is pinned{}{}{}{}; try with fewer options",
                           pins.collective ? fmt::format(" --collective {}", tutti::name_of(*pins.collective)) : "",
                           pins.algorithm.empty() ? "" : " --algorithm " + pins.algorithm,
                           pins.protocol ? fmt::format(" --protocol {}", name_of(*pins.protocol)) : "",
                           pins.in_place ? (*pins.in_place ? " --in-place" : " --out-of-place") : ""));
}

SimulationOptions choose_simulation(Random& random, const RunShape& shape, const Pins& pins, std::uint64_t seed) {
  SimulationOptions options;
  options.ranks = shape.ranks;
  options.memory.seed = seed;
  options.memory.stale_chance = any_of<std::uint32_t, 4>(random, {0, 32, 128, 224});
  options.memory.report_races = pins.report_races;
  // Flags that wrap after 2^32 lines are told from older ones by lines that fill their slots, unless a load returns a store of
  // 2^31 lines ago. With a period of a few lines that would not be far-fetched: there, words are fresh.
  options.memory.fresh_lines = shape.lines.period != protocol::LineShape::kPeriod;
  options.schedule.seed = seed;
  options.schedule.manner = static_cast<Manner>(random.below(kManners));
  options.schedule.stalls = random.chance(64);
  options.notice_after = random.below(200);
  options.fault = pins.fault;
  options.abort_at = pins.abort_at;
  options.death = pins.death;
  options.strict_buffers = pins.strict_buffers;
  return options;
}

}  // namespace

Result<Scenario> choose_scenario(std::uint64_t seed, const Pins& pins) {
  TUTTI_TRY(check_pins(pins));
  Random random(seed, 3);
  Scenario scenario;
  scenario.seed = seed;
  scenario.shape = choose_shape(random, pins);
  scenario.simulation = choose_simulation(random, scenario.shape, pins, seed);
  int calls = static_cast<int>(1 + random.below(4));
  const Habits habits = choose_habits(random, scenario.shape, pins);
  if (habits.one_way) calls += static_cast<int>(protocol::kAnnounceDepth + random.below(protocol::kAnnounceDepth));
  if (pins.calls) calls = *pins.calls;
  for (int c = 0; c < calls; ++c) {
    Random of_call(seed, 100 + static_cast<std::uint64_t>(c));
    TUTTI_TRY_ASSIGN(PlannedCall call, choose_call(of_call, scenario.shape, pins, habits));
    scenario.calls.push_back(std::move(call));
  }
  if (const std::size_t bytes = world_bytes(scenario.shape, scenario.calls); bytes > Memory::kBytesMax) {
    const auto& slots = scenario.shape.slots;
    return error(Code::kInvalidUsage,
                 fmt::format("seed {}: {} ranks with {} slots of {} bytes and these calls take {} bytes of simulated "
                             "memory, of which there are {}: pin fewer or smaller ones",
                             seed, scenario.shape.ranks, slots.slots, slots.slot_bytes, bytes, Memory::kBytesMax));
  }
  return scenario;
}

std::string describe(const Scenario& s) {
  std::string text = fmt::format("seed {}: {} ranks, {} slots of {} bytes, lines of {} words", s.seed, s.shape.ranks,
                                 s.shape.slots.slots, s.shape.slots.slot_bytes, s.shape.lines.words);
  if (s.shape.lines.period != protocol::LineShape::kPeriod) {
    text += fmt::format(" whose flags fill slots every {} lines", s.shape.lines.period);
  }
  text += fmt::format(", channels start at {}\n", s.shape.first_count);
  const SimulationOptions& o = s.simulation;
  text += fmt::format("schedule: {}{}; {} of 256 loads that have a choice are stale\n", name_of(o.schedule.manner),
                      o.schedule.stalls ? " with stalls" : "", o.memory.stale_chance);
  if (o.fault != Fault::kNone) text += fmt::format("fault: {}: {}\n", row_of(o.fault).name, row_of(o.fault).summary);
  if (o.abort_at) text += fmt::format("aborted at operation {}\n", *o.abort_at);
  if (o.death && o.death->rank >= s.shape.ranks) {
    text += fmt::format("rank {}, which would die, is not there\n", o.death->rank);
  } else if (o.death) {
    text += fmt::format("rank {} dies at its operation {}; noticed {} operations later\n", o.death->rank,
                        o.death->operation, o.notice_after);
  }
  for (std::size_t c = 0; c < s.calls.size(); ++c) text += fmt::format("call {}: {}\n", c, describe(s.calls[c].call));
  return text;
}

}  // namespace tutti::sim
