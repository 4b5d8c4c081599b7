// Which of two plans a call takes where the cores may have moved since costs were measured (way_choice.h).
#include "comm/call.h"

namespace tutti::comm {

/// Rank 0 chooses for both of two ranks of a host: more may be near some others and far from the rest.
bool CollectiveCall::may_choose_way() const {
  const Membership& members = comm_.members();
  const planner::Rules& rules = members.plans.rules();
  const bool reads_all = signature_.one_way == 0 && carriage_ != Carriage::kInLines && !members.bridge;
  return !internal_ && comm_.ranks() == 2 && comm_.rank() == 0 && reads_all &&
         rules.slot_stores == planner::SlotStores::kAsMeasured && rules.measured.streamed_gbps > 0;
}

WayChoice* CollectiveCall::way_of_calls() {
  constexpr std::size_t kKinds = 1024;
  if (!may_choose_way()) return nullptr;
  if (ways_.size() >= kKinds) ways_.clear();
  return &ways_[fingerprint_];
}

/// Part of rank 0's announcement; the lanes of the last call are of no use if the word changes.
void CollectiveCall::announce_way() {
  const std::uint32_t flag = way_->moved() ? protocol::kMoved : 0;
  if ((own_.references.flags & protocol::kMoved) == flag) return;
  own_.references.flags ^= protocol::kMoved;
  reached_ = false;
}

bool CollectiveCall::has_two_ways(const planner::Question& question) const {
  planner::PlanCache& plans = comm_.members().plans;
  planner::Question other = question;
  other.moved = !question.moved;
  const auto here = plans.find(question, comm_.rank());
  const auto there = plans.find(other, comm_.rank());
  if (!here.ok() || !there.ok()) return false;
  const planner::Plan& a = *here.value();
  const planner::Plan& b = *there.value();
  return a.algorithm != b.algorithm || a.direct != b.direct || a.streams_slots != b.streams_slots;
}

/// At the end of a call that nothing else came between.
void CollectiveCall::note_time() {
  if (began_ == std::chrono::steady_clock::time_point{}) return;
  way_->note(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - began_).count());
}

}  // namespace tutti::comm
