// Calls as lanes: launches of tutti_lanes, which run the planner's rings, trees and the machine's own trees through FIFOs (device_fifos.h).
// Each message goes between two GPUs that reach each other's memory; the others need not.
#pragma once

#include "comm/comm.h"
#include "comm/device_fifos.h"
#include "comm/device_path.h"
#include "cuda/device.h"
#include "planner/plan.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

namespace tutti::comm {

/// The communicator's rules with what kernels do as lanes alone, or nothing of a collective that they cannot do: ring, tree and packed trees
/// and pairs, where all messages go along the links. Of these NCCL_ALGO chooses, if it names some of them; else the machine's
/// trees, where there are some, come first.
struct LaneRules {
  planner::Rules rules;
  std::vector<int> ring;                         ///< ring_order()
  std::array<LaneOffer, kCollectives> offers{};  ///< by collective

  bool has(LaneOffer offer) const { return std::ranges::find(offers, offer) != offers.end(); }
  bool serves_nothing() const {
    return std::ranges::all_of(offers, [](LaneOffer offer) { return offer == LaneOffer::kNone; });
  }
};
/// `ring`: in which order a ring may visit the ranks, if somebody knows.
LaneRules lane_rules(const planner::Rules& rules, const DeviceLinks& links, std::span<const int> ring = {});

/// A call takes the room that its program needs; an explanation leaves no trace, as other ranks may not ask for one.
enum class LaneUse : std::uint8_t { kCall, kExplanation };

/// A rank's lanes: which calls it does so, and what it needs for them. Thread-safe.
class DeviceLanes {
 public:
  /// `blocks_max`: that each rank may launch; the same on all ranks, as are the rules and the links.
  DeviceLanes(LaneRules rules, const DeviceLinks& links, int rank, std::uint32_t blocks_max);

  /// The plan by which lanes do the call; nullptr: they do not. All ranks come to the same.
  std::shared_ptr<const planner::Plan> find(const CallArgs& args, LaneUse use = LaneUse::kCall);
  /// What they are to such a call.
  LaneOffer offer(const CallArgs& args, LaneUse use) {
    return find(args, use) ? rules_.offers[static_cast<std::size_t>(args.collective)] : LaneOffer::kNone;
  }

  /// Gives it its memory: a part of a segment, all of whose ranks are connected. `memory`: by rank, as this GPU reaches it.
  Status connect(std::vector<std::byte*> memory, DeviceFifos::Write write);
  /// Of ranks that share a process: each allocates its own ...
  Status allocate(std::shared_ptr<cuda::Device> device);
  /// ... and when all have, one connects them. By rank.
  static Status connect_here(const std::vector<std::shared_ptr<DeviceLanes>>& ranks);

  /// What a launch needs of a rank.
  struct Part {
    std::shared_ptr<const planner::Plan> plan;
    const cuda::LaneHome* homes = nullptr;
    const cuda::LaneProgramReference* programs = nullptr;
  };
  /// After find() has found one, and once connected: its program is on the device then.
  Result<Part> prepare(const CallArgs& args);
  const DeviceFifos& fifos() const { return fifos_; }

 private:
  /// A program of this rank's, or what is known of it.
  struct Program {
    bool fits = false;
    std::size_t at = 0;  ///< in the memory
    bool is_there = false;
  };
  using Key = std::tuple<Collective, const algorithm::Algorithm*, int>;  ///< and the root
  /// What plans depend on here: collective, root, count, bytes of an element, wide wire.
  using CallKey = std::tuple<Collective, int, std::uint64_t, std::uint32_t, bool>;
  static CallKey key_of(const planner::Question& question);
  static constexpr std::size_t kPlansMost = 4096;
  std::optional<planner::Question> question_of(const CallArgs& args) const;
  std::shared_ptr<const planner::Plan> find_plan(const CallArgs& args, LaneUse use);
  Result<planner::Plan> make_plan(const planner::Question& question);
  static Key program_key(const planner::Plan& plan, const planner::Question& question) {
    return {question.request.collective, plan.algorithm, question.request.root};
  }
  std::optional<std::size_t> bytes_for(const planner::Plan& plan, const planner::Question& question) const;
  Program& program_of(const planner::Plan& plan, const planner::Question& question);
  Status put(Program& program, const schedule::RankProgram& lanes) const;

  const LaneRules rules_;
  const DeviceLinks links_;
  const int rank_;
  const DeviceFifos fifos_;
  std::mutex mutex_;                               ///< of all that follows
  std::map<CallKey, planner::Candidate> choices_;  ///< one for each power of two of the count
  std::map<CallKey, std::shared_ptr<const planner::Plan>> plans_;
  std::map<Key, Program> programs_;
  std::size_t used_ = 0;  ///< of the room for programs; counted alike on all ranks
  std::vector<std::byte*> memory_;
  DeviceFifos::Write write_;
  cuda::DeviceMemory own_;
};

/// One launch: ranks of a GPU.
class LanesCall {
 public:
  /// `fingerprint`: of the call, equal on all ranks, which compare it first; nullopt: they have compared.
  LanesCall(const CallArgs& args, int ranks, const DeviceLanes& lanes, const planner::Plan& plan,
            std::optional<std::uint32_t> fingerprint);
  void add(int rank, const cuda::RankHome* home, const DeviceLanes::Part& part, const CallArgs& args);
  Status launch(const cuda::Device& device, cuda::StreamHandle stream);

 private:
  cuda::LanesLaunch launch_;
  DataType type_;
};

}  // namespace tutti::comm
