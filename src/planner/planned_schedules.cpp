#include "planner/planned_schedules.h"

#include "algorithm/planned_trees.h"
#include "base/dtype.h"
#include "schedule/verifier.h"

#include <utility>

namespace tutti::planner {
namespace {

Status prove(const schedule::Schedule& made, int slots) {
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

Result<std::shared_ptr<const std::vector<schedule::Schedule>>> prove_trees(std::string_view text, int ranks,
                                                                           int lanes_most, int slots) {
  TUTTI_TRY_ASSIGN(const std::vector<algorithm::PlannedTrees> read, algorithm::parse_trees(text, ranks, lanes_most));
  std::vector<schedule::Schedule> made;
  for (const algorithm::PlannedTrees& trees : read) {
    made.push_back(algorithm::schedule_of(trees, slots));
    TUTTI_TRY(prove(made.back(), slots));
  }
  return std::make_shared<const std::vector<schedule::Schedule>>(std::move(made));
}

}  // namespace tutti::planner
