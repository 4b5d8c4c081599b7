#include "comm/network_costs.h"

#include "base/elapsed.h"
#include "executor/backoff.h"
#include "executor/host_machine.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>

namespace tutti::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kShortRounds = 16;
constexpr int kLongRounds = 8;
constexpr int kRoundsMin = 2;  // the first one finds cold memory, and a connection that starts slowly
/// Where a round takes so long it is the network, and one is enough.
constexpr double kFarMs = 20;
/// A question says its number, and whether it is long. kOver: there are no more.
constexpr std::uint64_t kLongQuestion = std::uint64_t{1} << 32;
constexpr std::uint64_t kOver = ~std::uint64_t{0};
/// Clocks tell no less.
constexpr double kUsMin = 0.5;

/// The best of some rounds, in microseconds.
struct Best {
  int rounds = 0;
  double us = 0;
  void add(double found) { us = rounds++ == 0 ? found : std::min(us, found); }
};

class Probe {
 public:
  explicit Probe(const NetworkCostArgs& args)
      : args_(args),
        mine_(args.control.network_talk(args.rank)),
        next_(args.control.network_talk(args.next)),
        previous_(args.control.network_talk(args.previous)),
        to_next_(outbox(args.next)),
        to_previous_(outbox(args.previous)),
        bytes_(args.control.slot_shape().slot_bytes) {
    // Pages that nobody has written are one page of zeros, which is read faster than others.
    std::memset(to_next_, 1, bytes_);
    std::memset(to_previous_, 1, bytes_);
  }

  planner::NetworkCosts run() {
    const bool is_turn = args_.place % kTurns == 0 || serve();
    turn_ = Clock::now();
    const bool asked = is_turn && ask_all(kShortRounds, 0, short_) && ask_all(kLongRounds, kLongQuestion, long_);
    mine_.asked = kOver;
    tell(args_.next, nullptr, &mine_.asked);
    const bool served = serve();
    if (!asked || !served) return {};
    const double once_us = short_.us / 2;
    const double bytes_us = std::max(long_.us / 2 - once_us, kUsMin);
    const double work_us = std::min(work_.us, once_us / 2);
    return {std::max(once_us - 2 * work_us, kUsMin), work_us, static_cast<double>(bytes_) / (bytes_us * 1e3)};
  }

 private:
  std::byte* outbox(int peer) const { return args_.control.channel(args_.rank, peer, kFirstCollectiveLane).outbox; }

  void tell(int peer, const std::byte* payload, const std::uint64_t* word) {
    args_.bridge.tell(peer, payload, payload == nullptr ? 0 : bytes_, word);
  }

  /// Until the host before has asked all. Asleep until it begins: ranks of other hosts may be on the same cores.
  bool serve() {
    return wait_for(start_, kTurns * kTurnMsMax, [&] {
      if (mine_.answered == 0 && !served_) args_.bridge.rest();
      return served_;
    });
  }

  bool ask_all(int rounds, std::uint64_t kind, Best& best) {
    const auto start = Clock::now();
    for (int round = 1; round <= rounds; ++round) {
      const double enough_ms = best.rounds < kRoundsMin ? kFarMs : kNetworkCostMs / 2;
      if (best.rounds != 0 && ms_since(start) > enough_ms) break;
      const auto asked = Clock::now();
      mine_.asked = kind | static_cast<std::uint64_t>(round);
      tell(args_.next, kind == kLongQuestion ? to_next_ : nullptr, &mine_.asked);
      if (kind != kLongQuestion) work_.add(1e3 * ms_since(asked));
      const auto is_answered = [&] { return executor::load_acquire(&next_.answered) == mine_.asked; };
      if (!wait_for(turn_, kTurnMsMax, is_answered)) return false;
      best.add(1e3 * ms_since(asked));
    }
    return true;
  }

  /// Answers while it waits.
  template <class Condition>
  bool wait_for(Clock::time_point start, double most_ms, const Condition& is_over) {
    executor::Backoff backoff(args_.crowded);
    while (!is_over()) {
      const bool moved = args_.bridge.progress();
      if (answer() || moved) {
        backoff.reset();
        continue;
      }
      if (args_.given_up() || ms_since(start) > most_ms) return false;
      backoff.wait();
    }
    return true;
  }

  bool answer() {
    const std::uint64_t question = executor::load_acquire(&previous_.asked);
    if (question == mine_.answered || served_) return false;
    served_ = question == kOver;
    if (served_) return true;
    mine_.answered = question;
    tell(args_.previous, (question & kLongQuestion) != 0 ? to_previous_ : nullptr, &mine_.answered);
    return true;
  }

  const NetworkCostArgs& args_;
  NetworkTalk& mine_;
  const NetworkTalk& next_;
  const NetworkTalk& previous_;
  std::byte* const to_next_;
  std::byte* const to_previous_;
  const std::size_t bytes_;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point turn_ = start_;  ///< when this host's began
  Best short_;
  Best long_;
  Best work_;  ///< of the system call that sends a short one
  bool served_ = false;
};

}  // namespace

planner::NetworkCosts measure_network(const NetworkCostArgs& args) { return Probe(args).run(); }

planner::NetworkCosts worst_of(const std::vector<planner::NetworkCosts>& costs) {
  planner::NetworkCosts worst;
  for (const planner::NetworkCosts& one : costs) {
    if (one.gbps == 0) return {};
    worst.message_us = std::max(worst.message_us, one.message_us);
    worst.work_us = std::max(worst.work_us, one.work_us);
    worst.gbps = worst.gbps == 0 ? one.gbps : std::min(worst.gbps, one.gbps);
  }
  return worst;
}

}  // namespace tutti::comm
