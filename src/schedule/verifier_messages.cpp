// The verifier, part 2: the k-th message from a to b in a lane is the k-th that b receives from a.
#include "schedule/verifier_parts.h"

#include <fmt/format.h>

#include <algorithm>

namespace tutti::schedule::verifier {
namespace {

/// All sends, or all receives, of a lane, sorted by channel (from, to) and in program order within it.
class Ends {
 public:
  Ends(const Schedule& schedule, int lane, bool sends) : ranks_(static_cast<std::size_t>(schedule.request.ranks)) {
    first_.assign(ranks_ * ranks_ + 1, 0);
    visit(schedule, lane, sends, [this](std::size_t channel, const MessageEnd&) { ++first_[channel + 1]; });
    for (std::size_t c = 0; c < ranks_ * ranks_; ++c) first_[c + 1] += first_[c];
    ends_.resize(first_.back());
    std::vector<std::uint32_t> next(first_.begin(), first_.end() - 1);
    visit(schedule, lane, sends, [&](std::size_t channel, const MessageEnd& end) { ends_[next[channel]++] = end; });
  }

  std::size_t channels() const { return ranks_ * ranks_; }
  std::span<const MessageEnd> of(std::size_t channel) const {
    return {ends_.data() + first_[channel], first_[channel + 1] - first_[channel]};
  }
  std::size_t count() const { return ends_.size(); }

 private:
  template <class Visitor>
  void visit(const Schedule& schedule, int lane, bool sends, Visitor visitor) const {
    for (int rank = 0; rank < static_cast<int>(ranks_); ++rank) {
      const LaneProgram& program = lane_of(schedule, rank, lane);
      for (std::uint32_t s = 0; s < program.steps.size(); ++s) {
        const Step& step = program.steps[s];
        const std::uint32_t first = sends ? step.first_sink : step.first_source;
        const std::uint32_t count = sends ? step.sink_count : step.source_count;
        for (std::uint32_t i = first; i < first + count; ++i) {
          const Endpoint& e = program.endpoints[i];
          if (e.place != Place::kPeer) continue;
          const auto self = static_cast<std::size_t>(rank);
          visitor(sends ? self * ranks_ + e.peer : e.peer * ranks_ + self, MessageEnd{rank, s, i});
        }
      }
    }
  }

  std::size_t ranks_;
  std::vector<std::uint32_t> first_;
  std::vector<MessageEnd> ends_;
};

/// "pull in[0.2+3]", "push out[0.1]", "neither pull nor push"
std::string way_of(const Endpoint& e) {
  if (e.direct == Direct::kNone) return "neither pull nor push";
  constexpr const char* kNames[] = {"in", "out", "scratch", "peer"};
  return fmt::format("{} {}[{}.{}]", e.direct == Direct::kPull ? "pull" : "push", kNames[static_cast<int>(e.remote)],
                     e.block, e.unit);
}

/// The two ends of a message must say the same about it.
Status check_pair(const Schedule& schedule, int lane, const MessageEnd& from, const MessageEnd& to) {
  const Endpoint& sent = lane_of(schedule, from.rank, lane).endpoints[from.endpoint];
  const Endpoint& received = lane_of(schedule, to.rank, lane).endpoints[to.endpoint];
  const auto fail = [&](const std::string& what) -> Status {
    return wrong(schedule, {to.rank, lane, to.step},
                 fmt::format("{}; the message comes from {}", what, describe(schedule, {from.rank, lane, from.step})));
  };
  if (sent.width != received.width) {
    return fail(fmt::format("expects a message of width {} from rank {}, which sends width {}", received.width,
                            from.rank, sent.width));
  }
  const bool same_place = sent.remote == received.remote && sent.block == received.block && sent.unit == received.unit;
  if (sent.direct != received.direct || (sent.direct != Direct::kNone && !same_place)) {
    return fail(fmt::format("the message from rank {} is {} where it is sent and {} here; both ends must say the same",
                            from.rank, way_of(sent), way_of(received)));
  }
  return {};
}

Status check_counts(const Schedule& schedule, int lane, std::span<const MessageEnd> sends,
                    std::span<const MessageEnd> receives) {
  if (sends.size() == receives.size()) return {};
  const bool too_many_sends = sends.size() > receives.size();
  const MessageEnd& end = too_many_sends ? sends[receives.size()] : receives[sends.size()];
  const std::uint32_t peer = lane_of(schedule, end.rank, lane).endpoints[end.endpoint].peer;
  return wrong(schedule, {end.rank, lane, end.step},
               too_many_sends ? fmt::format("sends message number {} to rank {}, which receives only {} from here; add "
                                            "the receive there or drop a send",
                                            receives.size() + 1, peer, receives.size())
                              : fmt::format("waits for message number {} from rank {}, which sends only {} to here; "
                                            "add the send there or drop a receive",
                                            sends.size() + 1, peer, sends.size()));
}

}  // namespace

Result<LaneMessages> match_messages(const Schedule& schedule, int lane) {
  const Ends sends(schedule, lane, true);
  const Ends receives(schedule, lane, false);
  LaneMessages result;
  result.all.reserve(sends.count());
  for (int rank = 0; rank < schedule.request.ranks; ++rank) {
    result.of.emplace_back(lane_of(schedule, rank, lane).endpoints.size());
  }
  for (std::size_t channel = 0; channel < sends.channels(); ++channel) {
    const std::span<const MessageEnd> from = sends.of(channel);
    const std::span<const MessageEnd> to = receives.of(channel);
    for (std::size_t k = 0; k < std::min(from.size(), to.size()); ++k) {
      TUTTI_TRY(check_pair(schedule, lane, from[k], to[k]));
      const auto id = static_cast<std::uint32_t>(result.all.size());
      result.of[static_cast<std::size_t>(from[k].rank)][from[k].endpoint] = id;
      result.of[static_cast<std::size_t>(to[k].rank)][to[k].endpoint] = id;
      result.all.push_back({from[k], to[k]});
    }
    TUTTI_TRY(check_counts(schedule, lane, from, to));
  }
  return result;
}

}  // namespace tutti::schedule::verifier
