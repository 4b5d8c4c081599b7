#include "planner/set_schedule.h"

#include "schedule/text.h"
#include "schedule/verifier.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace tutti::planner {
namespace {

using schedule::Schedule;

/// FNV-1a of the text as the library writes it: blanks and comments make no difference.
std::uint32_t fingerprint_of(const Schedule& schedule) {
  std::uint32_t hash = 2166136261u;
  for (const char c : schedule::to_text(schedule)) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return std::max(hash, 1u);
}

Status check_use(const Schedule& schedule, int ranks, std::uint32_t lanes_most) {
  const auto refuse = [](const std::string& message) -> Status { return error(Code::kInvalidUsage, message); };
  const schedule::Request& request = schedule.request;
  if (request.collective == Collective::kSend || request.collective == Collective::kReceive) {
    return refuse(fmt::format("a schedule for {} cannot be set; expected one for a collective call",
                              name_of(request.collective)));
  }
  if (request.ranks != ranks) {
    return refuse(fmt::format("the schedule is for {} ranks, but the communicator has {}", request.ranks, ranks));
  }
  if (schedule.shape.lanes > lanes_most) {
    return refuse(
        fmt::format("the schedule has {} lanes; communicators have channels for {}", schedule.shape.lanes, lanes_most));
  }
  return {};
}

bool has_direct_messages(const Schedule& schedule) {
  for (const auto& rank : schedule.ranks) {
    for (const auto& lane : rank.lanes) {
      const auto is_direct = [](const schedule::Endpoint& e) { return e.direct != schedule::Direct::kNone; };
      if (std::any_of(lane.endpoints.begin(), lane.endpoints.end(), is_direct)) return true;
    }
  }
  return false;
}

/// In reproducible mode a sum is rounded once, as one-shot's: a partial sum must travel as float32, or not at all.
Status check_partial_messages(const Schedule& schedule, const Rules& rules) {
  if (!rules.reproducible || rules.wide_wire) return {};
  for (const auto& rank : schedule.ranks) {
    for (const auto& lane : rank.lanes) {
      if (std::none_of(lane.endpoints.begin(), lane.endpoints.end(), [](const auto& e) { return e.wide; })) continue;
      return error(Code::kInvalidUsage,
                   "a schedule with partial messages cannot be set on a reproducible communicator without a float32 "
                   "wire: they round on the way; expected every sum to be made in one step");
    }
  }
  return {};
}

/// Where a sum is rounded is the same in every form: one of those that are right is asked.
std::string refusal_of_wide(const Schedule& schedule, schedule::VerifyOptions options, const Rules& rules) {
  if (!rules.wide_wire) return {};
  options.wide_wire = true;
  const Status status = schedule::verify(schedule, options);
  return status.ok() ? std::string() : status.error().message;
}

}  // namespace

bool SetSchedule::fits(const schedule::Request& request) const {
  const schedule::Request& own = schedule.request;
  return own.collective == request.collective && own.ranks == request.ranks &&
         (!is_rooted(own.collective) || own.root == request.root);
}

Result<std::shared_ptr<const SetSchedule>> prove_schedule(std::string_view text, int ranks, std::uint32_t lanes_most,
                                                          const Rules& rules) {
  TUTTI_TRY_ASSIGN(Schedule read, schedule::parse(text));
  TUTTI_TRY(check_use(read, ranks, lanes_most));
  TUTTI_TRY(check_partial_messages(read, rules));
  auto set = std::make_shared<SetSchedule>();
  set->schedule = std::move(read);
  if (set->schedule.algorithm.empty()) set->schedule.algorithm = "unnamed";
  set->row.name = set->schedule.algorithm;
  set->row.summary = "set by tuttiCommSetSchedule";
  set->fingerprint = fingerprint_of(set->schedule);
  schedule::VerifyOptions options;
  options.slots = slots_to_count_on(rules);
  options.rank_order = rules.reproducible;
  options.wide_wire = rules.reproducible;
  const bool has_direct = has_direct_messages(set->schedule);
  bool proved = false;
  for (const bool in_place : {false, true}) {
    for (const bool direct : {false, true}) {
      if (direct && !has_direct) {
        set->refusals[in_place][direct] = "the schedule has no pull and no push";
        continue;
      }
      options.in_place = in_place;
      options.direct = direct;
      const Status status = schedule::verify(set->schedule, options);
      if (!status.ok()) set->refusals[in_place][direct] = status.error().message;
      if (status.ok() && !proved) set->wide_refusal = refusal_of_wide(set->schedule, options, rules);
      proved |= status.ok();
    }
  }
  if (!proved) return error(Code::kInvalidUsage, set->refusals[false][false]);
  return std::shared_ptr<const SetSchedule>(std::move(set));
}

Result<std::vector<Candidate>> candidates(const Question& q, const Rules& rules, const SetSchedule& set) {
  if (q.wide_wire && !set.wide_refusal.empty()) {
    return error(Code::kInvalidUsage,
                 fmt::format("the schedule \"{}\", set by tuttiCommSetSchedule, rounds sums on the way, but the "
                             "communicator has a float32 wire: {}",
                             set.row.name, set.wide_refusal));
  }
  // Proofs are of calls that are alike on all ranks. Through slots what a rank reads and writes is its own affair.
  if (q.mixed && !(set.is_proved(false, false) && set.is_proved(true, false))) {
    return error(
        Code::kInvalidUsage,
        fmt::format("this call is in place on some ranks and not on others, for which the schedule \"{}\", set by "
                    "tuttiCommSetSchedule, would have to be right in both forms through slots: {}",
                    set.row.name, set.refusals[set.is_proved(false, false)][false]));
  }
  const bool reachable = !q.mixed && (q.access == Access::kMapped || q.access == Access::kSingleCopy);
  const bool worth_copying = q.access == Access::kMapped || q.count * q.element_bytes >= rules.single_copy_min_bytes;
  const bool only_direct = !set.is_proved(q.in_place, false);
  std::vector<Candidate> found;
  for (const bool direct : {false, true}) {
    if (!set.is_proved(q.in_place, direct) || (direct && !reachable)) continue;
    if (direct && !worth_copying && !only_direct) continue;
    found.push_back(make_candidate(set.row, set.schedule, q, rules, direct));
  }
  if (found.empty()) {
    return error(Code::kInvalidUsage,
                 fmt::format("the schedule \"{}\", set by tuttiCommSetSchedule, is not right {} through slots, and the "
                             "buffers of this call {}: {}",
                             set.row.name, q.in_place ? "in place" : "out of place",
                             reachable ? "cannot be used directly with it either" : "cannot be reached directly",
                             set.refusals[q.in_place][false]));
  }
  std::ranges::stable_sort(found, {}, &Candidate::predicted_us);
  put_ordered_first(found, q, rules);
  for (Candidate& c : found) c.reason = Reason::kSetSchedule;
  return found;
}

Result<Plan> make_plan(const Question& q, const Rules& rules, const SetSchedule& set, const Candidate& candidate,
                       int rank) {
  auto program = std::make_shared<const schedule::RankProgram>(set.schedule.ranks[static_cast<std::size_t>(rank)]);
  Plan plan = make_plan(q, rules, candidate, std::move(program), set.schedule.shape);
  const std::size_t scratch = plan.scratch_bytes * plan.shape.lanes;
  if (scratch > kScratchBytesMax) {
    return error(
        Code::kInvalidUsage,
        fmt::format("the schedule \"{}\", set by tuttiCommSetSchedule, needs {} bytes of scratch for this call; "
                    "expected at most {}: declare fewer scratch blocks",
                    set.row.name, scratch, kScratchBytesMax));
  }
  return plan;
}

}  // namespace tutti::planner
