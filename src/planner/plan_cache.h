// Plans are made once per call shape and remembered: a communicator's own cache. Not thread-safe: calls of one
// communicator run one at a time.
#pragma once

#include "planner/plan.h"
#include "planner/set_schedule.h"

#include <cstddef>
#include <memory>
#include <unordered_map>

namespace tutti::planner {

class PlanCache {
 public:
  explicit PlanCache(Rules rules) { set_rules(std::move(rules)); }

  void set_rules(Rules rules) {
    rules_ = std::move(rules);
    first_tuning_ = rules_.tuning;
    tuning_fingerprint_ = 0;
    moved_rules_ = rules_;
    moved_rules_.measured = moved(rules_.measured);
    forget();
  }
  const Rules& rules() const { return rules_; }

  /// From now on calls that it fits run this schedule; nullptr: the planner's choice again.
  void set_schedule(std::shared_ptr<const SetSchedule> set) {
    set_ = std::move(set);
    ++schedules_version_;
    forget();
  }
  /// From now on these crossovers count; nullptr: again those that came with the rules.
  void set_tuning(std::shared_ptr<const Tuning> tuning);
  /// Of the crossovers that were set; 0: those that came with the rules. Ranks that have set different ones find out.
  std::uint32_t tuning_fingerprint() const { return tuning_fingerprint_; }
  /// How often set_schedule() or set_tuning() was called: what was asked of schedule_for() holds while this stays.
  std::uint64_t schedules_version() const { return schedules_version_; }
  /// The schedule that was set, if it fits; questions about such a call have `set`.
  const SetSchedule* schedule_for(const schedule::Request& request) const {
    return set_ && set_->fits(request) ? set_.get() : nullptr;
  }

  /// All candidates for a question, cheapest first.
  Result<std::vector<Candidate>> candidates_for(const Question& question) const;
  /// The plan of one of them, not remembered. kInvalidArgument: it follows a planned schedule that is not right.
  Result<Plan> make(const Question& question, const Candidate& candidate, int rank) const;

  /// The plan for `rank`.
  Result<std::shared_ptr<const Plan>> find(const Question& question, int rank);

  /// The question whose answer is remembered for this one: one choice for each power of two of the count.
  static Question size_class(Question question);

  /// Whether a tiny call may be finished by its announce lines alone.
  bool may_announce(Collective collective, std::string_view row = "oneshot") const;

 private:
  struct Hash {
    std::size_t operator()(const Question& q) const;
  };
  static constexpr std::size_t kPlansMax = 4096;

  void forget() {
    plans_.clear();
    choices_.clear();
    last_ = nullptr;
  }

  const Rules& rules_for(const Question& question) const { return question.way == Way::kMoved ? moved_rules_ : rules_; }

  Rules rules_;
  Rules moved_rules_;  ///< the same if the cores had moved
  std::shared_ptr<const Tuning> first_tuning_;
  std::uint32_t tuning_fingerprint_ = 0;
  std::shared_ptr<const SetSchedule> set_;
  std::uint64_t schedules_version_ = 0;
  std::unordered_map<Question, std::shared_ptr<const Plan>, Hash> plans_;
  std::unordered_map<Question, Candidate, Hash> choices_;  ///< by size class: count rounded down to a power of two
  Question last_question_;
  std::shared_ptr<const Plan> last_;
};

}  // namespace tutti::planner
