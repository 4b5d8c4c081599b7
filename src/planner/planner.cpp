#include "planner/plan.h"
#include "planner/tuning.h"

#include "base/assert.h"
#include "planner/miniature.h"
#include "schedule/cost_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

namespace tutti::planner {
namespace {

using algorithm::Algorithm;
using schedule::Endpoint;
using schedule::Place;
using schedule::Schedule;
using schedule::Tiling;

/// Widest messages in units that any rank sends through slots, 0 if none does: equal on every rank, as it looks at all, or at the same
/// ones.
struct Widest {
  std::uint32_t narrow = 0;
  std::uint32_t wide = 0;  ///< those that are float32
};
Widest widest_messages(std::span<const schedule::RankProgram> ranks, const Question& q, bool direct) {
  Widest widest;
  for (const auto& rank : ranks) {
    for (const auto& lane : rank.lanes) {
      for (const Endpoint& e : lane.endpoints) {
        const bool through_slots = e.place == Place::kPeer && !(direct && e.direct != schedule::Direct::kNone);
        std::uint32_t& width = q.wide_wire && e.wide ? widest.wide : widest.narrow;
        if (through_slots) width = std::max(width, e.width);
      }
    }
  }
  return widest;
}

/// The longest message through slots.
std::uint64_t message_bytes_max(const Tiling& t, const Widest& widest) {
  return std::max(t.message_bytes_max(widest.narrow),
                  t.message_bytes_max(widest.wide) / t.element_bytes * sizeof(float));
}

/// How much of a share one round covers: everything where no data goes through slots, else what slots hold.
Tiling make_tiling(const Question& q, const schedule::Shape& shape, const Widest& widest,
                   const schedule::SlotShape& slots) {
  Tiling t;
  t.count = q.count;
  t.element_bytes = q.element_bytes;
  t.units = shape.units;
  t.lanes = shape.lanes;
  t.slab = std::max<std::uint64_t>(1, t.share(0).count);
  const std::uint64_t unit_bytes =
      std::max<std::uint64_t>(widest.narrow * q.element_bytes, widest.wide * sizeof(float));  // per element of a unit
  if (unit_bytes == 0) return t;
  const std::uint64_t per_unit = slots.slot_bytes / unit_bytes / t.align() * t.align();
  // Units shorter than their alignment: the first ones hold all of a round, which fits a slot then.
  const std::uint64_t in_slot = slots.slot_bytes / (widest.wide != 0 ? sizeof(float) : q.element_bytes);
  t.slab = std::min(t.slab, per_unit != 0 ? per_unit * shape.units : in_slot);
  TUTTI_ASSERT(message_bytes_max(t, widest) <= slots.slot_bytes);
  return t;
}

/// What a message and a byte cost, by the way that data goes.
struct Prices {
  double message_us;
  double copy_gbps;
  double reduce_gbps;
};
/// Where nothing was measured. Round figures for one host, chosen so that the planner takes what tutti-perf --tune found to be
/// the fastest at 2 ranks on 2 distant cores, or something close to it, at most sizes.
constexpr Prices kThroughSlots{0.3, 10, 10};
constexpr Prices kMappedBuffers{0.15, 15, 20};
constexpr Prices kSingleCopies{1.4, 20, 10};
/// Measured are copies; a further source of a sum lies in the own cache most of the time.
constexpr double kFurtherSource = 3;
/// How many times as long a byte takes that a system call writes into the other process as one that it reads from there: it asks for
/// every page to be writable. Measured, 2 ranks on 2 cores of a Zen 4 EPYC, near each other or not: from 1.2 to 1.35.
constexpr double kPushedCopies = 1.3;
/// From the end of a system call to the start of the next rank's.
constexpr double kHandOverUs = 0.15;
/// Blocks from which on system calls copy at a fraction of that: no cache holds them, and what slots carry is written past the
/// caches, which a system call does not do. Measured like the prices, 2 ranks on 2 cores that have a cache of 32 MiB; where there is more,
/// up to four times as much (2 cores of a Xeon that tells of 480 MiB).
constexpr double kLargeCopies = 0.2;
constexpr std::uint64_t kMega = std::uint64_t{1} << 20;
std::uint64_t large_block(Collective collective, bool in_place) {
  switch (collective) {
    case Collective::kAllReduce: return (in_place ? 32 : 8) * kMega;
    case Collective::kReduceScatter: return (in_place ? 16 : 4) * kMega;
    case Collective::kReduce: return kMega;
    case Collective::kBroadcast: return (in_place ? 1 : 32) * kMega;
    case Collective::kSend:
    case Collective::kReceive: return 32 * kMega;
    default: return 16 * kMega;
  }
}
bool is_large(const Question& q, const Rules& rules) {
  const std::uint64_t caches = std::clamp<std::uint64_t>(rules.last_cache_bytes / (32 * kMega), 1, 4);
  return q.count * q.element_bytes >= caches * large_block(q.request.collective, q.in_place);
}

/// From how many bytes of a rank's buffers on its own caches hold them no more: what goes through slots is read and written farther away, too.
constexpr std::uint64_t kOwnCaches = 2 * kMega;
/// What slots have left of their bytes per second then, beside single copies. Measured, 2 ranks on 2 cores of a Xeon: from 0.4 to 0.8.
constexpr double kSlotsPastOwnCaches = 0.55;

/// Of rank 0, as all must choose alike.
std::uint64_t touched_bytes(const Question& q) {
  const schedule::Request& request = q.request;
  if (request.collective == Collective::kSend || request.collective == Collective::kReceive)
    return q.count * q.element_bytes * (q.exchange ? 2 : 1);
  const std::uint64_t in = input_blocks(request, 0);
  const std::uint64_t out = output_blocks(request, 0);
  return q.count * q.element_bytes * (q.in_place ? std::max(in, out) : in + out);
}

/// The share of what was measured that slots have in this call where single copies could go instead. Not of sums among more ranks: measured, 4 and
/// 8 on 2 cores, single copies of 8 MiB take up to 1.6 times as long.
double slots_share(const Question& q) {
  if (reduces(q.request.collective) && q.request.ranks > 2) return 1;
  if (q.access != Access::kSingleCopy || touched_bytes(q) < kOwnCaches) return 1;
  // In an exchange each core makes two copies of each byte, one for each way.
  return kSlotsPastOwnCaches / (q.exchange ? 2 : 1);
}

Prices prices_of(const Question& q, bool direct, const Rules& rules) {
  const MeasuredCosts& measured = rules.measured;
  const double gbps = slot_gbps(rules);
  if (!direct) {
    const double share = slots_share(q);
    return gbps > 0 ? Prices{kThroughSlots.message_us, share * gbps, share * kFurtherSource * gbps} : kThroughSlots;
  }
  if (q.access != Access::kSingleCopy) {
    // Loads and stores of peers' memory gain what slots gain.
    const double gain = gbps > 0 ? gbps / kThroughSlots.copy_gbps : 1;
    return {kMappedBuffers.message_us, gain * kMappedBuffers.copy_gbps, gain * kMappedBuffers.reduce_gbps};
  }
  Prices prices = measured.call_gbps > 0
                      ? Prices{measured.call_us + kHandOverUs, measured.call_gbps, kFurtherSource * measured.slot_gbps}
                      : kSingleCopies;
  if (is_large(q, rules)) {
    prices.copy_gbps *= kLargeCopies;
    prices.reduce_gbps *= kLargeCopies;
  }
  return prices;
}

/// Between groups of ranks. Round figures, not measured: a line from another socket or cache takes about twice as long to come, and
/// where the machine's description has no bandwidth in between, bytes take as long again as a copy does.
constexpr double kFarMessages = 2;

void price_groups(schedule::CostInputs& inputs, const Rules& rules) {
  if (rules.groups.empty()) return;
  inputs.groups = &rules.groups;
  inputs.far_message_us = over_hosts(rules) ? rules.network.message_us : kFarMessages * inputs.message_us;
  inputs.far_work_us = rules.network.work_us;
  inputs.far_gbps = inputs.copy_gbps;
  const double between_gbps = over_hosts(rules) ? rules.network.gbps : rules.between_groups_gbps;
  if (between_gbps == 0) return;
  inputs.far_by_threads = rules.one_system;
  inputs.far_gbps = between_gbps;
  if (rules.one_system) return;
  // All ranks of a group may cross at once.
  std::vector<int> sizes(rules.groups.size(), 0);
  for (const int group : rules.groups) ++sizes[static_cast<std::size_t>(group)];
  inputs.far_gbps = between_gbps / std::ranges::max(sizes);
}

schedule::SlotShape slots_for(const Rules& rules, std::uint32_t lanes) {
  return rules.lanes_share_slots ? slots_of_plan(rules.slots, lanes) : rules.slots;
}

/// Prices were fitted to the rows of the table, which have two lanes at most, with the first lane first; of many lanes it would be
/// through all rounds before the last one began, and further rounds would seem to cost nothing.
bool takes_turns(const Algorithm& a, const Schedule& schedule) {
  return a.planned || schedule.shape.lanes > kTableLanes;
}

double price(const Algorithm& a, const Schedule& schedule, const Question& q, const Rules& rules, bool direct) {
  const schedule::SlotShape slots = slots_for(rules, schedule.shape.lanes);
  schedule::CostInputs inputs;
  inputs.count = q.count;
  inputs.element_bytes = q.element_bytes;
  inputs.wide_bytes = q.wide_wire ? sizeof(float) : 0;
  inputs.slot_bytes = slots.slot_bytes;
  inputs.slots = static_cast<int>(slots.slots);
  inputs.direct = direct;
  inputs.mapped = q.access == Access::kMapped;
  inputs.in_place = q.in_place;
  inputs.lanes_take_turns = takes_turns(a, schedule);
  inputs.ranks_per_core = rules.crowding;
  const Prices prices = prices_of(q, direct, rules);
  inputs.message_us = prices.message_us;
  inputs.copy_gbps = prices.copy_gbps;
  inputs.reduce_gbps = prices.reduce_gbps;
  if (direct && q.access == Access::kSingleCopy) {
    inputs.push_cost = kPushedCopies;
    if (rules.measured.call_gbps > 0) inputs.local_gbps = prices.reduce_gbps;
  }
  price_groups(inputs, rules);
  return schedule::predict_us(schedule, inputs);
}

/// A step from message to message names no place, so that all units must be equally long: there is only one.
bool lengths_are_known(const Schedule& schedule) {
  if (schedule.shape.units == 1) return true;
  for (const auto& rank : schedule.ranks) {
    for (const auto& lane : rank.lanes) {
      for (const schedule::Step& step : lane.steps) {
        const auto is_message = [](const Endpoint& e) {
          return e.place == Place::kPeer && e.direct == schedule::Direct::kNone;
        };
        const bool moves = std::ranges::any_of(lane.sources(step), [](const Endpoint& e) { return e.width != 0; });
        if (moves && std::ranges::all_of(lane.sources(step), is_message) &&
            std::ranges::all_of(lane.sinks(step), is_message)) {
          return false;
        }
      }
    }
  }
  return true;
}

/// Whether its sums are as the rules and the call ask: in rank order, rounded once.
bool adds_as_asked(const Algorithm& a, const Question& q, const Rules& rules) {
  if (!reduces(q.request.collective)) return true;
  return (!rules.reproducible || a.reproducible) && (!q.wide_wire || a.wide_wire);
}

/// Others take work off the root, and add to it.
bool relieves_root(const Algorithm& a, Collective collective) {
  return a.over_hosts && (collective == Collective::kGather || collective == Collective::kScatter);
}

bool admitted(const Algorithm& a, const Question& q, const Rules& rules, const AlgorithmFilter& filter) {
  // Where ranks are in no groups, only on demand.
  if (a.in_groups && rules.groups.empty() && !filter.names_it(a.name)) return false;
  if (a.over_hosts && !over_hosts(rules)) return false;
  // Nor there where ranks share cores: those that wait leave theirs to the root, which prices do not know.
  if (relieves_root(a, q.request.collective) && rules.crowding > 1 && !filter.names_it(a.name)) return false;
  return a.supports(in_groups(q.request, rules)) && filter.admits(a.name) && adds_as_asked(a, q, rules);
}

/// A rule for what is not among the candidates says nothing.
void put_tuned_first(std::vector<Candidate>& found, const Question& q, const Tuning& tuning) {
  const TunedChoice* choice = tuning.find(q);
  if (choice == nullptr) return;
  const auto is_chosen = [&](const Candidate& c) {
    return c.algorithm->name == choice->algorithm && c.direct == choice->direct;
  };
  const auto tuned = std::ranges::find_if(found, is_chosen);
  if (tuned == found.end()) return;
  tuned->reason = Reason::kTuning;
  std::rotate(found.begin(), tuned, tuned + 1);
}

bool is_priced_small(const Algorithm& a, const Question& q) { return !a.planned && q.request.ranks > kWholeRanksMax; }

/// Of a row among many ranks.
Widest widest_of_some(const Algorithm& a, const schedule::Request& request, const Question& q, bool direct) {
  std::vector<schedule::RankProgram> programs;
  for (const int rank : ranks_with_widest(request)) programs.push_back(a.build(request, rank));
  return widest_messages(programs, q, direct);
}

Candidate candidate_of(const Algorithm& a, bool direct, const Widest& widest, double us) {
  return {&a, direct, widest.narrow, us, widest.wide, Reason::kPrice};
}

/// A row's candidates, one for each way that its data may go.
class RowOfAll {
 public:
  RowOfAll(const Algorithm& a, const Question& q, const Rules& rules)
      : a_(a), q_(q), rules_(rules), schedule_(algorithm::make_schedule(a, in_groups(q.request, rules))) {
    TUTTI_ASSERT(lengths_are_known(schedule_));
  }
  Candidate candidate(bool direct) const { return make_candidate(a_, schedule_, q_, rules_, direct); }

 private:
  const Algorithm& a_;
  const Question& q_;
  const Rules& rules_;
  const Schedule schedule_;
};

/// The same among many ranks. The widest messages are left to the one that is planned.
class RowOfSome {
 public:
  RowOfSome(const Algorithm& a, const Question& q, const Rules& rules)
      : a_(a), q_(q), rules_(rules), miniatures_(miniatures_of(in_groups(q.request, rules))) {
    for (const Miniature& miniature : miniatures_.each) {
      schedule::Request fewer = miniature.request;
      if (!miniature.groups.empty()) fewer.groups = &miniature.groups;
      schedules_.push_back(algorithm::make_schedule(a, fewer));
      TUTTI_ASSERT(lengths_are_known(schedules_.back()));
    }
  }

  /// Messages' delays and bytes' times grow in different ways: what a call of one element takes, and what a longer one takes beyond that.
  Candidate candidate(bool direct) const {
    std::array<double, 3> shortest{};
    std::array<double, 3> beyond{};
    Question one = q_;
    one.count = 1;
    Rules rules = rules_;
    for (std::size_t i = 0; i < schedules_.size(); ++i) {
      rules.groups = miniatures_.each[i].groups;
      shortest[i] = price(a_, schedules_[i], one, rules, direct);
      beyond[i] = price(a_, schedules_[i], q_, rules, direct) - shortest[i];
    }
    const double us = continued(miniatures_, shortest) + continued(miniatures_, beyond);
    return candidate_of(a_, direct, {}, us);
  }

 private:
  const Algorithm& a_;
  const Question& q_;
  const Rules& rules_;
  const Miniatures miniatures_;
  std::vector<Schedule> schedules_;
};

template <class Row>
void add_candidates(std::vector<Candidate>& found, const Algorithm& a, const Question& q, const Rules& rules) {
  const Row row(a, q, rules);
  found.push_back(row.candidate(false));
  const bool may_direct = q.in_place ? a.direct_in_place : a.direct;
  const bool worth_copying = q.access == Access::kMapped || q.count * q.element_bytes >= rules.single_copy_min_bytes;
  if (may_direct && q.access != Access::kSlots && worth_copying) found.push_back(row.candidate(true));
}

std::vector<Candidate> admitted_candidates(const Question& q, const Rules& rules, const AlgorithmFilter& filter) {
  std::vector<Candidate> found;
  bool all = true;
  for (const Algorithm& a : algorithm::algorithms()) {
    if (!admitted(a, q, rules, filter)) {
      all = all && !admitted(a, q, rules, {});
      continue;
    }
    if (!is_priced_small(a, q)) {
      add_candidates<RowOfAll>(found, a, q, rules);
    } else {
      add_candidates<RowOfSome>(found, a, q, rules);
    }
  }
  std::ranges::stable_sort(found, {}, &Candidate::predicted_us);
  for (Candidate& c : found) c.reason = all ? Reason::kPrice : Reason::kNamed;
  if (rules.tuning) put_tuned_first(found, q, *rules.tuning);
  put_ordered_first(found, q, rules);
  return found;
}

Error nothing_left(const Question& q, const Rules& rules) {
  std::string names;
  for (const Algorithm& a : algorithm::algorithms()) {
    if (admitted(a, q, rules, {})) names += (names.empty() ? "" : ", ") + std::string(a.name);
  }
  return error(Code::kInvalidUsage,
               fmt::format("NCCL_ALGO=\"{}\" leaves no algorithm for {}{}{}; there are {}", rules.text,
                           tutti::name_of(q.request.collective),
                           rules.reproducible ? " in reproducible mode (sums in rank order)" : "",
                           q.wide_wire ? " with a float32 wire (partial sums are not rounded)" : "", names));
}

}  // namespace

std::string_view name_of(Access access) {
  switch (access) {
    case Access::kSlots: return "slots";
    case Access::kSingleCopy: return "single copy";
    case Access::kMapped: return "direct";
  }
  return "?";
}

double doubt(const Question& q, const Rules& rules, bool direct) {
  if (!direct) return 1 / slots_share(q);
  return q.access == Access::kSingleCopy && is_large(q, rules) ? 1 / kLargeCopies : 1;
}

void put_ordered_first(std::vector<Candidate>& found, const Question& q, const Rules& rules) {
  if (q.access != Access::kSingleCopy || rules.single_copy_min_bytes == 0) return;
  const auto others = std::stable_partition(found.begin(), found.end(), [](const Candidate& c) { return c.direct; });
  for (auto c = found.begin(); c != others; ++c) {
    if (c->reason != Reason::kTuning) c->reason = Reason::kSingleCopy;
  }
}

Candidate make_candidate(const Algorithm& a, const Schedule& schedule, const Question& q, const Rules& rules,
                         bool direct) {
  return candidate_of(a, direct, widest_messages(schedule.ranks, q, direct), price(a, schedule, q, rules, direct));
}

Result<std::vector<Candidate>> candidates(const Question& q, const Rules& rules) {
  const AlgorithmFilter& special = rules.special[static_cast<int>(q.request.collective)];
  std::vector<Candidate> found = admitted_candidates(q, rules, special.present ? special : rules.everywhere);
  // A list for all collectives says nothing about those that have none of its algorithms. One that only fails for want of
  // reproducible or wide sums is a contradiction.
  if (found.empty() && !special.present) {
    Question any_sum = q;
    any_sum.wide_wire = false;
    Rules relaxed = rules;
    relaxed.reproducible = false;
    if (admitted_candidates(any_sum, relaxed, rules.everywhere).empty())
      found = admitted_candidates(q, rules, AlgorithmFilter{});
  }
  if (found.empty()) return nothing_left(q, rules);
  return found;
}

Plan make_plan(const Question& q, const Rules& rules, const Candidate& candidate, int rank) {
  const Algorithm& a = *candidate.algorithm;
  const schedule::Request request = in_groups(q.request, rules);
  Candidate whole = candidate;
  if (is_priced_small(a, q)) {
    const Widest widest = widest_of_some(a, request, q, candidate.direct);
    whole.widest = widest.narrow;
    whole.widest_wide = widest.wide;
  }
  return make_plan(q, rules, whole, std::make_shared<const schedule::RankProgram>(a.build(request, rank)),
                   a.shape(request));
}

Plan make_plan(const Question& q, const Rules& rules, const Candidate& candidate,
               std::shared_ptr<const schedule::RankProgram> program, const schedule::Shape& shape) {
  Plan plan;
  plan.algorithm = candidate.algorithm;
  plan.program = std::move(program);
  plan.shape = shape;
  plan.access = q.access;
  plan.direct = candidate.direct;
  plan.reason = candidate.reason;
  plan.predicted_us = candidate.predicted_us;
  const Widest widest{candidate.widest, candidate.widest_wide};
  plan.tiling = make_tiling(q, plan.shape, widest, slots_for(rules, plan.shape.lanes));
  const std::uint64_t longest = message_bytes_max(plan.tiling, widest);
  // Words of lines order nothing but themselves, and pushes rely on the order that earlier messages make.
  plan.lines = !candidate.direct && longest != 0 && longest <= rules.line_bytes;
  plan.streams_slots = streams_slots(rules);
  plan.wide_wire = q.wide_wire;
  plan.scratch_bytes = plan.shape.scratch_blocks * plan.tiling.slab * q.element_bytes;
  return plan;
}

}  // namespace tutti::planner
