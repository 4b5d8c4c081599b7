#include "planner/size_sweep.h"

#include "algorithm/algorithm.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

namespace tutti::planner {

namespace {

using schedule::ProtocolFigures;

constexpr std::string_view kRows[] = {"oneshot", "twoshot", "ring", "tree", "halving_doubling"};
constexpr std::uint32_t kElementBytes = 4;

/// Beyond so many ranks all pairs have too many messages to be worth simulating, and halving has too many units to build.
constexpr int kAllPairsRanksMax = 128;

MachineCandidate row(std::string_view name, const schedule::Request& request) {
  MachineCandidate candidate;
  candidate.algorithm = name;
  candidate.schedule = algorithm::make_schedule(*algorithm::find(name, request), request);
  candidate.lanes = static_cast<int>(candidate.schedule.shape.lanes);
  return candidate;
}

std::uint64_t blocks_of(Collective collective, int ranks) {
  return collective == Collective::kAllReduce ? 1 : static_cast<std::uint64_t>(ranks);
}

std::vector<std::uint64_t> sizes_of(const Arena& arena, const SweepQuestion& question) {
  std::vector<std::uint64_t> sizes;
  const auto last = static_cast<double>(question.to_bytes);
  for (auto bytes = static_cast<double>(question.from_bytes); bytes <= last * (1 + 1e-9); bytes *= question.factor) {
    const std::uint64_t whole = arena.whole_bytes(static_cast<std::uint64_t>(std::llround(bytes)));
    if (sizes.empty() || sizes.back() != whole) sizes.push_back(whole);
  }
  return sizes;
}

}  // namespace

double bus_factor(Collective collective, int ranks) {
  const double others = ranks - 1;
  return (collective == Collective::kAllReduce ? 2 : 1) * others / ranks;
}

void Arena::add_row(std::string_view name, const topology::Network* network) {
  const schedule::Request request{collective_, ranks_, 0, 0};
  if (algorithm::find(name, request) == nullptr) return;
  if (std::ranges::any_of(candidates_, [&](const MachineCandidate& c) { return c.algorithm == name; })) return;
  const bool chain = name == "ring" || name == "tree";
  if (!chain && ranks_ > kAllPairsRanksMax) {
    left_out_.push_back(fmt::format("{}: not simulated among more than {} ranks", name, kAllPairsRanksMax));
    return;
  }
  // Rings in rank order are no candidate on a machine: the planner finds better ones or none.
  if (network != nullptr && name == "ring") return;
  add(row(name, request));
}

void Arena::add(MachineCandidate candidate) {
  if (links_ && !links_->has_all_routes(candidate)) {
    left_out_.push_back(fmt::format("{}: some ranks reach each other through other ranks only", candidate.label()));
    return;
  }
  candidates_.push_back(std::move(candidate));
}

Arena Arena::of_machine(const topology::Network& network, LinkTable table, const MachinePlan& plan) {
  Arena arena;
  arena.collective_ = plan.question.collective;
  arena.ranks_ = plan.ranks;
  arena.links_ = std::make_shared<MachineLinks>(network, std::move(table));
  arena.left_out_ = plan.left_out;
  // plan_machine() has looked for their ways, rows_alone() has not.
  for (const MachineCandidate& candidate : plan.candidates) arena.add(candidate);
  if (plan.certificate.by_memory()) arena.memory_gbps_ = plan.certificate.gbps;
  for (const std::string_view name : kRows) {
    const auto said = [&](const std::string& reason) { return reason.starts_with(fmt::format("{}:", name)); };
    if (std::ranges::none_of(arena.left_out_, said)) arena.add_row(name, &network);
  }
  for (const MachineCandidate& candidate : arena.candidates_)
    arena.crosses_network_.push_back(arena.links_->crosses_network(candidate) ? 1 : 0);
  return arena;
}

Arena Arena::of_host(Collective collective, int ranks, const HostFigures& figures) {
  Arena arena;
  arena.collective_ = collective;
  arena.ranks_ = ranks;
  arena.host_ = figures;
  for (const std::string_view name : kRows) arena.add_row(name, nullptr);
  arena.crosses_network_.assign(arena.candidates_.size(), 0);
  return arena;
}

std::span<const ProtocolFigures> Arena::protocols() const {
  return links_ ? schedule::gpu_protocols() : schedule::host_protocols();
}

bool Arena::allows(const MachineCandidate& candidate, const ProtocolFigures& protocol) const {
  const auto index = static_cast<std::size_t>(&candidate - candidates_.data());
  return !protocol.direct || crosses_network_[index] == 0;
}

std::uint64_t Arena::whole_bytes(std::uint64_t bytes) const {
  const std::uint64_t block = blocks_of(collective_, ranks_) * kElementBytes;
  return std::max<std::uint64_t>(1, (bytes + block / 2) / block) * block;
}

int Arena::units_at(const MachineCandidate& candidate, const ProtocolFigures& protocol, std::uint64_t bytes) const {
  const int most = candidate.units_most();
  if (most == 0) return 0;
  const double crossing_us = static_cast<double>(bytes) / (candidate.gbps * 1e3);  // of all units of a lane
  const auto slowest = std::ranges::max_element(links_->table(), {}, &TableLink::link_class)->link_class;
  const double hop_us = protocol.branching_hop_us[static_cast<std::size_t>(slowest)];
  // Fewer: the first unit takes longer to come through. More: one shorter than a hop leaves links idle; where turns follow each other
  // (algorithm/tree_turns.h) what is sent in one must be there in the next, its transfer included.
  constexpr double kHopsInTurn = 4;
  const double units = crossing_us / (candidate.rooted.empty() ? hop_us : kHopsInTurn * hop_us);
  int power = 1;
  while (power < most && 2 * power <= units * std::sqrt(2.0)) power *= 2;
  return std::min(power, most);
}

Result<schedule::SimulatedRun> Arena::run(const MachineCandidate& candidate, const ProtocolFigures& protocol,
                                          std::uint64_t bytes, const schedule::SimulationLimits& limits,
                                          bool held) const {
  schedule::SimulatedMachine machine;
  if (links_) {
    machine = links_->machine(candidate, protocol);
  } else {
    machine = host_machine(ranks_, host_.core_gbps, host_.memory_gbps, protocol);
  }
  schedule::SimulatedCall call = MachineLinks::call(candidate, protocol);
  call.count = bytes / (blocks_of(collective_, ranks_) * kElementBytes);
  call.element_bytes = kElementBytes;
  call.held = held || !links_;
  const int repeats = repeats_at(candidate, bytes);
  // Each lane's messages go the way of the lane that it repeats.
  machine.path = [lanes = candidate.lanes, path = std::move(machine.path)](int lane, int from, int to) {
    return path(lane % lanes, from, to);
  };
  const bool as_it_is = repeats == 1 && candidate.units_most() == 0;
  TUTTI_TRY_ASSIGN(schedule::SimulatedRun run,
                   as_it_is ? simulate(candidate.schedule, machine, call, limits)
                            : simulate(schedule_at(candidate, protocol, bytes), machine, call, limits));
  if (memory_gbps_ > 0) run.us = std::max(run.us, call.base_us + static_cast<double>(bytes) / (memory_gbps_ * 1e3));
  return run;
}

int Arena::repeats_at(const MachineCandidate& candidate, std::uint64_t bytes) const {
  constexpr double kLanesWorthwhile = 16;
  constexpr double kShareBytes = 128 << 10;
  constexpr double kStepsMost = 1'000'000;
  const bool is_row = candidate.algorithm == "ring" || candidate.algorithm == "tree";
  const int units = candidate.units_most();
  if (!links_ || (!is_row && units == 0)) return 1;
  double steps = 1;
  for (const schedule::RankProgram& rank : candidate.schedule.ranks) {
    for (const schedule::LaneProgram& lane : rank.lanes) steps += static_cast<double>(lane.steps.size());
  }
  steps *= std::max(1, units);  // of the candidate's own schedule, one
  // Units follow each other through a lane, as many at a time as it has slots: what is faster waits for them.
  constexpr double kLaneGbps = 25;
  const double lanes = std::min(kLanesWorthwhile, static_cast<double>(bytes) / kShareBytes);
  const double times = std::min(lanes / candidate.lanes, kStepsMost / steps);
  const double useful = is_row ? times : std::ceil(candidate.gbps / candidate.lanes / kLaneGbps);
  return static_cast<int>(std::max(1.0, std::min(times, useful)));
}

schedule::Schedule Arena::schedule_at(const MachineCandidate& candidate, const ProtocolFigures& protocol,
                                      std::uint64_t bytes) const {
  const int repeats = repeats_at(candidate, bytes);
  if (candidate.units_most() == 0) return repeated(candidate.schedule, repeats);
  return repeated(full_schedule(candidate, units_at(candidate, protocol, bytes)), repeats);
}

LinkPath Arena::path(std::size_t candidate, int lane, int from, int to) const {
  return links_->crossed(candidates_[candidate], lane, from, to);
}

namespace {

/// Protocols that lost twice in a row to a faster one are not asked at larger sizes: lines, which need twice the bytes.
class Protocols {
 public:
  explicit Protocols(std::size_t count) : losses_(count, 0) {}
  bool is_out(std::size_t protocol) const { return losses_[protocol] >= 2; }
  void won(std::size_t winner) {
    for (std::size_t i = 0; i < losses_.size(); ++i) losses_[i] = i < winner ? losses_[i] + 1 : 0;
  }

 private:
  std::vector<int> losses_;
};

Result<SweptPoint> fastest_protocol(const Arena& arena, const MachineCandidate& candidate, std::uint64_t bytes,
                                    const SweepQuestion& question, const std::function<bool(double)>& progress,
                                    Protocols& protocols) {
  const auto figures = arena.protocols();
  // Direct is never slower than slots.
  const bool direct = std::ranges::any_of(
      figures, [&](const ProtocolFigures& protocol) { return protocol.direct && arena.allows(candidate, protocol); });
  SweptPoint best;
  std::size_t winner = 0;
  for (std::size_t i = 0; i < figures.size(); ++i) {
    const bool outdone = direct && !figures[i].direct && figures[i].wire_bytes <= 1;
    // Twice the bytes on the wire are nothing for large messages, and take long to simulate.
    const bool too_large = figures[i].wire_bytes > 1 && bytes > (std::uint64_t{16} << 20);
    if (too_large || protocols.is_out(i) || outdone || !arena.allows(candidate, figures[i])) continue;
    TUTTI_TRY_ASSIGN(const schedule::SimulatedRun run,
                     arena.run(candidate, figures[i], bytes, {question.work_max, 0, progress}, question.held));
    if (best.us > 0 && run.us >= best.us) continue;
    winner = i;
    best = {bytes, run.us, figures[i].name, arena.units_at(candidate, figures[i], bytes), run.rounds_run < run.rounds};
  }
  protocols.won(winner);
  return best;
}

}  // namespace

Result<SizeSweep> sweep(const Arena& arena, const SweepQuestion& question) {
  if (arena.candidates().empty())
    return error(
        Code::kInvalidArgument,
        fmt::format(
            "there is nothing to simulate: {}; --gpus or --ranks chooses up to {} ranks, for which plans are made",
            fmt::join(arena.left_out(), "; "), kPlannedRanksMax));
  SizeSweep sweep;
  sweep.sizes = sizes_of(arena, question);
  const auto candidates = arena.candidates();
  const double all = static_cast<double>(candidates.size() * sweep.sizes.size());
  for (std::size_t c = 0; c < candidates.size(); ++c) {
    SweptAlgorithm swept{c, {}};
    Protocols protocols(arena.protocols().size());
    for (const std::uint64_t bytes : sweep.sizes) {
      const auto done = static_cast<double>(c * sweep.sizes.size() + swept.points.size());
      std::function<bool(double)> progress;
      if (question.progress) progress = [&](double part) { return question.progress((done + part) / all); };
      TUTTI_TRY_ASSIGN(const SweptPoint point,
                       fastest_protocol(arena, candidates[c], bytes, question, progress, protocols));
      swept.points.push_back(point);
    }
    sweep.algorithms.push_back(std::move(swept));
  }
  for (std::size_t i = 0; i < sweep.sizes.size(); ++i) {
    const auto best =
        std::ranges::min_element(sweep.algorithms, {}, [&](const SweptAlgorithm& a) { return a.points[i].us; });
    sweep.fastest.push_back(best->candidate);
    if (sweep.crossovers.empty() || sweep.crossovers.back().candidate != best->candidate)
      sweep.crossovers.push_back({sweep.sizes[i], best->candidate});
  }
  return sweep;
}

schedule::Schedule repeated(const schedule::Schedule& schedule, int times) {
  schedule::Schedule made = schedule;
  made.shape.lanes *= static_cast<std::uint32_t>(times);
  for (schedule::RankProgram& rank : made.ranks) {
    const std::vector<schedule::LaneProgram> lanes = rank.lanes;
    for (int i = 1; i < times; ++i) rank.lanes.insert(rank.lanes.end(), lanes.begin(), lanes.end());
  }
  return made;
}

MachinePlan rows_alone(const topology::Network& network, const MachineQuestion& question) {
  MachinePlan plan;
  plan.question = question;
  plan.ranks = static_cast<int>(network.compute.size());
  const schedule::Request request{question.collective, plan.ranks, 0, 0};
  for (const std::string_view name : {"tree", "ring"}) {
    if (algorithm::find(name, request) != nullptr) plan.candidates.push_back(row(name, request));
  }
  return plan;
}

}  // namespace tutti::planner
