// What each algorithm takes at each size by the simulator, which one is the fastest where, and where one overtakes another.
#pragma once

#include "planner/machine_links.h"
#include "planner/machine_plan.h"
#include "schedule/protocol_figures.h"
#include "schedule/simulator.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::planner {

/// What is simulated on what. A plan's candidates and further rows of the table on a machine's links, or all rows among ranks
/// that share one host's memory.
class Arena {
 public:
  /// The network and the plan outlive it.
  static Arena of_machine(const topology::Network& network, LinkTable table, const MachinePlan& plan);

  /// Each rank has a core that copies core_gbps; all share the memory, which copies memory_gbps.
  struct HostFigures {
    double core_gbps = 60;
    double memory_gbps = 120;
  };
  static Arena of_host(Collective collective, int ranks, const HostFigures& figures);

  Collective collective() const { return collective_; }
  int ranks() const { return ranks_; }
  std::span<const MachineCandidate> candidates() const { return candidates_; }
  const std::vector<std::string>& left_out() const { return left_out_; }
  std::span<const schedule::ProtocolFigures> protocols() const;

  bool allows(const MachineCandidate& candidate, const schedule::ProtocolFigures& protocol) const;
  /// Of packed trees, the units of a round: as many as are no shorter than a hop, up to what large messages need; else 0.
  int units_at(const MachineCandidate& candidate, const schedule::ProtocolFigures& protocol, std::uint64_t bytes) const;
  /// How often rings and trees run beside themselves, each time on a part of the data: those of the table as NCCL runs its
  /// channels, since one lane waits for each message before it sends the next; packed trees where a lane would be faster than what
  /// it may have under way.
  int repeats_at(const MachineCandidate& candidate, std::uint64_t bytes) const;
  /// The candidate's schedule as it is run at this size.
  schedule::Schedule schedule_at(const MachineCandidate& candidate, const schedule::ProtocolFigures& protocol,
                                 std::uint64_t bytes) const;
  /// `bytes` as nccl-tests count them: a rank's in an all-reduce, all ranks' together in the others.
  Result<schedule::SimulatedRun> run(const MachineCandidate& candidate, const schedule::ProtocolFigures& protocol,
                                     std::uint64_t bytes, const schedule::SimulationLimits& limits, bool held) const;
  /// Of a machine only.
  MachineLinks& links() const { return *links_; }
  LinkPath path(std::size_t candidate, int lane, int from, int to) const;
  /// What `bytes` come to where all blocks are equally long and hold an element or more.
  std::uint64_t whole_bytes(std::uint64_t bytes) const;

 private:
  void add_row(std::string_view name, const topology::Network* network);
  /// Unless its messages have no way.
  void add(MachineCandidate candidate);

  Collective collective_ = Collective::kAllReduce;
  int ranks_ = 0;
  std::vector<MachineCandidate> candidates_;
  std::vector<char> crosses_network_;  ///< by candidate
  std::vector<std::string> left_out_;
  std::shared_ptr<MachineLinks> links_;  ///< none: of_host
  double memory_gbps_ = 0;  ///< of a machine whose memory allows less than its links, what that allows; else 0
  HostFigures host_;
};

struct SweptPoint {
  std::uint64_t bytes = 0;
  double us = 0;
  std::string_view protocol;
  int units = 0;              ///< of packed trees' rounds, else 0
  bool extrapolated = false;  ///< not all rounds were run
};
struct SweptAlgorithm {
  std::size_t candidate = 0;
  std::vector<SweptPoint> points;  ///< by size
};
/// From this size on, up to the next crossover, this one is the fastest.
struct Crossover {
  std::uint64_t bytes = 0;
  std::size_t candidate = 0;
};
struct SizeSweep {
  std::vector<std::uint64_t> sizes;
  std::vector<SweptAlgorithm> algorithms;  ///< by candidate of the arena
  std::vector<std::size_t> fastest;        ///< by size, a candidate
  std::vector<Crossover> crossovers;       ///< the first one from the smallest size
};

struct SweepQuestion {
  std::uint64_t from_bytes = 8;
  std::uint64_t to_bytes = std::uint64_t{1} << 30;
  double factor = 2;
  bool held = false;                 ///< SimulatedCall::held
  std::uint64_t work_max = 200'000;  ///< SimulationLimits::work_max
  std::function<bool(double)> progress;
};

/// kInvalidArgument if the arena has no candidate: the message says what was left out, and why.
Result<SizeSweep> sweep(const Arena& arena, const SweepQuestion& question);

/// nccl-tests' factor from algorithm to bus bandwidth.
double bus_factor(Collective collective, int ranks);

/// The schedule `times` beside itself: as many times the lanes, each with that much less of the data.
schedule::Schedule repeated(const schedule::Schedule& schedule, int times);

/// Candidates for machines too large to plan: rows of the table, ranks in order.
MachinePlan rows_alone(const topology::Network& network, const MachineQuestion& question);

}  // namespace tutti::planner
