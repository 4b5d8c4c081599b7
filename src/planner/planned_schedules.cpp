#include "planner/planned_schedules.h"

#include "base/dtype.h"
#include "schedule/verifier.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace tutti::planner {
namespace {

Status verify_all_forms(const schedule::Schedule& made, int slots) {
  // Sums under way go through slots, and only the row of the all-reduce and that of the all-gather have direct messages.
  const bool may_be_direct = made.request.collective != Collective::kReduceScatter;
  for (const bool in_place : {false, true}) {
    for (const bool direct : {false, true}) {
      if (direct && !may_be_direct) continue;
      schedule::VerifyOptions options;
      options.slots = slots;
      options.in_place = in_place;
      options.direct = direct;
      options.wide_wire = reduces(made.request.collective);
      TUTTI_TRY(schedule::verify(made, options));
    }
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<const PlannedSchedules>> PlannedSchedules::read(std::string_view text, int ranks, int lanes_most,
                                                                       int slots) {
  TUTTI_TRY_ASSIGN(std::vector<algorithm::PlannedTrees> trees, algorithm::parse_trees(text, ranks, lanes_most));
  return std::shared_ptr<const PlannedSchedules>(new PlannedSchedules(std::move(trees), slots));
}

PlannedSchedules::PlannedSchedules(const std::vector<schedule::Schedule>& proved) {
  for (const schedule::Schedule& one : proved) made_[one.request.collective].push_back(one);
  for (const auto& [collective, all] : made_) {
    for (const schedule::Schedule& one : all) proved_.insert(&one);
  }
}

const std::vector<schedule::Schedule>& PlannedSchedules::of(Collective collective) const {
  const std::lock_guard lock(mutex_);
  const auto [at, is_new] = made_.try_emplace(collective);
  for (std::size_t i = 0; is_new && i < trees_.size(); ++i) {
    if (trees_[i].collective == collective) at->second.push_back(algorithm::schedule_of(trees_[i], slots_));
  }
  return at->second;
}

Status PlannedSchedules::prove(Collective collective, std::string_view algorithm) const {
  const std::vector<schedule::Schedule>& all = of(collective);
  const auto found = std::ranges::find(all, algorithm, &schedule::Schedule::algorithm);
  if (found == all.end())
    return error(Code::kInvalidArgument, fmt::format("no {} is planned for {}", algorithm, name_of(collective)));
  const std::lock_guard lock(mutex_);
  if (proved_.contains(&*found)) return {};
  TUTTI_TRY(verify_all_forms(*found, slots_));
  proved_.insert(&*found);
  return {};
}

}  // namespace tutti::planner
