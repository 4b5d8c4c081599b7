// Which of several plans a call takes where what was measured may not hold (way_choice.h).
#include "comm/call.h"

#include <array>

namespace tutti::comm {
namespace {

bool are_alike(const planner::Plan& a, const planner::Plan& b) {
  return a.algorithm == b.algorithm && a.direct == b.direct && a.streams_slots == b.streams_slots;
}

int way_in(std::uint32_t flags) { return static_cast<int>((flags & protocol::kWayBits) >> protocol::kWayShift); }
int next_way_in(std::uint32_t flags) {
  return static_cast<int>((flags & protocol::kNextWayBits) >> protocol::kNextWayShift);
}
std::uint32_t with_way(std::uint32_t flags, int way) {
  return (flags & ~protocol::kWayBits) | static_cast<std::uint32_t>(way) << protocol::kWayShift;
}

bool are_measured(const planner::Rules& rules) {
  return rules.slot_stores == planner::SlotStores::kAsMeasured && rules.measured.streamed_gbps > 0;
}

}  // namespace

static_assert(WayChoice::kBesideLines <= protocol::kWayBits >> protocol::kWayShift);

WayChoice& Ways::of(std::uint64_t kind, int first) {
  constexpr std::size_t kKinds = 1024;
  if (kinds_.size() >= kKinds) kinds_.clear();
  return kinds_.try_emplace(kind, first).first->second;
}

std::uint32_t Ways::of_question(planner::PlanCache& plans, planner::Question question, int rank) {
  question.way = planner::Way::kMeasured;
  if (asked_ == question) return asked_ways_;
  std::array<std::shared_ptr<const planner::Plan>, planner::kWays> found;
  std::uint32_t ways = 0;
  for (int way = 0; way < planner::kWays; ++way) {
    question.way = static_cast<planner::Way>(way);
    const auto plan = plans.find(question, rank);
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

/// One of two ranks of a host chooses for both: more may be near some others and far from the rest.
bool CollectiveCall::may_choose_way() const {
  const Membership& members = comm_.members();
  const bool reads_all = signature_.one_way == 0 && carriage_ != Carriage::kInLines && !members.bridge;
  return !internal_ && comm_.ranks() == 2 && reads_all && are_measured(members.plans.rules());
}

/// Who reads, of calls in which the other one only sends: through slots that one is through before its data has been read, and would take them for
/// twice as fast as they are.
int CollectiveCall::chooser_of(const CallArgs& args) const {
  if (!is_rooted(args.collective)) return 0;
  const auto reads = protocol::lines_read_one_way(args.collective, 0, static_cast<std::uint32_t>(args.root), 2);
  return reads.first < reads.end ? 0 : 1;
}

/// What is in place, or shared, goes other ways than what is not.
WayChoice* CollectiveCall::way_of_buffers() {
  if (!chooses_way_) return nullptr;
  const std::uint32_t buffers = own_.references.flags & (protocol::kInPlace | protocol::kMappable);
  const std::uint64_t kind = std::uint64_t{buffers} << 32 | fingerprint_;
  if (way_ != nullptr && kind == kind_) return way_;
  kind_ = kind;
  return &ways_.of(kind, may_carry_ ? WayChoice::kBesideLines : 0);
}

/// Of an input that could go beside this rank's line.
bool CollectiveCall::prefers_lanes() const {
  return may_carry_ && way_ != nullptr && way_->way() != WayChoice::kBesideLines;
}

/// Who does not choose writes its line before it knows what was chosen for this call. Where that is not what it was for the last one, one of
/// the two has copied its input in vain.
[[gnu::hot]] void CollectiveCall::follow_way() {
  if (!may_carry_ || way_ == nullptr || comm_.rank() == chooser_) return;
  way_->follow(way_in(line_of(chooser_).buffers.flags));
}

/// Part of the chooser's announcement; the lanes of the last call are of no use if the word changes.
void CollectiveCall::announce_way() {
  if (comm_.rank() != chooser_) return;
  const std::uint32_t flags = with_way(own_.references.flags, way_->way());
  if (own_.references.flags == flags) return;
  own_.references.flags = flags;
  reached_ = false;
}

/// As the chooser says.
void CollectiveCall::choose_way(planner::Question& question) {
  const int way = way_in(references_[chooser_].flags);
  if (way != WayChoice::kBesideLines) question.way = static_cast<planner::Way>(way);
  if (way_ == nullptr || comm_.rank() != chooser_) return;
  const std::uint32_t beside = may_carry_ ? 1u << WayChoice::kBesideLines : 0;
  watched_ = way_->set_ways(ways_.of_question(comm_.members().plans, question, comm_.rank()) | beside);
}

/// Who receives chooses, of any two ranks of a host: a send has no others. What is carried waits for nobody, and has no choice.
WayChoice* PointToPointCall::way_of_calls() {
  const Membership& members = comm_.members();
  const bool is_here = !members.bridge || members.bridge->is_here(args_.root);
  if (direction_ != Direction::kReceive || eager_ || goes_by_mpi_ || !is_here) return nullptr;
  return are_measured(members.plans.rules()) ? &ways_.of(std::uint64_t{exchanges_} << 32 | fingerprint_, 0) : nullptr;
}

/// Part of the receiver's announcement.
void PointToPointCall::announce_way() {
  std::uint32_t& flags = own_.references.flags;
  flags = with_way(flags, follows() ? way_->told() : way_->agreed());
  flags = exchanges_ ? flags | protocol::kExchanges : flags & ~protocol::kExchanges;
  if (follows()) return;
  way_->agree(way_->way());
  flags = (flags & ~protocol::kNextWayBits) | static_cast<std::uint32_t>(way_->agreed()) << protocol::kNextWayShift;
}

/// After an exchange, of whoever follows: the peer has said with its receive which way both go the next time.
void PointToPointCall::learn_way() {
  if (way_ != nullptr && follows() && follows_->told_way_ != kNotTold) way_->be_told(follows_->told_way_);
}
void PointToPointCall::hear_next_way(std::uint32_t receiver_flags) { told_way_ = next_way_in(receiver_flags); }

/// Of a call that goes the way which is to be timed: one that was said a call ahead may not.
bool PointToPointCall::wants_time() {
  return watched_ && !follows() && way_in(own_.references.flags) == way_->way() && way_->wants_time();
}

/// As the receiver says.
void PointToPointCall::choose_way(planner::Question& question, std::uint32_t receiver_flags) {
  question.way = static_cast<planner::Way>(way_in(receiver_flags));
  question.exchange = (receiver_flags & protocol::kExchanges) != 0;
  if (way_ == nullptr) return;
  watched_ = way_->set_ways(ways_.of_question(comm_.members().plans, question, comm_.rank()));
}

void Call::begin_time() { began_ = Clock::now(); }

[[gnu::hot]] void Call::note_time() {
  if (began_ == Clock::time_point{}) return;
  way_->note(std::chrono::duration<double, std::micro>(Clock::now() - began_).count());
}

}  // namespace tutti::comm
