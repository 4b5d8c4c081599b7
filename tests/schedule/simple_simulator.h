// A second simulator, as simple as can be, to check the first one: looks at everything at every event, keeps nothing sorted,
// works all rates out anew each time. Shares nothing with it but the schedule, the tiling and the description of the machine.
#pragma once

#include "schedule/simulated_bytes.h"
#include "schedule/simulator.h"

#include <algorithm>
#include <limits>
#include <list>
#include <map>
#include <tuple>
#include <vector>

namespace tutti::schedule {

class SimpleSimulator {
 public:
  SimpleSimulator(const Schedule& schedule, const SimulatedMachine& machine, const SimulatedCall& call)
      : schedule_(schedule),
        machine_(machine),
        call_(call),
        tiling_(simulated_tiling(schedule, {call.count, call.element_bytes, call.slots, call.direct})) {}

  /// The time of the call, or -1 where it does not end.
  double run() {
    const std::size_t lanes = schedule_.shape.lanes;
    lanes_.resize(schedule_.ranks.size() * lanes);
    for (double now = 0;;) {
      while (start_something(now)) {
      }
      set_rates();
      double next = std::numeric_limits<double>::infinity();
      for (const Flow& flow : flows_) {
        if (flow.rate > 0) next = std::min(next, now + flow.left / flow.rate);
      }
      for (const Timer& timer : timers_) next = std::min(next, timer.time);
      if (next == std::numeric_limits<double>::infinity()) break;
      for (Flow& flow : flows_) flow.left -= flow.rate * (next - now);
      now = next;
      fire(now);
    }
    for (std::size_t rank = 0; rank < schedule_.ranks.size(); ++rank) {
      for (std::size_t lane = 0; lane < schedule_.ranks[rank].lanes.size(); ++lane) {
        const bool idle = schedule_.ranks[rank].lanes[lane].steps.empty();
        if (!idle && state(rank, lane).round < tiling_.rounds(static_cast<std::uint32_t>(lane))) return -1;
      }
    }
    return call_.base_us + end_;
  }

 private:
  using Key = std::tuple<std::size_t, std::size_t, std::size_t>;  // lane, from, to
  struct LaneState {
    std::uint64_t round = 0;
    std::size_t step = 0;
    bool busy = false;
  };
  struct Channel {
    std::uint64_t arrived = 0, received = 0, owed = 0, acked = 0;
  };
  struct Running {
    std::size_t rank, lane;
    std::uint64_t round;
    std::size_t step;
    int open = 0;
  };
  struct Flow {
    std::list<Running>::iterator of;
    Key channel;
    bool own_work = false;
    LinkPath path;
    double weight = 1;
    double left = 0;
    double rate = 0;
    std::uint64_t order = 0;
  };
  enum class Kind { kSetOut, kArrive, kCredit };
  struct Timer {
    double time = 0;
    Kind kind = Kind::kSetOut;
    std::list<Running>::iterator of;
    Key channel;
    bool pulled = false;
  };

  LaneState& state(std::size_t rank, std::size_t lane) { return lanes_[rank * schedule_.shape.lanes + lane]; }
  bool goes(const Endpoint& e, Direct how) const { return call_.direct && e.direct == how; }
  MessagePath path(const Key& key) const {
    const auto [lane, from, to] = key;
    return machine_.path(static_cast<int>(lane), static_cast<int>(from), static_cast<int>(to));
  }

  /// What goes through the channel in a round, of a lane's share.
  double weight_of(const Key& key) const {
    const auto [lane, from, to] = key;
    double units = 0;
    for (const Endpoint& e : sinks_of(schedule_.ranks[from].lanes[lane])) {
      if (e.place == Place::kPeer && e.peer == to) units += e.width;
    }
    return units / schedule_.shape.units;
  }
  static std::vector<Endpoint> sinks_of(const LaneProgram& program) {
    std::vector<Endpoint> sinks;
    for (const Step& step : program.steps) {
      for (const Endpoint& e : program.sinks(step)) sinks.push_back(e);
    }
    return sinks;
  }

  bool start_something(double now) {
    for (std::size_t rank = 0; rank < schedule_.ranks.size(); ++rank) {
      for (std::size_t lane = 0; lane < schedule_.ranks[rank].lanes.size(); ++lane) {
        LaneState& at = state(rank, lane);
        const LaneProgram& program = schedule_.ranks[rank].lanes[lane];
        if (program.steps.empty() || at.busy || at.round >= tiling_.rounds(static_cast<std::uint32_t>(lane))) continue;
        const Step& step = program.steps[at.step];
        bool ready = true;
        for (const Endpoint& e : program.sources(step)) {
          if (e.place != Place::kPeer) continue;
          const Channel& c = channels_[{lane, e.peer, rank}];
          ready = ready && c.arrived > c.received;
        }
        for (const Endpoint& e : program.sinks(step)) {
          if (e.place != Place::kPeer || goes(e, Direct::kPull) || goes(e, Direct::kPush)) continue;
          const Channel& c = channels_[{lane, rank, e.peer}];
          ready = ready && c.owed < c.acked + call_.slots.slots;
        }
        if (!ready) continue;
        for (const Endpoint& e : program.sources(step)) {
          if (e.place == Place::kPeer) ++channels_[{lane, e.peer, rank}].received;
        }
        for (const Endpoint& e : program.sinks(step)) {
          if (e.place == Place::kPeer && !goes(e, Direct::kPush)) ++channels_[{lane, rank, e.peer}].owed;
        }
        at.busy = true;
        running_.push_back({rank, lane, at.round, at.step});
        timers_.push_back({now + call_.step_us, Kind::kSetOut, std::prev(running_.end()), {}, false});
        return true;
      }
    }
    return false;
  }

  void set_out(double now, std::list<Running>::iterator run) {
    const LaneProgram& program = schedule_.ranks[run->rank].lanes[run->lane];
    const Step& step = program.steps[run->step];
    const auto bytes = [&](std::uint32_t width) {
      const auto lane = static_cast<std::uint32_t>(run->lane);
      return static_cast<double>(tiling_.piece(lane, run->round, unit_of_step(program, step), width).count) *
             call_.element_bytes;
    };
    const auto add = [&](const Key& key, bool own, const LinkPath& links, double amount) {
      if (amount <= 0 || links.empty()) return;
      flows_.push_back({run, key, own, links, own ? 1 : weight_of(key), amount, 0, ++order_});
      ++run->open;
    };
    for (const Endpoint& e : program.sources(step)) {
      const Key key{run->lane, e.peer, run->rank};
      if (e.place == Place::kPeer && goes(e, Direct::kPull))
        add(key, false, path(key).links, bytes(e.width) * call_.wire_bytes);
    }
    for (const Endpoint& e : program.sinks(step)) {
      const Key key{run->lane, run->rank, e.peer};
      if (e.place == Place::kPeer && !goes(e, Direct::kPull))
        add(key, false, path(key).links, bytes(e.width) * call_.wire_bytes);
    }
    if (!machine_.work.empty()) {
      const Work work = work_of(program, step, call_.direct);
      add({}, true, machine_.work[run->rank], bytes(work.width) * (work.sinks + work.additions));
    }
    if (!call_.held) next_step(run->rank, run->lane);
    if (run->open == 0) is_over(now, run);
  }

  void next_step(std::size_t rank, std::size_t lane) {
    LaneState& at = state(rank, lane);
    at.busy = false;
    if (++at.step < schedule_.ranks[rank].lanes[lane].steps.size()) return;
    at.step = 0;
    ++at.round;
  }

  void is_over(double now, std::list<Running>::iterator run) {
    const LaneProgram& program = schedule_.ranks[run->rank].lanes[run->lane];
    const Step& step = program.steps[run->step];
    for (const Endpoint& e : program.sources(step)) {
      if (e.place != Place::kPeer || goes(e, Direct::kPush)) continue;
      const Key key{run->lane, e.peer, run->rank};
      timers_.push_back({now + path(key).credit_us, Kind::kCredit, {}, key, goes(e, Direct::kPull)});
    }
    for (const Endpoint& e : program.sinks(step)) {
      const Key key{run->lane, run->rank, e.peer};
      if (e.place == Place::kPeer) timers_.push_back({now + path(key).latency_us, Kind::kArrive, {}, key, false});
    }
    end_ = std::max(end_, now);
    if (call_.held) next_step(run->rank, run->lane);
    running_.erase(run);
  }

  /// All rates from nothing: they rise together, each by its weight, until a link is full.
  void set_rates() {
    std::vector<double> left;
    for (const TableLink& link : machine_.links) left.push_back(link.gbps * 1e3);
    std::vector<Flow*> rising;
    for (Flow& flow : flows_) {
      flow.rate = 0;
      // Of a channel only the first moves, unless its lane waits for it anyway.
      const bool first = std::ranges::none_of(
          flows_, [&](const Flow& f) { return !f.own_work && f.channel == flow.channel && f.order < flow.order; });
      if (call_.held || flow.own_work || first) rising.push_back(&flow);
    }
    while (!rising.empty()) {
      std::vector<double> demand(left.size(), 0);
      for (const Flow* flow : rising) {
        for (const LinkPart& part : flow->path) demand[static_cast<std::size_t>(part.link)] += part.part * flow->weight;
      }
      double more = std::numeric_limits<double>::infinity();
      for (std::size_t i = 0; i < left.size(); ++i) {
        if (demand[i] > 0) more = std::min(more, left[i] / demand[i]);
      }
      for (std::size_t i = 0; i < left.size(); ++i) left[i] -= more * demand[i];
      for (Flow* flow : rising) flow->rate += more * flow->weight;
      std::erase_if(rising, [&](const Flow* flow) {
        return std::ranges::any_of(flow->path, [&](const LinkPart& part) {
          const auto link = static_cast<std::size_t>(part.link);
          return left[link] <= 1e-9 * machine_.links[link].gbps * 1e3;
        });
      });
    }
  }

  void fire(double now) {
    constexpr double kNothing = 1e-5;  // bytes, or a hundred-thousandth of a microsecond
    for (auto flow = flows_.begin(); flow != flows_.end();) {
      if (flow->rate <= 0 || flow->left > kNothing) {
        ++flow;
        continue;
      }
      const auto run = flow->of;
      flow = flows_.erase(flow);
      if (--run->open == 0) is_over(now, run);
    }
    std::vector<Timer> due;
    std::erase_if(timers_, [&](const Timer& timer) {
      if (timer.time > now + 1e-9) return false;
      due.push_back(timer);
      return true;
    });
    for (const Timer& timer : due) {
      Channel& channel = channels_[timer.channel];
      if (timer.kind == Kind::kSetOut) set_out(now, timer.of);
      if (timer.kind == Kind::kArrive) ++channel.arrived;
      if (timer.kind == Kind::kCredit) ++channel.acked;
      if (timer.pulled) end_ = std::max(end_, now);
    }
  }

  const Schedule& schedule_;
  const SimulatedMachine& machine_;
  const SimulatedCall& call_;
  Tiling tiling_;
  std::vector<LaneState> lanes_;
  std::map<Key, Channel> channels_;
  std::list<Running> running_;
  std::list<Flow> flows_;
  std::vector<Timer> timers_;
  std::uint64_t order_ = 0;
  double end_ = 0;
};

}  // namespace tutti::schedule
