#include "schedule/simulator.h"

#include "base/assert.h"
#include "schedule/fair_shares.h"
#include "schedule/simulated_bytes.h"
#include "schedule/timed_heap.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <queue>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>

namespace tutti::schedule {

namespace {

/// About a picosecond: what ends at the same time but for rounding ends at the same time.
double grid(double us) {
  constexpr double kParts = 1 << 20;
  return std::nearbyint(us * kParts) / kParts;
}

/// Of more transfers whose rates change at once, ends that are near each other are taken together, as each end costs a look at
/// all of them: later by up to a 500th of the time left.
constexpr std::size_t kTakenTogether = 256;
double coarse_grid(double now, double end) {
  const double part = std::exp2(std::floor(std::log2(std::max(end - now, 1e-3) / 500)));
  return std::ceil(end / part) * part;
}

bool carries_data(const Endpoint& e) { return e.place == Place::kPeer && e.width > 0; }

struct Channel {
  int sender = 0;  ///< processes
  int receiver = 0;
  MessagePath path;
  double weight = 0;        ///< what it carries, of a lane's share
  std::uint64_t owed = 0;   ///< messages that take a slot, sent
  std::uint64_t acked = 0;  ///< of these, known to be read
  std::uint64_t arrived = 0;
  std::uint64_t received = 0;
  bool pulled = false;                       ///< its sender's call ends when all was read
  bool busy = false;                         ///< not held: one transfer at a time, the others in order
  std::deque<std::pair<int, double>> later;  ///< their jobs and bytes
};

/// One lane of one rank.
struct Process {
  const LaneProgram* program = nullptr;
  int rank = 0;
  int lane = 0;
  std::size_t first_endpoint = 0;
  std::uint64_t rounds = 0;
  std::uint64_t round = 0;
  std::uint32_t step = 0;
  bool held = false;  ///< a step runs
};

/// A step that runs.
struct Job {
  int process = 0;
  std::uint64_t round = 0;
  std::uint32_t step = 0;
  int open = 0;  ///< transfers
  double start = 0;
};

struct Transfer {
  int job = 0;
  int channel = 0;  ///< kOwnWork
  double bytes = 0;
  double left = 0;
  double rate = 0;
  double since = 0;
  double start = 0;
};
constexpr int kOwnWork = -1;

enum class What : std::uint8_t { kLaunch, kArrival, kCredit };
struct Event {
  double time = 0;
  std::uint64_t order = 0;
  What what = What::kLaunch;
  int index = 0;
  bool operator>(const Event& other) const { return time != other.time ? time > other.time : order > other.order; }
};

class Run {
 public:
  Run(const Schedule& schedule, const SimulatedMachine& machine, const SimulatedCall& call,
      const SimulationLimits& limits, std::uint64_t rounds_max = ~std::uint64_t{0})
      : machine_(machine),
        call_(call),
        limits_(limits),
        tiling_(simulated_tiling(schedule, {call.count, call.element_bytes, call.slots, call.direct})),
        shares_(machine.links) {
    std::uint64_t steps = 0;
    std::uint64_t work = 0;
    for (const RankProgram& rank : schedule.ranks) {
      for (const LaneProgram& lane : rank.lanes) {
        steps += lane.steps.size();
        work += lane.steps.size() +
                static_cast<std::uint64_t>(std::ranges::count(lane.endpoints, Place::kPeer, &Endpoint::place)) / 2;
      }
    }
    result_.rounds = tiling_.rounds(0);
    const std::uint64_t affordable = limits.work_max / std::max<std::uint64_t>(1, work);
    result_.rounds_run = std::min({result_.rounds, std::max(kRoundsLeast, affordable), rounds_max});
    steps_expected_ = steps * result_.rounds_run;
    for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
      for (std::size_t lane = 0; lane < schedule.ranks[rank].lanes.size(); ++lane)
        add_process(schedule.ranks[rank].lanes[lane], static_cast<int>(rank), static_cast<int>(lane));
    }
    connect();
  }

  std::uint64_t rounds_run() const { return result_.rounds_run; }
  /// Rounds that are left out; the last one of a call may be a part of one.
  double rounds_left() const {
    if (result_.rounds_run == result_.rounds) return 0;
    return static_cast<double>(tiling_.share(0).count) / static_cast<double>(tiling_.slab) -
           static_cast<double>(result_.rounds_run);
  }

  Result<SimulatedRun> run() {
    for (std::size_t p = 0; p < processes_.size(); ++p) wake(static_cast<int>(p));
    start_what_can();
    while (!events_.empty() || !ends_.empty()) {
      now_ = next_time();
      while (!ends_.empty() && ends_.first_time() <= now_) end_transfer();
      while (!events_.empty() && events_.top().time <= now_) {
        const Event event = events_.top();
        events_.pop();
        take(event);
      }
      start_what_can();
      if (!told_progress()) return error(Code::kInProgress, "the simulation was ended before it was over");
    }
    for (const Process& process : processes_) {
      if (process.round < process.rounds) return stuck(process);
    }
    finish();
    return std::move(result_);
  }

 private:
  const Step& step_of(const Process& p) const { return p.program->steps[p.step]; }
  Channel& channel_of(const Process& p, std::uint32_t endpoint) {
    return channels_[static_cast<std::size_t>(endpoint_channels_[p.first_endpoint + endpoint])];
  }
  bool is_direct(const Endpoint& e) const { return call_.direct && e.direct != Direct::kNone; }
  bool is_push(const Endpoint& e) const { return call_.direct && e.direct == Direct::kPush; }
  bool is_pull(const Endpoint& e) const { return call_.direct && e.direct == Direct::kPull; }

  void add_process(const LaneProgram& program, int rank, int lane) {
    Process process{&program, rank, lane, endpoint_channels_.size()};
    const std::uint64_t rounds = program.steps.empty() ? 0 : tiling_.rounds(static_cast<std::uint32_t>(lane));
    process.rounds = std::min(rounds, result_.rounds_run);
    endpoint_channels_.resize(endpoint_channels_.size() + program.endpoints.size(), kOwnWork);
    processes_.push_back(process);
  }

  /// Gives each message its channel.
  void connect() {
    std::unordered_map<std::uint64_t, int> numbers;
    const auto number_of = [&](int lane, int from, int to) {
      const auto key = (static_cast<std::uint64_t>(lane) << 48) | (static_cast<std::uint64_t>(from) << 24) |
                       static_cast<std::uint64_t>(to);
      const auto [found, added] = numbers.try_emplace(key, static_cast<int>(channels_.size()));
      if (added) {
        channels_.emplace_back();
        channels_.back().path = machine_.path(lane, from, to);
      }
      return found->second;
    };
    for (std::size_t p = 0; p < processes_.size(); ++p) {
      const Process& process = processes_[p];
      for (const Step& step : process.program->steps) {
        for (std::uint32_t e = step.first_source; e < step.first_sink + step.sink_count; ++e) {
          const bool sink = e >= step.first_sink;
          const Endpoint& endpoint = process.program->endpoints[e];
          if (endpoint.place != Place::kPeer) continue;
          const int peer = static_cast<int>(endpoint.peer);
          const int number =
              sink ? number_of(process.lane, process.rank, peer) : number_of(process.lane, peer, process.rank);
          endpoint_channels_[process.first_endpoint + e] = number;
          Channel& channel = channels_[static_cast<std::size_t>(number)];
          (sink ? channel.sender : channel.receiver) = static_cast<int>(p);
          if (sink) channel.weight += static_cast<double>(endpoint.width) / tiling_.units;
          channel.pulled |= is_pull(endpoint);
        }
      }
    }
  }

  double next_time() const {
    if (events_.empty()) return ends_.first_time();
    if (ends_.empty()) return events_.top().time;
    return std::min(events_.top().time, ends_.first_time());
  }
  void schedule_event(double time, What what, int index) { events_.push({grid(time), ++order_, what, index}); }
  void wake(int process) { awake_.push_back(process); }

  void take(const Event& event) {
    switch (event.what) {
      case What::kLaunch: launch(event.index); break;
      case What::kArrival: {
        Channel& channel = channels_[static_cast<std::size_t>(event.index)];
        ++channel.arrived;
        wake(channel.receiver);
        break;
      }
      case What::kCredit: {
        Channel& channel = channels_[static_cast<std::size_t>(event.index)];
        ++channel.acked;
        if (channel.pulled) drained_ = std::max(drained_, now_);
        wake(channel.sender);
        break;
      }
    }
  }

  void start_what_can() {
    while (!awake_.empty()) {
      const int process = awake_.back();
      awake_.pop_back();
      while (start(process)) {
      }
    }
    const std::span<const int> changed = shares_.settle();
    for (const int number : changed) {
      Transfer& transfer = transfers_[static_cast<std::size_t>(number)];
      transfer.left -= transfer.rate * (now_ - transfer.since);
      transfer.since = now_;
      transfer.rate = shares_.rate(number);
      TUTTI_ASSERT(transfer.rate > 0);
      const double end = now_ + std::max(0.0, transfer.left) / transfer.rate;
      ends_.set(number, changed.size() > kTakenTogether ? coarse_grid(now_, end) : grid(end));
    }
  }

  bool is_ready(const Process& p) {
    const Step& step = step_of(p);
    for (std::uint32_t e = step.first_source; e < step.first_source + step.source_count; ++e) {
      if (p.program->endpoints[e].place != Place::kPeer) continue;
      const Channel& channel = channel_of(p, e);
      if (channel.arrived == channel.received) return false;
    }
    for (std::uint32_t e = step.first_sink; e < step.first_sink + step.sink_count; ++e) {
      const Endpoint& sink = p.program->endpoints[e];
      if (sink.place != Place::kPeer || is_direct(sink)) continue;
      const Channel& channel = channel_of(p, e);
      if (channel.owed - channel.acked >= call_.slots.slots) return false;
    }
    return true;
  }

  /// Starts the process's next step if it can; whether the one after it is to be tried at once.
  bool start(int number) {
    Process& p = processes_[static_cast<std::size_t>(number)];
    if (p.held || p.round >= p.rounds || !is_ready(p)) return false;
    const Step& step = step_of(p);
    for (std::uint32_t e = step.first_source; e < step.first_source + step.source_count; ++e) {
      if (p.program->endpoints[e].place == Place::kPeer) ++channel_of(p, e).received;
    }
    for (std::uint32_t e = step.first_sink; e < step.first_sink + step.sink_count; ++e) {
      const Endpoint& sink = p.program->endpoints[e];
      if (sink.place == Place::kPeer && !is_push(sink)) ++channel_of(p, e).owed;
    }
    p.held = true;
    const int job = new_job({number, p.round, p.step, 0, now_});
    if (call_.step_us > 0) {
      schedule_event(now_ + call_.step_us, What::kLaunch, job);
      return false;
    }
    launch(job);
    return !p.held;
  }

  int new_job(const Job& job) {
    if (free_jobs_.empty()) {
      free_jobs_.push_back(static_cast<int>(jobs_.size()));
      jobs_.emplace_back();
    }
    const int number = free_jobs_.back();
    free_jobs_.pop_back();
    jobs_[static_cast<std::size_t>(number)] = job;
    return number;
  }

  /// The step's data sets out.
  void launch(int number) {
    const Job job = jobs_[static_cast<std::size_t>(number)];
    Process& p = processes_[static_cast<std::size_t>(job.process)];
    const Step& step = p.program->steps[job.step];
    int open = 0;
    const auto send = [&](std::uint32_t e) {
      const Endpoint& endpoint = p.program->endpoints[e];
      const double bytes = bytes_of(p, step, job.round, endpoint.width) * call_.wire_bytes;
      const int channel = endpoint_channels_[p.first_endpoint + e];
      if (bytes <= 0 || channels_[static_cast<std::size_t>(channel)].path.links.empty()) return;
      ++open;
      post(number, channel, bytes);
    };
    for (std::uint32_t e = step.first_source; e < step.first_source + step.source_count; ++e) {
      if (carries_data(p.program->endpoints[e]) && is_pull(p.program->endpoints[e])) send(e);
    }
    for (std::uint32_t e = step.first_sink; e < step.first_sink + step.sink_count; ++e) {
      if (carries_data(p.program->endpoints[e]) && !is_pull(p.program->endpoints[e])) send(e);
    }
    if (!machine_.work.empty()) open += work(number, p, step, job.round) ? 1 : 0;
    jobs_[static_cast<std::size_t>(number)].open = open;
    if (!call_.held) go_on(job.process);
    if (open == 0) end_job(number);
  }

  /// What the rank's own core does.
  bool work(int number, const Process& p, const Step& step, std::uint64_t round) {
    const Work copied = work_of(*p.program, step, call_.direct);
    const double copies = copied.sinks + copied.additions;
    const double bytes = bytes_of(p, step, round, copied.width) * copies;
    const LinkPath& path = machine_.work[static_cast<std::size_t>(p.rank)];
    if (bytes <= 0 || path.empty()) return false;
    add_transfer(number, kOwnWork, path, bytes);
    return true;
  }

  double bytes_of(const Process& p, const Step& step, std::uint64_t round, std::uint32_t width) const {
    const auto lane = static_cast<std::uint32_t>(p.lane);
    return static_cast<double>(tiling_.piece(lane, round, unit_of_step(*p.program, step), width).count) *
           call_.element_bytes;
  }

  void post(int job, int number, double bytes) {
    Channel& channel = channels_[static_cast<std::size_t>(number)];
    if (!call_.held && channel.busy) {
      channel.later.emplace_back(job, bytes);
      return;
    }
    channel.busy = true;
    add_transfer(job, number, channel.path.links, bytes);
  }

  void add_transfer(int job, int channel, const LinkPath& path, double bytes) {
    const int number = shares_.add(path, channel == kOwnWork ? 1 : channels_[static_cast<std::size_t>(channel)].weight);
    if (static_cast<std::size_t>(number) >= transfers_.size()) transfers_.resize(static_cast<std::size_t>(number) + 1);
    transfers_[static_cast<std::size_t>(number)] = {job, channel, bytes, bytes, 0, now_, now_};
  }

  void end_transfer() {
    const int number = ends_.first();
    ends_.pop();
    shares_.remove(number);
    const Transfer transfer = transfers_[static_cast<std::size_t>(number)];
    if (transfer.channel != kOwnWork) post_next(transfer.channel);
    if (transfer.channel != kOwnWork && result_.transfers.size() < limits_.trace_max) {
      const Channel& channel = channels_[static_cast<std::size_t>(transfer.channel)];
      const Process& sender = processes_[static_cast<std::size_t>(channel.sender)];
      const Process& receiver = processes_[static_cast<std::size_t>(channel.receiver)];
      result_.transfers.push_back({sender.lane, sender.rank, receiver.rank, transfer.start, now_, transfer.bytes});
    }
    const int job = transfer.job;
    if (--jobs_[static_cast<std::size_t>(job)].open == 0) end_job(job);
  }

  void post_next(int number) {
    Channel& channel = channels_[static_cast<std::size_t>(number)];
    channel.busy = false;
    if (channel.later.empty()) return;
    const auto [job, bytes] = channel.later.front();
    channel.later.pop_front();
    post(job, number, bytes);
  }

  /// The lane is free for its next step.
  void go_on(int number) {
    Process& p = processes_[static_cast<std::size_t>(number)];
    p.held = false;
    if (++p.step == p.program->steps.size()) {
      p.step = 0;
      ++p.round;
    }
    wake(number);
  }

  void end_job(int number) {
    const Job job = jobs_[static_cast<std::size_t>(number)];
    free_jobs_.push_back(number);
    Process& p = processes_[static_cast<std::size_t>(job.process)];
    const Step& step = p.program->steps[job.step];
    for (std::uint32_t e = step.first_source; e < step.first_source + step.source_count; ++e) {
      const Endpoint& source = p.program->endpoints[e];
      if (source.place != Place::kPeer || is_push(source)) continue;
      schedule_event(now_ + channel_of(p, e).path.credit_us, What::kCredit, endpoint_channels_[p.first_endpoint + e]);
    }
    for (std::uint32_t e = step.first_sink; e < step.first_sink + step.sink_count; ++e) {
      if (p.program->endpoints[e].place != Place::kPeer) continue;
      schedule_event(now_ + channel_of(p, e).path.latency_us, What::kArrival, endpoint_channels_[p.first_endpoint + e]);
    }
    ++result_.steps;
    if (result_.trace.size() < limits_.trace_max)
      result_.trace.push_back({p.rank, p.lane, job.step, job.round, job.start, now_});
    end_ = now_;
    if (call_.held) go_on(job.process);
  }

  bool told_progress() {
    constexpr std::uint64_t kStepsBetween = 1 << 14;
    if (!limits_.progress || result_.steps < told_ + kStepsBetween) return true;
    told_ = result_.steps;
    return limits_.progress(static_cast<double>(result_.steps) / static_cast<double>(steps_expected_));
  }

  Error stuck(const Process& p) {
    const Step& step = step_of(p);
    std::string why = "a slot";
    std::uint32_t peer = 0;
    for (std::uint32_t e = step.first_source; e < step.first_sink + step.sink_count; ++e) {
      const Endpoint& endpoint = p.program->endpoints[e];
      if (endpoint.place != Place::kPeer) continue;
      const bool source = e < step.first_source + step.source_count;
      const Channel& channel = channel_of(p, e);
      const bool blocks =
          source ? channel.arrived == channel.received : channel.owed - channel.acked >= call_.slots.slots;
      if (!blocks) continue;
      why = source ? "a message" : "a slot";
      peer = endpoint.peer;
      break;
    }
    return error(
        Code::kInvalidArgument,
        fmt::format("the schedule cannot end: rank {}, lane {}, step {} of round {} waits for {} of rank {} for ever",
                    p.rank, p.lane, p.step, p.round, why, peer));
  }

  void finish() {
    result_.us = call_.base_us + std::max(end_, drained_);
    result_.visits = shares_.visits();
  }

  const SimulatedMachine& machine_;
  const SimulatedCall& call_;
  const SimulationLimits& limits_;
  Tiling tiling_;
  FairShares shares_;
  std::vector<Process> processes_;
  std::vector<int> endpoint_channels_;  ///< by process and endpoint
  std::vector<Channel> channels_;
  std::vector<Job> jobs_;
  std::vector<int> free_jobs_;
  std::vector<Transfer> transfers_;  ///< by FairShares' number
  TimedHeap ends_;                   ///< of transfers
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<int> awake_;  ///< processes that may be able to start
  double now_ = 0;
  double end_ = 0;  ///< of the last step so far
  double drained_ = 0;
  std::uint64_t order_ = 0;
  std::uint64_t steps_expected_ = 0;
  std::uint64_t told_ = 0;
  SimulatedRun result_;
};

/// The first rounds, and as long for each of the others as rounds more take. Not what the last of one run take: by then lanes that
/// are ahead are done, and leave the links to those that are behind.
Result<SimulatedRun> extrapolated(const Schedule& schedule, const SimulatedMachine& machine, const SimulatedCall& call,
                                  const SimulationLimits& limits, std::uint64_t rounds) {
  constexpr double kPartOfHalf = 1.0 / 3;
  SimulationLimits of_half = limits;
  SimulationLimits of_all = limits;
  of_half.trace_max = 0;
  if (limits.progress) {
    of_half.progress = [&](double part) { return limits.progress(kPartOfHalf * part); };
    of_all.progress = [&](double part) { return limits.progress(kPartOfHalf + (1 - kPartOfHalf) * part); };
  }
  const std::uint64_t half_rounds = rounds / 2;
  TUTTI_TRY_ASSIGN(const SimulatedRun half, Run(schedule, machine, call, of_half, half_rounds).run());
  Run all(schedule, machine, call, of_all);
  TUTTI_TRY_ASSIGN(SimulatedRun run, all.run());
  run.us += all.rounds_left() * (run.us - half.us) / static_cast<double>(rounds - half_rounds);
  return run;
}

}  // namespace

Result<SimulatedRun> simulate(const Schedule& schedule, const SimulatedMachine& machine, const SimulatedCall& call,
                              const SimulationLimits& limits) {
  Run run(schedule, machine, call, limits);
  if (run.rounds_left() == 0) return run.run();
  return extrapolated(schedule, machine, call, limits, run.rounds_run());
}

}  // namespace tutti::schedule
