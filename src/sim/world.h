// All ranks of a run: their buffers, channels and announce lines, and the plans of their calls. A template over the machine.
#pragma once

#include "planner/plan.h"
#include "sim/rank_run.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

namespace tutti::sim {

/// The plan of a call at each rank. kInvalidUsage where the algorithm cannot do it this way.
Result<std::vector<planner::Plan>> make_plans(const RunShape& shape, const CallCase& call);

/// One call with its plans, by rank.
struct PlannedCall {
  CallCase call;
  std::vector<planner::Plan> plans;
};

/// Of a rank's buffers, which all its calls share: values, and bytes of scratch in each lane.
struct BufferSizes {
  std::uint64_t input = 0;
  std::uint64_t output = 0;
  std::size_t scratch = 0;
};
BufferSizes buffer_sizes(const std::vector<PlannedCall>& calls, int rank);

/// The most that a World takes of a Memory.
std::size_t world_bytes(const RunShape& shape, const std::vector<PlannedCall>& calls);

template <class Machine>
class World {
 public:
  using Run = RankRun<Machine>;

  /// `machines`: one per rank, for as long as the world lives. Memory comes from `source`.
  World(const RunShape& shape, const std::vector<PlannedCall>& calls, MemorySource& source,
        const std::vector<Machine*>& machines)
      : shape_(shape), calls_(calls), source_(source) {
    make_channels();
    std::vector<typename Run::Setup> setups;
    for (int r = 0; r < shape.ranks; ++r) setups.push_back(setup(r, machines[static_cast<std::size_t>(r)]));
    for (typename Run::Setup& s : setups) {
      for (std::size_t c = 0; c < calls.size(); ++c) s.peers.push_back(peers_of(setups, c));
    }
    for (typename Run::Setup& s : setups) ranks_.emplace_back(std::move(s));
  }

  Run& rank(int r) { return ranks_[static_cast<std::size_t>(r)]; }
  int ranks() const { return shape_.ranks; }

 private:
  using Setup = typename Run::Setup;
  static constexpr std::size_t kLanes = kRunLanes;

  struct Wire {
    protocol::PairLine* counts = nullptr;
    std::byte* slots = nullptr;
    std::uint64_t* lines = nullptr;
  };

  template <class T>
  T* take(std::size_t count, const Area& area) {
    return reinterpret_cast<T*>(source_.take(count * sizeof(T), area));
  }

  /// What each rank writes for each other, in each lane.
  void make_channels() {
    const int n = shape_.ranks;
    for (int lane = 0; lane < static_cast<int>(kLanes); ++lane) {
      for (int from = 0; from < n; ++from) {
        for (int to = 0; to < n; ++to)
          wires_.push_back(from == to || shape_.used_channels_only ? Wire{} : make_wire(lane, from, to));
      }
    }
    if (shape_.used_channels_only) make_used_wires();
    const auto lines = protocol::kAnnounceDepth * static_cast<std::size_t>(n);
    board_.lines = take<protocol::AnnounceLine>(
        lines, {AreaKind::kAnnounce, 0, n, -1, static_cast<std::uint32_t>(sizeof(protocol::AnnounceLine))});
    board_.ranks = static_cast<std::uint32_t>(n);
    board_.input_stride = kCarriedBytesMax;
    board_.inputs = source_.take(lines * kCarriedBytesMax, {AreaKind::kCarried, 0, n, -1, kCarriedBytesMax});
  }
  /// Both ways: acknowledgements go against the messages.
  void make_used_wires() {
    for (const PlannedCall& call : calls_) {
      if (call.call.protocol == Protocol::kAnnounce) continue;  // its plan is not run
      for (int rank = 0; rank < shape_.ranks; ++rank) {
        const schedule::RankProgram& program = *call.plans[static_cast<std::size_t>(rank)].program;
        for (std::size_t lane = 0; lane < program.lanes.size(); ++lane) {
          for (const schedule::Endpoint& end : program.lanes[lane].endpoints) {
            if (end.place != schedule::Place::kPeer) continue;
            const int peer = static_cast<int>(end.peer);
            make_missing_wire(lane, rank, peer);
            make_missing_wire(lane, peer, rank);
          }
        }
      }
    }
  }
  void make_missing_wire(std::size_t lane, int from, int to) {
    Wire& w = wires_[index_of(lane, from, to)];
    if (w.counts == nullptr) w = make_wire(static_cast<int>(lane), from, to);
  }
  Wire make_wire(int lane, int from, int to) {
    Wire w;
    w.counts = take<protocol::PairLine>(1, {AreaKind::kCounts, from, to, lane});
    w.counts->tail = shape_.first_count;
    w.counts->head = shape_.first_count;
    w.slots = source_.take(shape_.slots.bytes(), {AreaKind::kSlots, from, to, lane, shape_.slots.slot_bytes});
    w.lines = take<std::uint64_t>(shape_.lines.bytes() / sizeof(std::uint64_t),
                                  {AreaKind::kLines, from, to, lane, shape_.lines.words * 8});
    return w;
  }
  std::size_t index_of(std::size_t lane, int from, int to) const {
    const auto n = static_cast<std::size_t>(shape_.ranks);
    return (lane * n + static_cast<std::size_t>(from)) * n + static_cast<std::size_t>(to);
  }
  const Wire& wire(std::size_t lane, int from, int to) const { return wires_[index_of(lane, from, to)]; }
  protocol::Channel channel(std::size_t lane, int me, int peer) const {
    const Wire& out = wire(lane, me, peer);
    const Wire& in = wire(lane, peer, me);
    protocol::Channel c;
    c.mine = out.counts;
    c.theirs = in.counts;
    c.outbox = out.slots;
    c.inbox = in.slots;
    c.outlines = out.lines;
    c.inlines = in.lines;
    c.sent = shape_.first_count;
    c.received = shape_.first_count;
    c.owed = shape_.first_count;
    c.acknowledged = shape_.first_count;
    return c;
  }

  Setup setup(int r, Machine* machine) {
    Setup s;
    s.rank = r;
    s.shape = shape_;
    s.machine = machine;
    s.board = board_;
    s.channels.resize(kLanes);
    for (std::size_t l = 0; l < kLanes; ++l) {
      for (int p = 0; p < shape_.ranks; ++p) s.channels[l].push_back(p == r ? protocol::Channel{} : channel(l, r, p));
    }
    place_buffers(s);
    return s;
  }

  void place_buffers(Setup& s) {
    const BufferSizes sizes = buffer_sizes(calls_, s.rank);
    s.input_values = sizes.input;
    s.output_values = sizes.output;
    s.input = take<Value>(s.input_values, {AreaKind::kInput, s.rank});
    s.output = take<Value>(s.output_values, {AreaKind::kOutput, s.rank});
    for (int l = 0; l < static_cast<int>(kLanes); ++l) {
      s.scratch.push_back(source_.take(sizes.scratch, {AreaKind::kScratch, s.rank, -1, l}));
    }
    for (const PlannedCall& c : calls_) s.calls.push_back(rank_call(s, c));
  }

  /// In place, a block of the output is where the input lies, or the other way round: NCCL's positions.
  static RankCall rank_call(const Setup& s, const PlannedCall& c) {
    RankCall made{c.call, c.plans[static_cast<std::size_t>(s.rank)], s.input, s.output, nullptr};
    const std::uint64_t in = schedule::input_blocks(c.call.request, s.rank) * c.call.count;
    const std::uint64_t out = schedule::output_blocks(c.call.request, s.rank) * c.call.count;
    if (c.call.in_place && in != 0 && out != 0) {
      made.output = s.input;
      const std::uint64_t offset = static_cast<std::uint64_t>(s.rank) * c.call.count;
      if (in < out) made.input += offset;
      if (out < in) made.output += offset;
    }
    const bool inside = made.output + out < made.input + in && made.output + out >= made.input;
    if (!inside) made.guard = made.output + out;
    return made;
  }

  std::vector<protocol::PeerBuffers> peers_of(const std::vector<Setup>& setups, std::size_t call) const {
    std::vector<protocol::PeerBuffers> peers;
    const bool mapped = calls_[call].call.protocol != Protocol::kSingleCopy;
    for (const Setup& s : setups) {
      peers.push_back({reinterpret_cast<std::uint64_t>(s.calls[call].input),
                       reinterpret_cast<std::uint64_t>(s.calls[call].output), mapped, nullptr});
    }
    return peers;
  }

  RunShape shape_;
  const std::vector<PlannedCall>& calls_;
  MemorySource& source_;
  std::vector<Wire> wires_;  ///< by lane, writer and reader
  protocol::AnnounceBoard board_;
  std::deque<Run> ranks_;
};

}  // namespace tutti::sim
