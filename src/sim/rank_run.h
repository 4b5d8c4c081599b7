// One rank's part of a run: the calls one after the other, and what a user does around each: fill the input, poison the output,
// call, look at the result. A template over the machine; resumable, so that threads, fibers and a loop over all
// ranks can drive it.
#pragma once

#include "planner/plan.h"
#include "protocol/announce.h"
#include "protocol/lane.h"
#include "protocol/lane_storage.h"
#include "sim/area.h"
#include "sim/call_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

namespace tutti::sim {

/// Channels between two ranks, each way.
inline constexpr std::size_t kRunLanes = 2;

/// What all calls of a run share.
struct RunShape {
  int ranks = 2;
  protocol::SlotShape slots{2, 64};
  protocol::LineShape lines{2, 16};
  std::uint64_t first_count = 0;  ///< messages that every channel has carried before
  std::uint32_t sequence_step =
      1;  ///< between calls' numbers; other ones are a mistake, and then no rank waits for room
  bool used_channels_only = false;  ///< no memory between ranks that no plan has a message for: for many ranks
};

/// A call as one rank makes it.
struct RankCall {
  CallCase call;
  planner::Plan plan;
  Value* input = nullptr;
  Value* output = nullptr;
  Value* guard = nullptr;  ///< behind the output, or nullptr where other data of the call is
};

/// The longest input that travels beside an announce line here, and whether a call's inputs do: shorter ones than in the library, so
/// that there are many of both.
inline constexpr std::uint32_t kCarriedBytesMax = 2048;
inline std::uint64_t announced_bytes(const CallCase& c) {
  std::uint32_t blocks = 0;
  for (int r = 0; r < c.request.ranks; ++r) blocks = std::max(blocks, schedule::input_blocks(c.request, r));
  return blocks * c.count * sizeof(Value);
}
inline bool is_one_way(const CallCase& c) {
  return c.protocol == Protocol::kAnnounce && is_rooted(c.request.collective);
}
inline bool is_carried(const CallCase& c) { return announced_bytes(c) > protocol::kAnnouncePayloadBytes / 4; }

/// Of all announcements: mismatched calls are not what is tried here.
inline constexpr std::uint32_t kFingerprint = 0x5eed;

/// Says where its rank is.
class Locator {
 public:
  virtual ~Locator() = default;
  virtual Position position() const = 0;
  /// Messages that the rank has sent to a peer in a lane and that the peer acknowledges.
  virtual std::uint64_t owed(int lane, int peer) const = 0;
};

template <class Machine>
class RankRun final : public Locator {
 public:
  using Progress = protocol::Progress;

  /// What the rank was given; filled by World.
  struct Setup {
    int rank = 0;
    RunShape shape;
    Machine* machine = nullptr;
    std::vector<RankCall> calls;
    std::vector<std::vector<protocol::Channel>> channels;   ///< by lane and peer
    std::vector<std::vector<protocol::PeerBuffers>> peers;  ///< by call and rank, as they really are
    protocol::AnnounceBoard board;
    std::vector<std::byte*> scratch;  ///< by lane
    Value* input = nullptr;           ///< the user's buffers, for all calls: inputs, and outputs in place
    Value* output = nullptr;
    std::size_t input_values = 0;
    std::size_t output_values = 0;
  };

  explicit RankRun(Setup setup) : s_(std::move(setup)), announcer_(s_.board, static_cast<std::uint32_t>(s_.rank)) {}

  /// Does what can be done without waiting. kFailed: aborted, or problem() says what is wrong.
  Progress advance();
  Position position() const override;
  std::uint64_t owed(int lane, int peer) const override {
    return s_.channels[static_cast<std::size_t>(lane)][static_cast<std::size_t>(peer)].owed;
  }
  /// The first wrong value; empty if all is well.
  const std::string& problem() const { return problem_; }
  /// The rank that this one waits for, or -1.
  int waiting_for();
  const RankCall& call() const { return s_.calls[call_]; }

 private:
  Machine& machine() { return *s_.machine; }
  protocol::BufferReferences references() const;
  void fill();
  std::uint32_t sequence() const { return 1 + announced_ * s_.shape.sequence_step; }
  void begin_announcement();
  bool has_room();
  void announce();
  bool open();
  const std::byte* own_input() const;
  bool is_read_by_root_alone() const;
  void finish_by_lines();
  bool buffers_are_as_announced();
  void start_lanes();
  protocol::LaneCall lane_call(std::size_t lane) const;
  Progress advance_lanes();
  bool check();
  Progress blocked() { return machine().aborted() ? Progress::kFailed : Progress::kBlocked; }

  Setup s_;
  std::size_t call_ = 0;
  Phase phase_ = Phase::kFill;
  std::size_t lane_ = 0;
  std::uint32_t announced_ = 0;  ///< calls that were announced and are over
  protocol::Announcer announcer_;
  std::vector<protocol::PeerBuffers> peers_;
  std::vector<protocol::Lane<Machine>> lanes_;
  std::vector<protocol::LaneStorage> storage_{kRunLanes};
  std::vector<bool> lane_done_;
  std::vector<Value> values_;
  std::string problem_;
};

template <class Machine>
protocol::Progress RankRun<Machine>::advance() {
  if (call_ == s_.calls.size()) return Progress::kDone;
  switch (phase_) {
    case Phase::kFill:
      fill();
      phase_ = Phase::kOpen;
      if (opens_with_announcement(call().call.protocol)) begin_announcement();
      return Progress::kAdvanced;
    case Phase::kRoom:
      if (!has_room()) return problem_.empty() ? blocked() : Progress::kFailed;
      announce();
      phase_ = Phase::kOpen;
      return Progress::kAdvanced;
    case Phase::kOpen:
      if (!open()) return problem_.empty() ? blocked() : Progress::kFailed;
      start_lanes();
      phase_ = Phase::kLanes;
      return Progress::kAdvanced;
    case Phase::kLanes: {
      const Progress progress = advance_lanes();
      if (progress == Progress::kBlocked) return blocked();
      if (progress != Progress::kDone) return progress;
      phase_ = Phase::kCheck;
      return Progress::kAdvanced;
    }
    default: break;
  }
  if (!check()) return Progress::kFailed;
  phase_ = Phase::kFill;
  if (opens_with_announcement(call().call.protocol)) ++announced_;
  return ++call_ == s_.calls.size() ? Progress::kDone : Progress::kAdvanced;
}

template <class Machine>
Position RankRun<Machine>::position() const {
  Position p;
  p.call = static_cast<std::uint16_t>(call_);
  p.phase = call_ == s_.calls.size() ? Phase::kOver : phase_;
  if (p.phase != Phase::kLanes || lanes_.empty()) return p;
  const auto lane = static_cast<std::uint32_t>(lane_);
  p.lane = static_cast<std::int8_t>(lane_);
  p.round = static_cast<std::uint32_t>(lanes_[lane_].round());
  p.step = lanes_[lane_].step();
  if (p.round >= call().plan.tiling.rounds(lane) || call().plan.program->lanes[lane_].steps.empty()) {
    p.phase = Phase::kDrain;
  }
  return p;
}

/// The user's turn: whatever lay in its buffers is not needed any more.
template <class Machine>
void RankRun<Machine>::fill() {
  const RankCall& c = call();
  values_.assign(std::max(s_.input_values, s_.output_values), kPoison);
  machine().store_bytes(s_.input, values_.data(), s_.input_values * sizeof(Value));
  machine().store_bytes(s_.output, values_.data(), s_.output_values * sizeof(Value));
  const std::uint32_t blocks = schedule::input_blocks(c.call.request, s_.rank);
  values_.clear();
  for (std::uint32_t b = 0; b < blocks; ++b) {
    for (std::uint64_t i = 0; i < c.call.count; ++i) {
      values_.push_back(input_value(static_cast<int>(call_), s_.rank, b, i));
    }
  }
  machine().store_bytes(c.input, values_.data(), values_.size() * sizeof(Value));
}

template <class Machine>
protocol::BufferReferences RankRun<Machine>::references() const {
  const protocol::PeerBuffers& own = s_.peers[call_][static_cast<std::size_t>(s_.rank)];
  protocol::BufferReferences buffers{};
  buffers.input.address = own.input;
  buffers.output.address = own.output;
  buffers.flags = call().call.in_place ? protocol::kInPlace : 0;
  return buffers;
}

template <class Machine>
void RankRun<Machine>::begin_announcement() {
  const CallCase& c = call().call;
  const auto rank = static_cast<std::uint32_t>(s_.rank);
  const auto root = static_cast<std::uint32_t>(c.request.root);
  const auto ranks = static_cast<std::uint32_t>(s_.shape.ranks);
  const protocol::LinesRead reads = is_one_way(c)
                                        ? protocol::lines_read_one_way(c.request.collective, rank, root, ranks)
                                        : protocol::LinesRead{0, ranks};
  announcer_.begin(sequence(), kFingerprint, reads);
  phase_ = Phase::kRoom;
}

template <class Machine>
bool RankRun<Machine>::has_room() {
  if (s_.shape.sequence_step != 1) return true;
  const protocol::Room room = announcer_.room(machine());
  if (room == protocol::Room::kDiffers && !machine().aborted()) {
    problem_ = fmt::format("call {}: rank {} takes rank {}'s calls for others than its own", call_, s_.rank,
                           announcer_.unseen());
  }
  return room == protocol::Room::kThere;
}

template <class Machine>
void RankRun<Machine>::announce() {
  const RankCall& c = call();
  const std::uint64_t values = schedule::input_blocks(c.call.request, s_.rank) * c.call.count;
  protocol::AnnounceLine& line = announcer_.line();
  if (c.call.protocol != Protocol::kAnnounce) {
    protocol::announce_buffers(machine(), line, references());
  } else if (values != 0 && !is_read_by_root_alone()) {
    std::byte* const beside = s_.board.carried(static_cast<std::uint32_t>(s_.rank), sequence());
    machine().store_bytes(is_carried(c.call) ? beside : line.payload, c.input, values * sizeof(Value));
  }
  announcer_.publish(machine());
}

/// True when the lanes may start; a call that its announce lines finish has none.
template <class Machine>
bool RankRun<Machine>::open() {
  peers_ = s_.peers[call_];
  const Protocol protocol = call().call.protocol;
  if (!opens_with_announcement(protocol)) return true;
  if (!announcer_.advance(machine())) return false;
  if (protocol != Protocol::kAnnounce) return buffers_are_as_announced();
  finish_by_lines();
  return true;
}

/// Of a one-way call: the input of the root, which needs no room beside its line then.
template <class Machine>
bool RankRun<Machine>::is_read_by_root_alone() const {
  const auto rank = static_cast<std::uint32_t>(s_.rank);
  return is_one_way(call().call) && own_input() != nullptr && announcer_.reads().has(rank);
}

/// Where a rank finds its own input, if not in its line: in one-way calls only the root reads its own.
template <class Machine>
const std::byte* RankRun<Machine>::own_input() const {
  const CallCase& c = call().call;
  const bool reads_own = is_carried(c) && (!is_one_way(c) || s_.rank == c.request.root);
  return reads_own ? reinterpret_cast<const std::byte*>(call().input) : nullptr;
}

template <class Machine>
void RankRun<Machine>::finish_by_lines() {
  const CallCase& c = call().call;
  std::vector<const void*> sources(peers_.size());
  protocol::AnnouncedCall announced;
  announced.collective = c.request.collective;
  announced.rank = static_cast<std::uint32_t>(s_.rank);
  announced.root = static_cast<std::uint32_t>(c.request.root);
  announced.sequence = sequence();
  announced.carried = is_carried(c);
  announced.set_block(c.count, sizeof(Value));
  announced.output = reinterpret_cast<std::byte*>(call().output);
  announced.own_input = own_input();
  announced.sources = sources.data();
  protocol::finish_announced(machine(), s_.board, announced);
}

template <class Machine>
bool RankRun<Machine>::buffers_are_as_announced() {
  for (std::size_t r = 0; r < peers_.size(); ++r) {
    const auto& line = s_.board.line(static_cast<std::uint32_t>(r), sequence());
    const protocol::BufferReferences found = protocol::announced_buffers(machine(), line);
    if (found.input.address == peers_[r].input && found.output.address == peers_[r].output) continue;
    problem_ = fmt::format("call {}: rank {} finds other buffers in rank {}'s announce line than that announced", call_,
                           s_.rank, r);
    return false;
  }
  return true;
}

template <class Machine>
void RankRun<Machine>::start_lanes() {
  const bool finished = call().call.protocol == Protocol::kAnnounce;
  lanes_.resize(finished ? 0 : call().plan.program->lanes.size());
  lane_done_.assign(lanes_.size(), false);
  for (lane_ = 0; lane_ < lanes_.size(); ++lane_) {
    protocol::LaneCall made = lane_call(lane_);
    made.workspace = storage_[lane_].workspace(call().plan.program->lanes[lane_].steps, peers_.size(), s_.shape.lines);
    lanes_[lane_].start(made);
  }
  lane_ = 0;
}

template <class Machine>
protocol::LaneCall RankRun<Machine>::lane_call(std::size_t lane) const {
  const RankCall& c = call();
  const schedule::LaneProgram& program = c.plan.program->lanes[lane];
  protocol::LaneCall made;
  made.steps = program.steps.data();
  made.step_count = static_cast<std::uint32_t>(program.steps.size());
  made.endpoints = program.endpoints.data();
  made.tiling = c.plan.tiling;
  made.lane = static_cast<std::uint32_t>(lane);
  made.input = reinterpret_cast<std::byte*>(c.input);
  made.output = reinterpret_cast<std::byte*>(c.output);
  made.scratch = s_.scratch[lane];
  made.channels = const_cast<protocol::Channel*>(s_.channels[lane].data());
  made.slot_shape = s_.shape.slots;
  made.slot_room = s_.shape.slots.slot_bytes;
  made.line_shape = s_.shape.lines;
  made.peers = peers_.data();
  made.direct = c.plan.direct;
  made.lines = c.plan.lines;
  return made;
}

template <class Machine>
protocol::Progress RankRun<Machine>::advance_lanes() {
  bool moved = false;
  bool all = true;
  for (lane_ = 0; lane_ < lanes_.size(); ++lane_) {
    if (lane_done_[lane_]) continue;
    const Progress progress = lanes_[lane_].advance(machine());
    if (progress == Progress::kFailed) return progress;
    lane_done_[lane_] = progress == Progress::kDone;
    moved |= progress != Progress::kBlocked;
    all &= lane_done_[lane_];
  }
  lane_ = 0;
  while (!all && lane_done_[lane_]) ++lane_;
  if (all) return Progress::kDone;
  return moved ? Progress::kAdvanced : Progress::kBlocked;
}

/// The user's turn again: reads the output.
template <class Machine>
bool RankRun<Machine>::check() {
  const RankCall& c = call();
  const std::uint32_t blocks = schedule::output_blocks(c.call.request, s_.rank);
  values_.resize(blocks * c.call.count + 1);
  machine().load_bytes(values_.data(), c.output, blocks * c.call.count * sizeof(Value));
  for (std::uint32_t b = 0; b < blocks; ++b) {
    for (std::uint64_t i = 0; i < c.call.count; ++i) {
      const Value promised = promised_value(static_cast<int>(call_), c.call.request, s_.rank, b, i);
      const Value found = values_[b * c.call.count + i];
      if (found == promised) continue;
      problem_ = fmt::format("wrong result: call {}, rank {}, block {}, element {} is {:#x}{}, not {:#x}", call_,
                             s_.rank, b, i, found, found == kPoison ? " (never written)" : "", promised);
      return false;
    }
  }
  if (!c.guard) return true;
  machine().load_bytes(values_.data(), c.guard, sizeof(Value));
  if (values_[0] == kPoison) return true;
  problem_ =
      fmt::format("written beyond the end: call {}, rank {}, behind the output lies {:#x}", call_, s_.rank, values_[0]);
  return false;
}

template <class Machine>
int RankRun<Machine>::waiting_for() {
  if (call_ == s_.calls.size()) return -1;
  if (phase_ == Phase::kRoom || phase_ == Phase::kOpen) return static_cast<int>(announcer_.unseen());
  if (phase_ != Phase::kLanes) return -1;
  for (std::size_t l = 0; l < lanes_.size(); ++l) {
    if (!lane_done_[l]) return lanes_[l].waiting_for(machine());
  }
  return -1;
}

}  // namespace tutti::sim
