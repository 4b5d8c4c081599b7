#include "schedule/cost_model.h"

#include <algorithm>
#include <queue>
#include <span>
#include <tuple>
#include <vector>

namespace tutti::schedule {
namespace {

bool is_direct(const Endpoint& e, const CostInputs& in) { return in.direct && e.direct != Direct::kNone; }
bool is_mapped_pull(const Endpoint& e, const CostInputs& in) {
  return in.mapped && is_direct(e, in) && e.direct == Direct::kPull;
}

/// Bytes of an endpoint's unit over those of a unit in the data type.
double weight_of(const Endpoint& e, const CostInputs& in) {
  return e.wide && in.wide_bytes != 0 ? static_cast<double>(in.wide_bytes) / in.element_bytes : 1;
}

/// The widest message that goes through a slot, in units of the data type; 0 where none does.
double widest_slot_message(const Schedule& schedule, const CostInputs& in) {
  double widest = 0;
  for (const RankProgram& rank : schedule.ranks) {
    for (const LaneProgram& lane : rank.lanes) {
      for (const Endpoint& e : lane.endpoints) {
        if (e.place == Place::kPeer && !is_direct(e, in)) widest = std::max(widest, e.width * weight_of(e, in));
      }
    }
  }
  return widest;
}

/// The thread's time for a step, bytes counted in units.
struct Work {
  double reduced_units = 0;
  double copied_units = 0;
  double local_units = 0;
};
Work work_of(const LaneProgram& lane, const Step& step, const CostInputs& in) {
  double width = 0;
  double first = 0;
  double sources = 0;
  double sinks = 0;
  bool pushed = false;
  bool local = true;  // no message is in it
  bool only_input = true;
  for (const Endpoint& e : lane.sources(step)) {
    local &= e.place != Place::kPeer;
    if (e.width == 0) continue;
    only_input &= e.place == Place::kInput;
    width = e.width;
    if (sources == 0) first = weight_of(e, in);
    sources += weight_of(e, in);
    pushed |= e.place == Place::kPeer && is_direct(e, in) && e.direct == Direct::kPush;
  }
  const bool is_there = in.in_place && only_input && sources == first;
  for (const Endpoint& e : lane.sinks(step)) {
    const bool to_peer = e.place == Place::kPeer;
    const bool pulled = to_peer && is_direct(e, in) && e.direct == Direct::kPull;
    if (e.width == 0 || pulled || (pushed && !to_peer) || (is_there && e.place == Place::kOutput)) continue;
    const bool pushes = to_peer && is_direct(e, in);
    local &= !to_peer;
    sinks += (pushes ? in.push_cost : 1) * weight_of(e, in);
  }
  const double copied = width * sinks;
  return {width * (sources - first), local ? 0 : copied, local ? copied : 0};
}

/// Threads that move bytes are not equally fast at all times: who waits for a message waits so much of its time longer.
constexpr double kUneven = 0.1;

/// One lane of one rank: a sequential program.
struct Process {
  const LaneProgram* lane = nullptr;
  std::size_t rank = 0;
  std::size_t lane_index = 0;
  std::size_t step = 0;
  int round = 0;
  bool queued = false;
};

/// A FIFO in time: when message k is there, when it was taken.
struct Channel {
  std::vector<double> arrivals;
  std::vector<double> taken;
  std::size_t received = 0;
};

/// Discrete events: of all steps that can start, the one that can start first does.
class TimedRun {
 public:
  TimedRun(const Schedule& schedule, const CostInputs& in, double unit_bytes)
      : in_(in),
        ranks_(schedule.ranks.size()),
        slowdown_(std::max(1.0, in.ranks_per_core)),
        copy_us_(unit_bytes / (in.copy_gbps * 1e3)),
        local_us_(in.local_gbps > 0 ? unit_bytes / (in.local_gbps * 1e3) : copy_us_),
        reduce_us_(unit_bytes / (in.reduce_gbps * 1e3)),
        far_us_(in.far_gbps > 0 ? unit_bytes / (in.far_gbps * 1e3) : 0),
        free_at_(ranks_, 0.0),
        link_free_at_(ranks_, 0.0),
        lanes_(schedule.shape.lanes),
        channels_(ranks_ * ranks_ * lanes_),
        by_place_(ranks_ * lanes_, kNone) {
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      for (std::size_t lane = 0; lane < schedule.ranks[rank].lanes.size(); ++lane) {
        const LaneProgram& program = schedule.ranks[rank].lanes[lane];
        if (program.steps.empty()) continue;
        by_place_[rank * lanes_ + lane] = processes_.size();
        processes_.push_back({&program, rank, lane});
      }
    }
  }

  /// The end of each round: the time when the last rank has done it.
  std::vector<double> run(int rounds) {
    round_ends_.assign(static_cast<std::size_t>(rounds), 0.0);
    for (std::size_t p = 0; p < processes_.size(); ++p) enqueue(p);
    while (!queue_.empty()) {
      const auto [when, round, p] = queue_.top();
      queue_.pop();
      processes_[p].queued = false;
      // The thread was taken by another lane in between: wait for it.
      if (const double free = free_at_[processes_[p].rank]; free > when) {
        processes_[p].queued = true;
        queue_.push({free, round, p});
        continue;
      }
      take_step(p, when);
    }
    const bool all_done =
        std::all_of(processes_.begin(), processes_.end(), [&](const Process& p) { return p.round == rounds; });
    return all_done ? round_ends_ : std::vector<double>{};
  }

 private:
  static constexpr std::size_t kNone = ~std::size_t{0};
  using Event = std::tuple<double, int, std::size_t>;  ///< when, in which round, which process

  Channel& channel(const Process& p, std::size_t from, std::size_t to) {
    return channels_[(p.lane_index * ranks_ + from) * ranks_ + to];
  }

  /// When the process's next step can start, or -1 when something it needs has not happened yet. A step that names a
  /// peer several times is taken to name it once.
  double ready_at(const Process& p) {
    const Step& step = p.lane->steps[p.step];
    double at = free_at_[p.rank];
    for (const Endpoint& e : p.lane->sources(step)) {
      if (e.place != Place::kPeer) continue;
      const Channel& c = channel(p, e.peer, p.rank);
      if (c.received == c.arrivals.size()) return -1;
      at = std::max(at, c.arrivals[c.received]);
    }
    for (const Endpoint& e : p.lane->sinks(step)) {
      if (e.place != Place::kPeer || is_direct(e, in_)) continue;
      const Channel& c = channel(p, p.rank, e.peer);
      const auto slots = static_cast<std::size_t>(in_.slots);
      if (c.arrivals.size() < slots) continue;
      if (c.arrivals.size() - slots >= c.received) return -1;
      at = std::max(at, c.taken[c.arrivals.size() - slots] + in_.message_us);
    }
    return at;
  }

  void enqueue(std::size_t index) {
    Process& p = processes_[index];
    if (p.queued || static_cast<std::size_t>(p.round) == round_ends_.size()) return;
    const double at = ready_at(p);
    if (at < 0) return;
    p.queued = true;
    queue_.push({at, in_.lanes_take_turns ? p.round : 0, index});
  }

  void take_step(std::size_t index, double when) {
    Process& p = processes_[index];
    const Step& step = p.lane->steps[p.step];
    const Work work = work_of(*p.lane, step, in_);
    const Far far = far_of(p.rank, *p.lane, step);
    const double far_bytes_us = in_.far_by_threads ? far.units * far_us_ / 2 : 0;
    const double end = when + slowdown_ * (step_us(work) + far.messages * in_.far_work_us + far_bytes_us +
                                           work.reduced_units * reduce_us_ + work.copied_units * copy_us_ +
                                           work.local_units * local_us_);
    free_at_[p.rank] = end;
    double& round_end = round_ends_[static_cast<std::size_t>(p.round)];
    round_end = std::max(round_end, end);
    for (const Endpoint& e : p.lane->sources(step)) {
      if (e.place != Place::kPeer) continue;
      if (is_mapped_pull(e, in_)) round_end = std::max(round_end, end + in_.message_us);
      Channel& c = channel(p, e.peer, p.rank);
      if (c.received == c.arrivals.size()) continue;
      ++c.received;
      c.taken.push_back(end);
    }
    for (const Endpoint& e : p.lane->sinks(step)) {
      if (e.place == Place::kPeer) channel(p, p.rank, e.peer).arrivals.push_back(arrival(p.rank, e, end));
    }
    if (++p.step == p.lane->steps.size()) {
      p.step = 0;
      ++p.round;
    }
    enqueue(index);
    wake_peers(p, step);
  }

  /// Of mapped buffers a step whose data others move is a look at a word.
  double step_us(const Work& work) const {
    const bool moves = work.reduced_units + work.copied_units + work.local_units > 0;
    return in_.mapped && in_.direct && !moves ? 0 : in_.step_us;
  }
  bool is_far(std::size_t rank, const Endpoint& e) const {
    return in_.groups != nullptr && e.place == Place::kPeer && (*in_.groups)[rank] != (*in_.groups)[e.peer];
  }
  /// What the step sends and receives.
  struct Far {
    double messages = 0;
    double units = 0;
  };
  Far far_of(std::size_t rank, const LaneProgram& lane, const Step& step) const {
    Far far;
    for (const auto& side : {lane.sources(step), lane.sinks(step)}) {
      for (const Endpoint& e : side) {
        if (!is_far(rank, e)) continue;
        far.messages += 1;
        far.units += e.width * weight_of(e, in_);
      }
    }
    return far;
  }

  /// When a message that is sent at `sent` is there.
  double arrival(std::size_t from, const Endpoint& e, double sent) {
    if (!is_far(from, e)) return is_mapped_pull(e, in_) && e.remote == Place::kInput ? 0 : sent + in_.message_us;
    if (in_.far_by_threads) return sent + in_.far_message_us + kUneven * e.width * weight_of(e, in_) * far_us_;
    double& link_free = link_free_at_[from];
    link_free = std::max(link_free, sent) + e.width * weight_of(e, in_) * far_us_;
    return link_free + in_.far_message_us;
  }

  void wake_peers(const Process& p, const Step& step) {
    for (const auto& side : {p.lane->sources(step), p.lane->sinks(step)}) {
      for (const Endpoint& e : side) {
        if (e.place != Place::kPeer) continue;
        const std::size_t peer = by_place_[e.peer * lanes_ + p.lane_index];
        if (peer != kNone) enqueue(peer);
      }
    }
  }

  const CostInputs& in_;
  std::size_t ranks_;
  double slowdown_;
  double copy_us_;
  double local_us_;
  double reduce_us_;
  double far_us_;
  std::vector<double> free_at_;
  std::vector<double> link_free_at_;  ///< by rank: when what it has to other groups is free
  std::size_t lanes_;
  std::vector<Channel> channels_;
  std::vector<std::size_t> by_place_;
  std::vector<Process> processes_;
  std::vector<double> round_ends_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> queue_;
};

}  // namespace

std::uint64_t rounds_of(const Schedule& schedule, const CostInputs& in) {
  const double share = static_cast<double>(in.count) * in.element_bytes / schedule.shape.lanes;
  const double widest = widest_slot_message(schedule, in);
  if (widest == 0 || in.slot_bytes == 0) return 1;
  const double slab = static_cast<double>(in.slot_bytes) * schedule.shape.units / widest;
  const auto rounds = static_cast<std::uint64_t>(share / slab);
  return std::max<std::uint64_t>(1, rounds + (static_cast<double>(rounds) * slab < share));
}

double predict_us(const Schedule& schedule, const CostInputs& in) {
  const std::uint64_t rounds = rounds_of(schedule, in);
  const double share = static_cast<double>(in.count) * in.element_bytes / schedule.shape.lanes;
  const double unit_bytes = share / static_cast<double>(rounds) / schedule.shape.units;
  const auto steady = static_cast<std::uint64_t>(std::clamp(in.slots, 1, 4));
  const std::uint64_t timed = std::min(rounds, 1 + steady);
  const std::vector<double> ends = TimedRun(schedule, in, unit_bytes).run(static_cast<int>(timed));
  if (ends.empty()) return 0;
  if (rounds == timed) return ends.back();
  const double period = (ends.back() - ends.front()) / static_cast<double>(steady);
  return ends.back() + static_cast<double>(rounds - timed) * period;
}

}  // namespace tutti::schedule
