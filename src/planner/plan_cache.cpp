#include "planner/plan_cache.h"

#include "base/float_mode.h"
#include "planner/planned_schedules.h"
#include "planner/tuning.h"

#include <algorithm>
#include <bit>

namespace tutti::planner {

std::size_t PlanCache::Hash::operator()(const Question& q) const {
  std::uint64_t hash = q.count * 0x9e3779b97f4a7c15u;
  hash ^= static_cast<std::uint64_t>(q.request.collective) << 56 | static_cast<std::uint64_t>(q.element_bytes) << 48 |
          static_cast<std::uint64_t>(q.access) << 40 | std::uint64_t{q.in_place} << 36 |
          std::uint64_t{q.exchange} << 35 | std::uint64_t{q.wide_wire} << 37 | std::uint64_t{q.set} << 38 |
          std::uint64_t{q.mixed} << 39 | static_cast<std::uint64_t>(q.way) << 60 |
          static_cast<std::uint64_t>(q.request.root) << 16 | static_cast<std::uint64_t>(q.request.rank);
  hash ^= hash >> 29;
  return hash * 0xbf58476d1ce4e5b9u;
}

namespace {

/// So many times the first one's price: not worth a trial.
constexpr double kFarBehind = 3;

/// What a rule or an order has put first stays, whichever way is asked for.
const Candidate& chosen(const std::vector<Candidate>& found, const Question& asked, const Rules& rules) {
  const Candidate& first = found.front();
  const bool by_price = first.reason == Reason::kPrice || first.reason == Reason::kNamed;
  if (asked.way != Way::kOther || !by_price) return first;
  const auto other = std::ranges::find_if(found, [&](const Candidate& c) { return c.direct != first.direct; });
  if (other == found.end()) return first;
  const double far_behind = kFarBehind * doubt(asked, rules, other->direct);
  return other->predicted_us > far_behind * first.predicted_us ? first : *other;
}

}  // namespace

Result<std::shared_ptr<const Plan>> PlanCache::find(const Question& question, int rank) {
  if (last_ && question == last_question_) return last_;
  auto known = plans_.find(question);
  if (known == plans_.end()) {
    const FloatMode standard;  // prices are doubles, and all ranks must find the same
    const Question asked = size_class(question);
    auto choice = choices_.find(asked);
    if (choice == choices_.end()) {
      TUTTI_TRY_ASSIGN(const std::vector<Candidate> found, candidates_for(asked));
      choice = choices_.emplace(asked, chosen(found, asked, rules_)).first;
    }
    if (plans_.size() >= kPlansMax) plans_.clear();
    TUTTI_TRY_ASSIGN(Plan plan, make(question, choice->second, rank));
    known = plans_.emplace(question, std::make_shared<const Plan>(std::move(plan))).first;
  }
  last_question_ = question;
  last_ = known->second;
  return last_;
}

void PlanCache::set_tuning(std::shared_ptr<const Tuning> tuning) {
  tuning_fingerprint_ = tuning ? tuning->fingerprint() : 0;
  rules_.tuning = tuning ? std::move(tuning) : first_tuning_;
  moved_rules_.tuning = rules_.tuning;
  ++schedules_version_;
  forget();
}

Result<std::vector<Candidate>> PlanCache::candidates_for(const Question& question) const {
  const Rules& rules = rules_for(question);
  return question.set ? candidates(question, rules, *set_) : candidates(question, rules);
}

Result<Plan> PlanCache::make(const Question& question, const Candidate& candidate, int rank) const {
  const Rules& rules = rules_for(question);
  if (question.set) return make_plan(question, rules, *set_, candidate, rank);
  const algorithm::Algorithm& row = *candidate.algorithm;
  if (row.planned) TUTTI_TRY(rules_.planned->prove(question.request.collective, row.name));
  return make_plan(question, rules, candidate, rank);
}

Question PlanCache::size_class(Question question) {
  question.count = std::bit_floor(question.count);
  return question;
}

bool PlanCache::may_announce(Collective collective, std::string_view row) const {
  const AlgorithmFilter& special = rules_.special[static_cast<int>(collective)];
  if (special.present) return special.admits(row);
  return rules_.everywhere.admits(row);
}

}  // namespace tutti::planner
