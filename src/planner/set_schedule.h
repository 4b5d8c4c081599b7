// A schedule that a user sets in place of the planner's choice: read from text, and proved in every form that calls may need
// before any call runs it.
#pragma once

#include "base/result.h"
#include "planner/plan.h"
#include "schedule/schedule.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::planner {

struct SetSchedule {
  schedule::Schedule schedule;
  algorithm::Algorithm row;       ///< its name and summary; it cannot be built for other requests
  std::uint32_t fingerprint = 0;  ///< of its text, not 0: ranks that have set different ones find out
  std::string refusals[2][2];     ///< [in place][direct]: the verifier's words; empty: proved
  std::string wide_refusal;       ///< the same for calls with a float32 wire: sums must not be rounded on the way

  bool is_proved(bool in_place, bool direct) const { return refusals[in_place][direct].empty(); }
  /// The collective, the rank count and, where there is one, the root.
  bool fits(const schedule::Request& request) const;
};

/// Parses and proves. The verifier's options are those that calls run it with: the rules' slots, sums in rank order where
/// they are asked for, rounded once where that is.
/// kInvalidArgument: not a schedule's text, with the line. kInvalidUsage: one for another number of ranks, of too many
/// lanes, for send or receive, or right in no form: the verifier's words about calls out of place through slots.
Result<std::shared_ptr<const SetSchedule>> prove_schedule(std::string_view text, int ranks, std::uint32_t lanes_most,
                                                          const Rules& rules);

/// The forms in which it may serve the question, cheapest first. kInvalidUsage: none; the verifier's words.
Result<std::vector<Candidate>> candidates(const Question& question, const Rules& rules, const SetSchedule& set);

/// kInvalidUsage: its scratch would be larger than kScratchBytesMax.
inline constexpr std::size_t kScratchBytesMax = std::size_t{1} << 30;
Result<Plan> make_plan(const Question& question, const Rules& rules, const SetSchedule& set, const Candidate& candidate,
                       int rank);

}  // namespace tutti::planner
