// The verifier, part 3: no deadlock. Ranks are sequential and channels are bounded FIFOs, so whether the run ends does
// not depend on the timing (Kahn's networks): one greedy run decides.
//
// Message number k of a channel finds its slot free when message k - slots has been received, whatever kind the messages
// between them are: slots go by number, so that a direct message, which needs none, counts as well.
// One round is enough in principle: what a step waits for is in its own round or an earlier one (the k-th message of a
// round meets the k-th receive of that round), so that a circle of waiting lies within a round, and the first has it too.
// The tests hold that more rounds change nothing.
#include "schedule/verifier_parts.h"

#include <fmt/format.h>

#include <algorithm>

namespace tutti::schedule::verifier {
namespace {

class GreedyRun {
 public:
  GreedyRun(const Schedule& schedule, int lane, const VerifyOptions& options)
      : schedule_(schedule),
        lane_(lane),
        options_(options),
        ranks_(static_cast<std::size_t>(schedule.request.ranks)),
        at_(ranks_),
        outstanding_(ranks_ * ranks_, 0),
        is_awake_(ranks_, 0) {}

  Result<std::vector<StepRun>> run() {
    for (std::size_t rank = ranks_; rank-- > 0;) wake(static_cast<std::uint32_t>(rank));
    while (!awake_.empty()) {
      const int rank = awake_.back();
      awake_.pop_back();
      is_awake_[static_cast<std::size_t>(rank)] = 0;
      advance(rank);
    }
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      if (at_[rank].round < options_.rounds && !steps(static_cast<int>(rank)).empty()) return stuck();
    }
    return std::move(order_);
  }

 private:
  struct Position {
    int round = 0;
    std::uint32_t step = 0;
    std::uint32_t open = 0;  ///< so many of the step's endpoints need not be waited for any more
  };

  const std::vector<Step>& steps(int rank) const { return lane_of(schedule_, rank, lane_).steps; }
  std::size_t channel(std::size_t from, std::size_t to) const { return from * ranks_ + to; }
  bool takes_slot(const Endpoint& e) const { return !(options_.direct && e.direct != Direct::kNone); }
  void wake(std::uint32_t rank) {
    if (is_awake_[rank]) return;
    is_awake_[rank] = 1;
    awake_.push_back(static_cast<int>(rank));
  }

  /// Runs the rank until it must wait; wakes those that may go on because of it.
  void advance(int rank) {
    Position& at = at_[static_cast<std::size_t>(rank)];
    while (at.round < options_.rounds && at.step < steps(rank).size() && blocker(rank) == nullptr) {
      take_step(rank);
      at.open = 0;
      if (at.round == 0) order_.push_back({rank, at.step});
      if (++at.step == steps(rank).size()) {
        at.step = 0;
        ++at.round;
      }
    }
  }

  void take_step(int rank) {
    const auto self = static_cast<std::size_t>(rank);
    const LaneProgram& program = lane_of(schedule_, rank, lane_);
    const Step& step = program.steps[at_[self].step];
    for (const Endpoint& e : program.sources(step)) {
      if (e.place != Place::kPeer) continue;
      --outstanding_[channel(e.peer, self)];
      wake(e.peer);
    }
    for (const Endpoint& e : program.sinks(step)) {
      if (e.place != Place::kPeer) continue;
      ++outstanding_[channel(self, e.peer)];
      wake(e.peer);
    }
  }

  /// The endpoint that the rank's next step waits for, or nullptr. What is open stays open until the step runs: only
  /// this rank receives from and sends to its ends of the channels. (A step names a peer once on each side.)
  const Endpoint* blocker(int rank) {
    const auto self = static_cast<std::size_t>(rank);
    const LaneProgram& program = lane_of(schedule_, rank, lane_);
    Position& at = at_[self];
    const Step& step = program.steps[at.step];
    for (; at.open < step.source_count + step.sink_count; ++at.open) {
      const Endpoint& e = program.endpoints[step.first_source + at.open];
      if (e.place != Place::kPeer) continue;
      const bool source = at.open < step.source_count;
      const int outstanding = outstanding_[source ? channel(e.peer, self) : channel(self, e.peer)];
      if (source ? outstanding == 0 : takes_slot(e) && outstanding >= options_.slots) return &e;
    }
    return nullptr;
  }

  /// The blocked ranks, those that wait in a circle first.
  std::vector<int> blocked_ranks() {
    std::vector<int> found;
    std::vector<int> rank_after(ranks_, -1);
    for (int rank = 0; rank < static_cast<int>(ranks_); ++rank) {
      const Position& at = at_[static_cast<std::size_t>(rank)];
      if (at.round == options_.rounds || steps(rank).empty()) continue;
      rank_after[static_cast<std::size_t>(rank)] = static_cast<int>(blocker(rank)->peer);
      found.push_back(rank);
    }
    // Who waits, waits for one that waits (one that has ended has sent and received all): going on, one comes to a circle.
    std::vector<char> in_circle(ranks_, 0);
    int at = found.front();
    for (std::size_t n = 0; n < ranks_ && at >= 0; ++n) at = rank_after[static_cast<std::size_t>(at)];
    for (; at >= 0 && !in_circle[static_cast<std::size_t>(at)]; at = rank_after[static_cast<std::size_t>(at)]) {
      in_circle[static_cast<std::size_t>(at)] = 1;
    }
    std::stable_partition(found.begin(), found.end(),
                          [&](int rank) { return in_circle[static_cast<std::size_t>(rank)] != 0; });
    return found;
  }

  Error stuck() {
    std::string who;
    constexpr std::size_t kShownMax = 16;
    const std::vector<int> blocked = blocked_ranks();
    for (std::size_t i = 0; i < std::min(blocked.size(), kShownMax); ++i) {
      const int rank = blocked[i];
      const Position& at = at_[static_cast<std::size_t>(rank)];
      const Endpoint* e = blocker(rank);
      const bool source = at.open < steps(rank)[at.step].source_count;
      who += fmt::format("\n  {} of round {} waits for {} rank {}", describe(schedule_, {rank, lane_, at.step}),
                         at.round, source ? "a message from" : "a free slot to", e->peer);
    }
    if (blocked.size() > kShownMax) who += fmt::format("\n  and {} more ranks", blocked.size() - kShownMax);
    return error(Code::kInvalidUsage, fmt::format("{} {}: deadlock in lane {} with {} slot{} a channel; send before "
                                                  "you receive, or receive what fills the slots:{}",
                                                  schedule_.algorithm, name_of(schedule_.request.collective), lane_,
                                                  options_.slots, options_.slots == 1 ? "" : "s", who));
  }

  const Schedule& schedule_;
  int lane_;
  const VerifyOptions& options_;
  std::size_t ranks_;
  std::vector<Position> at_;
  std::vector<int> outstanding_;  ///< messages sent and not yet received, by channel
  std::vector<int> awake_;        ///< ranks that may be able to go on
  std::vector<char> is_awake_;
  std::vector<StepRun> order_;
};

}  // namespace

Result<std::vector<StepRun>> check_progress(const Schedule& schedule, int lane, const VerifyOptions& options) {
  return GreedyRun(schedule, lane, options).run();
}

}  // namespace tutti::schedule::verifier
