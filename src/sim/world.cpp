#include "sim/world.h"

#include "planner/planned_schedules.h"
#include "sim/memory.h"
#include "sim/own_algorithms.h"

#include <fmt/format.h>

#include <memory>

namespace tutti::sim {
namespace {

planner::Access access_of(Protocol protocol) {
  switch (protocol) {
    case Protocol::kDirect: return planner::Access::kMapped;
    case Protocol::kSingleCopy: return planner::Access::kSingleCopy;
    case Protocol::kAnnounce: return planner::Access::kMapped;  // its plan is not run
    default: return planner::Access::kSlots;
  }
}

/// The planner's own view of the one algorithm that is asked for.
Result<planner::Candidate> find_candidate(const planner::Question& question, planner::Rules rules,
                                          const CallCase& call) {
  const bool direct = opens_with_announcement(call.protocol);
  if (is_own(*call.algorithm)) return planner::Candidate{call.algorithm, true, 0, 0};  // all its messages are direct
  rules.everywhere.present = true;
  rules.everywhere.names = {std::string(call.algorithm->name)};
  TUTTI_TRY_ASSIGN(const auto candidates, planner::candidates(question, rules));
  const auto wanted = std::find_if(candidates.begin(), candidates.end(), [&](const planner::Candidate& c) {
    return c.algorithm == call.algorithm && c.direct == direct;
  });
  if (wanted != candidates.end()) return *wanted;
  return error(Code::kInvalidUsage,
               fmt::format("{} does not do {} over {}{}", call.algorithm->name, tutti::name_of(call.request.collective),
                           name_of(call.protocol), call.in_place ? " in place" : ""));
}

}  // namespace

BufferSizes buffer_sizes(const std::vector<PlannedCall>& calls, int rank) {
  BufferSizes sizes;
  for (const PlannedCall& c : calls) {
    const std::uint64_t in = schedule::input_blocks(c.call.request, rank) * c.call.count;
    const std::uint64_t out = schedule::output_blocks(c.call.request, rank) * c.call.count;
    sizes.input = std::max({sizes.input, in, c.call.in_place ? out : 0});
    sizes.output = std::max(sizes.output, out);
    sizes.scratch = std::max(sizes.scratch, c.plans[static_cast<std::size_t>(rank)].scratch_bytes);
  }
  // One more each: what is written there is a mistake.
  ++sizes.input;
  ++sizes.output;
  return sizes;
}

std::size_t world_bytes(const RunShape& shape, const std::vector<PlannedCall>& calls) {
  const auto area = [](std::size_t bytes) { return bytes + 2 * Memory::kGrain; };
  const auto n = static_cast<std::size_t>(shape.ranks);
  const std::size_t wire = area(sizeof(protocol::PairLine)) + area(shape.slots.bytes()) + area(shape.lines.bytes());
  const std::size_t announcements = protocol::kAnnounceDepth * n;
  std::size_t all = kRunLanes * n * (n - 1) * wire + area(announcements * sizeof(protocol::AnnounceLine)) +
                    area(announcements * kCarriedBytesMax) + area(sizeof(std::uint64_t));
  for (int rank = 0; rank < shape.ranks; ++rank) {
    const BufferSizes sizes = buffer_sizes(calls, rank);
    all += area(sizes.input * sizeof(Value)) + area(sizes.output * sizeof(Value)) + kRunLanes * area(sizes.scratch);
  }
  return all + Memory::kGrain;
}

Result<std::vector<planner::Plan>> make_plans(const RunShape& shape, const CallCase& call) {
  const bool announced = call.protocol == Protocol::kAnnounce;
  planner::Question question{call.request, call.count, sizeof(Value), access_of(call.protocol),
                             call.in_place && !announced};
  planner::Rules rules;
  rules.slots = shape.slots;
  rules.lanes_share_slots = false;  // each has its own here
  // Lines have as many slots, of their own length.
  if (call.protocol == Protocol::kLines) {
    rules.slots.slot_bytes = static_cast<std::uint32_t>(shape.lines.payload_bytes());
    rules.line_bytes = shape.lines.payload_bytes();
  }
  if (call.request.groups != nullptr) {
    rules.groups = *call.request.groups;
    rules.network = planner::kUsualNetwork;  // groups are hosts; of one row the price decides nothing
  }
  if (call.request.planned != nullptr)
    rules.planned = std::make_shared<const planner::PlannedSchedules>(*call.request.planned);
  TUTTI_TRY_ASSIGN(const planner::Candidate wanted, find_candidate(question, rules, call));
  std::vector<planner::Plan> plans;
  // One is enough where none is run.
  for (int r = 0; r < shape.ranks; ++r)
    plans.push_back(announced && r > 0 ? plans.front() : planner::make_plan(question, rules, wanted, r));
  return plans;
}

}  // namespace tutti::sim
