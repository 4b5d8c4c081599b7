// The schedules that follow the trees of a machine's plan: read from the text that a rank has made, and proved before any call
// runs them.
#pragma once

#include "algorithm/planned_trees.h"
#include "base/result.h"
#include "schedule/schedule.h"

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string_view>
#include <vector>

namespace tutti::planner {

/// Making and proving them takes milliseconds of each rank, so that both are left until somebody asks. Thread-safe.
class PlannedSchedules {
 public:
  /// `text`: algorithm/planned_trees.h. `slots`: of a channel. kInvalidArgument: it is no such text.
  static Result<std::shared_ptr<const PlannedSchedules>> read(std::string_view text, int ranks, int lanes_most,
                                                              int slots);
  /// Made and proved elsewhere.
  explicit PlannedSchedules(const std::vector<schedule::Schedule>& proved);

  /// Those for the collective; they stay as they are.
  const std::vector<schedule::Schedule>& of(Collective collective) const;
  /// The options are those that calls run it with: so many slots, in place and out of place, through slots and direct.
  /// kInvalidArgument: there is none; the verifier's words where it is not right.
  Status prove(Collective collective, std::string_view algorithm) const;

 private:
  PlannedSchedules(std::vector<algorithm::PlannedTrees> trees, int slots) : trees_(std::move(trees)), slots_(slots) {}

  std::vector<algorithm::PlannedTrees> trees_;
  int slots_ = 0;
  mutable std::mutex mutex_;
  mutable std::map<Collective, std::vector<schedule::Schedule>> made_;  ///< guarded by mutex_, as what follows
  mutable std::set<const schedule::Schedule*> proved_;
};

}  // namespace tutti::planner
