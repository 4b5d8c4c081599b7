// Which of several plans a call takes where what was measured may not hold (way_choice.h).
#include "comm/call.h"

#include <array>

namespace tutti::comm {

/// Rank 0 chooses for both of two ranks of a host: more may be near some others and far from the rest.
bool CollectiveCall::may_choose_way() const {
  const Membership& members = comm_.members();
  const planner::Rules& rules = members.plans.rules();
  const bool reads_all = signature_.one_way == 0 && carriage_ != Carriage::kInLines && !members.bridge;
  return !internal_ && comm_.ranks() == 2 && reads_all && rules.slot_stores == planner::SlotStores::kAsMeasured &&
         rules.measured.streamed_gbps > 0;
}

WayChoice* CollectiveCall::way_of_calls() {
  constexpr std::size_t kKinds = 1024;
  may_carry_ = carriage_ == Carriage::kBesideLines && shape_.input_bytes > kCarriedAnywayBytes;
  if (!may_choose_way() || (comm_.rank() != 0 && !may_carry_)) return nullptr;
  if (ways_.size() >= kKinds) ways_.clear();
  return &ways_.try_emplace(fingerprint_, may_carry_ ? WayChoice::kBesideLines : 0).first->second;
}

/// Of an input that could go beside this rank's line.
bool CollectiveCall::prefers_lanes() const {
  return may_carry_ && way_ != nullptr && way_->way() != WayChoice::kBesideLines;
}

/// Rank 1 writes its line before it knows what rank 0 has chosen for this call. Where that is not what it chose for the last one, one of
/// the two has copied its input in vain.
void CollectiveCall::follow_way() {
  if (!may_carry_ || way_ == nullptr || comm_.rank() == 0) return;
  way_->follow(static_cast<int>((line_of(0).buffers.flags & protocol::kWayBits) >> protocol::kWayShift));
}

static_assert(WayChoice::kBesideLines <= protocol::kWayBits >> protocol::kWayShift);

/// Part of rank 0's announcement; the lanes of the last call are of no use if the word changes.
void CollectiveCall::announce_way() {
  if (comm_.rank() != 0) return;
  const std::uint32_t bits = static_cast<std::uint32_t>(way_->way()) << protocol::kWayShift;
  std::uint32_t& flags = own_.references.flags;
  if ((flags & protocol::kWayBits) == bits) return;
  flags = (flags & ~protocol::kWayBits) | bits;
  reached_ = false;
}

namespace {

bool are_alike(const planner::Plan& a, const planner::Plan& b) {
  return a.algorithm == b.algorithm && a.direct == b.direct && a.streams_slots == b.streams_slots;
}

}  // namespace

/// A bit for each way whose plan is none of an earlier one's.
std::uint32_t CollectiveCall::ways_of(planner::Question question) {
  question.way = planner::Way::kMeasured;
  if (asked_ == question) return asked_ways_;
  std::array<std::shared_ptr<const planner::Plan>, planner::kWays> found;
  std::uint32_t ways = 0;
  for (int way = 0; way < planner::kWays; ++way) {
    question.way = static_cast<planner::Way>(way);
    const auto plan = comm_.members().plans.find(question, comm_.rank());
    if (!plan.ok()) return 0;  // which the call will say
    bool is_new = true;
    for (int earlier = 0; earlier < way; ++earlier) is_new = is_new && !are_alike(*found[earlier], *plan.value());
    found[way] = plan.value();
    if (is_new) ways |= 1u << way;
  }
  question.way = planner::Way::kMeasured;
  asked_ = question;
  asked_ways_ = ways;
  return ways;
}

/// As rank 0 says.
void CollectiveCall::choose_way(planner::Question& question) {
  const std::uint32_t way = (references_[0].flags & protocol::kWayBits) >> protocol::kWayShift;
  if (way != WayChoice::kBesideLines) question.way = static_cast<planner::Way>(way);
  if (way_ == nullptr || comm_.rank() != 0) return;
  const std::uint32_t beside = may_carry_ ? 1u << WayChoice::kBesideLines : 0;
  watched_ = way_->set_ways(ways_of(question) | beside);
}

/// At the end of a call that nothing else came between.
void CollectiveCall::note_time() {
  if (began_ == std::chrono::steady_clock::time_point{}) return;
  way_->note(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - began_).count());
}

}  // namespace tutti::comm
