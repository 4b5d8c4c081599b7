#include "planner/plan.h"
#include "planner/tuning.h"

#include <fmt/format.h>

namespace tutti::planner {
namespace {

std::string described(const TunedChoice& choice) {
  return fmt::format("{} {}", choice.algorithm, choice.direct ? "direct" : "slots");
}

/// A rule of the tuning that did not come to its turn.
std::string overruled(const Question& q, const Rules& rules) {
  const TunedChoice* choice = rules.tuning ? rules.tuning->find(q) : nullptr;
  if (choice == nullptr) return "";
  return fmt::format("; the tuning's {} is overruled", described(*choice));
}

std::string where_from(const MeasuredCosts& measured) {
  return measured.slot_gbps == 0 ? "" : " by what was measured here: " + describe(measured);
}

}  // namespace

std::string describe(const MeasuredCosts& costs) {
  std::string text = fmt::format("slots {:.1f} GB/s or past the caches {:.1f}", costs.slot_gbps, costs.streamed_gbps);
  if (costs.call_gbps > 0)
    text += fmt::format(", single copies {:.1f} us and {:.1f} GB/s", costs.call_us, costs.call_gbps);
  return text;
}

std::string describe_reason(const Question& q, const Rules& rules, const Candidate& chosen) {
  switch (chosen.reason) {
    case Reason::kPrice: return "the lowest expected time" + where_from(rules.measured) + overruled(q, rules);
    case Reason::kNamed:
      return fmt::format("the lowest expected time of those that NCCL_ALGO={} leaves", rules.text) +
             overruled(q, rules);
    case Reason::kTuning: return "the tuning, by its rule \"" + to_text(*rules.tuning->rule_for(q)) + "\"";
    case Reason::kSingleCopy:
      return fmt::format(
                 "TUTTI_SINGLE_COPY_MIN_BYTES={}: single copies from there on, the lowest expected time among "
                 "them",
                 rules.single_copy_min_bytes) +
             overruled(q, rules);
    case Reason::kSetSchedule: return "it was set by tuttiCommSetSchedule";
  }
  return "?";
}

}  // namespace tutti::planner
