// The lane interpreter: runs one rank's step list of one lane over one call's buffers. Written once, for every machine; freestanding,
// so that the GPU's compiler takes it too: what it needs to remember is handed in.
//
// A Machine gives:
//   load_acquire(const uint64_t*), store_release(uint64_t*, uint64_t)   the channels' counts
//   load_word(const uint64_t*), store_word(uint64_t*, uint64_t)         lines: relaxed, one 8-byte atomic
//   reduce(const ReduceArgs&)                                           payload: own, mapped and slots
//   read_remote, write_remote(peer, address, local, bytes) -> bool      payload that only a system call reaches
//   staging(index, bytes) -> std::byte*                                 private tiles, kept from call to call
//   aborted()
//   kCrosses                                                            there if some channels lead to other hosts (Channel::crossing)
//   kLongTileBytes                                                      there if tiles of steps of few sources are longer
// and, for announce.h, load_bytes and store_bytes(to, from, bytes), and prepare_write(address, bytes), a hint: written soon.
#pragma once

#include "base/reduce.h"
#include "protocol/binding.h"
#include "protocol/exchange.h"
#include "protocol/lane_call.h"

#include <cstddef>
#include <cstdint>

namespace tutti::protocol {

enum class Progress : std::uint8_t { kBlocked, kAdvanced, kDone, kFailed };

template <class Machine>
class Lane {
 public:
  /// Tiles of single-copy transfers, and how much is done between two looks at the abort word.
  static constexpr std::size_t kTileBytes = 64 << 10;
  static constexpr std::size_t kBurstBytes = 4 << 20;
  /// Steps of so many sources may have longer tiles: those of more would take much memory, and more room than a core's own cache has.
  static constexpr std::uint32_t kLongTileSources = 4;
  /// The longest message whose successor's slot is asked for early: it must not drive what is in use out of the innermost cache.
  static constexpr std::size_t kPreparedBytes = 16 << 10;
  /// How often an exchange looks for the peer's part, which comes soon where it does, before other lanes get theirs; later on once at a time.
  static constexpr int kExchangeLooks = 64;

  TUTTI_DEVICE_CALL void start(const LaneCall& call) {
    call_ = call;
    rounds_ = call.step_count == 0 ? 0 : call.tiling.rounds(call.lane);
    last_count_ = rounds_ == 0 ? 0 : call.tiling.slab_of(call.lane, rounds_ - 1).count;
    bound_count_ = 0;
    begin();
  }
  /// The last call again, with other buffers of this rank.
  TUTTI_DEVICE_CALL void start_again(std::byte* input, std::byte* output) {
    if (call_.input != input || call_.output != output) bound_count_ = 0;
    call_.input = input;
    call_.output = output;
    begin();
  }

  /// Does what can be done without waiting.
  TUTTI_DEVICE_CALL Progress advance(Machine& machine) {
    if (exchange_.channel != nullptr) return exchange(machine);
    Progress progress = Progress::kBlocked;
    while (round_ < rounds_) {
      const schedule::Step& step = call_.steps[step_];
      if (!ready_ && blocking_peer(machine, step) >= 0) return progress;
      ready_ = true;
      if (!run(machine, step)) return machine.aborted() ? Progress::kFailed : Progress::kAdvanced;
      publish(machine, step);
      progress = Progress::kAdvanced;
      if (++step_ == call_.step_count) {
        step_ = 0;
        ++round_;
        if (round_ < rounds_) bind();
      }
      if (round_ < rounds_) begin_step();
    }
    return drained(machine) ? Progress::kDone : progress;
  }

  /// The peer that the lane waits for, or -1.
  TUTTI_DEVICE_CALL int waiting_for(Machine& machine) {
    if (exchange_.channel != nullptr)
      return given_ && !has_come(machine, exchange_) ? static_cast<int>(exchange_.peer) : -1;
    if (round_ < rounds_) return ready_ ? -1 : blocking_peer(machine, call_.steps[step_]);
    return drained(machine) ? -1 : static_cast<int>(call_.workspace.pulled[pulled_count_ - 1]);
  }

  /// Where the lane is, for whoever explains a run.
  TUTTI_DEVICE_CALL std::uint64_t round() const { return round_; }
  TUTTI_DEVICE_CALL std::uint32_t step() const { return step_; }

 private:
  using Step = schedule::Step;

  /// Whether channels may lead to other hosts.
  static constexpr bool kCrosses = requires { Machine::kCrosses; };

  TUTTI_DEVICE_CALL static std::size_t tile_bytes(const Step& s) {
    if constexpr (requires { Machine::kLongTileBytes; }) {
      if (s.source_count <= kLongTileSources) return Machine::kLongTileBytes;
    }
    return kTileBytes;
  }
  TUTTI_DEVICE_CALL const Side* sources_of(const Step& s) const { return call_.workspace.sides + s.first_source; }
  TUTTI_DEVICE_CALL const Side* sinks_of(const Step& s) const { return call_.workspace.sides + s.first_sink; }

  TUTTI_DEVICE_CALL void begin() {
    round_ = 0;
    step_ = 0;
    pulled_count_ = 0;
    given_ = false;
    if (rounds_ == 0) {
      exchange_ = Exchange{};
      return;
    }
    bind();
    if (exchange_.channel == nullptr) begin_step();
  }
  /// At the start of a round: all but the last are equally long.
  TUTTI_DEVICE_CALL void bind() {
    const std::uint64_t count = round_ + 1 < rounds_ ? call_.tiling.slab : last_count_;
    if (bound_count_ == count) return;
    const Binding binding(call_, count);
    binding.bind();
    if constexpr (kCrosses) binding.cross();
    exchange_ = Exchange{};
    if (rounds_ == 1) {
      binding.make_reductions(kBurstBytes);
      exchange_ = find_exchange(call_);
    }
    bound_count_ = count;
  }

  /// The whole call (exchange.h).
  TUTTI_DEVICE_CALL Progress exchange(Machine& m) {
    if (round_ == rounds_) return Progress::kDone;
    const bool gives = !given_;
    if (gives) give(m, exchange_);
    given_ = true;
    for (int look = 0; !has_come(m, exchange_); ++look) {
      if (look == (gives ? kExchangeLooks : 0)) return gives ? Progress::kAdvanced : Progress::kBlocked;
    }
    ++exchange_.channel->received;
    round_ = rounds_;
    return Progress::kDone;
  }

  TUTTI_DEVICE_CALL void begin_step() {
    ready_ = false;
    done_elements_ = 0;
    bound_ = call_.workspace.steps[step_];
    if constexpr (kCrosses) {
      if (bound_.landing != 0) expect_landing();
    }
    if (!call_.lines) return;
    for (std::uint32_t i = 0; i < call_.steps[step_].source_count; ++i) call_.workspace.arrived[i] = 0;
  }

  // What comes from another host straight to its place.

  TUTTI_DEVICE_CALL const Side& landing_source() const {
    const Step& s = call_.steps[step_];
    return sources_of(s)[first_active(sources_of(s), s.source_count)];
  }
  TUTTI_DEVICE_CALL std::byte* landing_place() const {
    return memory(sinks_of(call_.steps[step_])[bound_.landing - 1]);
  }
  TUTTI_DEVICE_CALL void expect_landing() const {
    const Channel& c = call_.channels[landing_source().peer];
    c.crossing->expected = c.received + 1;
    c.crossing->place = landing_place();
    c.crossing->place_bytes = bound_.length * call_.element_bytes(false);
  }
  TUTTI_DEVICE_CALL bool has_landed() const {
    if (bound_.landing == 0) return false;
    const Channel& c = call_.channels[landing_source().peer];
    return c.crossing->landed == c.received + 1;
  }

  // Waiting.

  /// Takes what has come of a step's lines on the way.
  TUTTI_DEVICE_CALL bool is_open_source(Machine& m, const Side& side, std::uint32_t index) {
    if (side.message == Message::kNone || side.message == Message::kInput) return true;
    const Channel& c = call_.channels[side.peer];
    if (side.message == Message::kLine) {
      return take_line(m, call_.line_shape, c.inlines, c.lines_received + 1, line_tile(index), line_bytes(side),
                       call_.workspace.arrived[index]);
    }
    return m.load_acquire(&c.theirs->tail) > c.received;
  }
  TUTTI_DEVICE_CALL bool is_open_sink(Machine& m, const Side& side) const {
    if (side.message != Message::kSlot && side.message != Message::kLine) return true;
    const Channel& c = call_.channels[side.peer];
    return c.owed - m.load_acquire(&c.theirs->head) < call_.slot_shape.slots;
  }
  TUTTI_DEVICE_CALL int blocking_peer(Machine& m, const Step& s) {
    const Side* const sources = sources_of(s);
    for (std::uint32_t i = 0; i < s.source_count; ++i) {
      if (!is_open_source(m, sources[i], i)) return static_cast<int>(sources[i].peer);
    }
    const Side* const sinks = sinks_of(s);
    for (std::uint32_t i = 0; i < s.sink_count; ++i) {
      if (!is_open_sink(m, sinks[i])) return static_cast<int>(sinks[i].peer);
    }
    return -1;
  }

  // Moving data.

  TUTTI_DEVICE_CALL std::byte* line_tile(std::uint32_t source) const {
    return call_.workspace.line_tiles + source * call_.line_shape.payload_bytes();
  }
  /// Of this step's message, if it is a line.
  TUTTI_DEVICE_CALL std::size_t line_bytes(const Side& side) const {
    return side.way == Way::kLine ? bound_.length * call_.element_bytes(side.wide) : 0;
  }
  TUTTI_DEVICE_CALL std::uint64_t address(const Side& side) const { return side.address + round_ * side.round_bytes; }
  TUTTI_DEVICE_CALL std::byte* memory(const Side& side) const { return reinterpret_cast<std::byte*>(address(side)); }
  /// Where a source lies that no system call has to fetch.
  TUTTI_DEVICE_CALL std::byte* source_memory(const Side& side, std::uint32_t index) const {
    if (side.way == Way::kMemory) return memory(side);
    if (side.way == Way::kLine) return line_tile(index);
    if (kCrosses && landed_) return landing_place();
    const Channel& c = call_.channels[side.peer];
    return c.inbox + slot_of(c, c.acknowledged, message_bytes(side));
  }
  /// nullptr: the sink has no memory.
  TUTTI_DEVICE_CALL std::byte* sink_memory(const Side& side) const {
    if (side.way == Way::kMemory) return memory(side);
    return side.way == Way::kSlot ? outslot(call_.channels[side.peer], message_bytes(side)) : nullptr;
  }
  /// Of the next message.
  TUTTI_DEVICE_CALL std::byte* outslot(const Channel& c, std::size_t bytes) const {
    return c.outbox + slot_of(c, c.owed, bytes);
  }
  /// Where message `number` lies. In a slot that has room for several as long, they take turns: what is written is then longest out of
  /// use, and less likely in the reader's own cache, which would have to give it up first.
  TUTTI_DEVICE_CALL std::size_t slot_of(const Channel& c, std::uint64_t number, std::size_t bytes) const {
    std::size_t at = number % call_.slot_shape.slots * call_.slot_shape.slot_bytes;
    if (bytes < call_.turns_from_bytes || (kCrosses && c.crossing != nullptr)) return at;
    std::uint64_t turn = number / call_.slot_shape.slots;
    for (std::size_t room = call_.slot_room / 2; room >= bytes; room /= 2, turn /= 2) at += turn % 2 * room;
    return at;
  }
  TUTTI_DEVICE_CALL std::size_t message_bytes(const Side& side) const {
    return bound_.length * call_.element_bytes(side.wide);
  }
  /// Where the burst starts in a buffer of this width.
  TUTTI_DEVICE_CALL std::size_t done_bytes(bool wide) const { return done_elements_ * call_.element_bytes(wide); }

  /// Moves the data of a step; false if it stopped early (abort, or to let others run).
  TUTTI_DEVICE_CALL bool run(Machine& m, const Step& s) {
    if (!bound_.moves) return true;
    if (bound_.ready_made) {
      m.reduce(call_.workspace.reductions[step_]);
      return true;
    }
    if constexpr (kCrosses) landed_ = has_landed();
    const std::uint64_t most = (bound_.tiles ? tile_bytes(s) : kBurstBytes) / call_.element_bytes(call_.wide_wire);
    while (done_elements_ < bound_.length) {
      const bool to_streamed = bound_.streams && done_elements_ < bound_.streamed;
      const std::uint64_t left = (to_streamed ? bound_.streamed : bound_.length) - done_elements_;
      const std::uint64_t now = left < most ? left : most;
      if (!(bound_.fetches ? fetch(m, s, now) : burst(m, s, now))) return false;
      done_elements_ += now;
      if (done_elements_ < bound_.length && m.aborted()) return false;
    }
    return true;
  }

  TUTTI_DEVICE_CALL bool fetch(Machine& m, const Step& s, std::uint64_t count) {
    const Side& source = sources_of(s)[first_active(sources_of(s), s.source_count)];
    const Side& sink = sinks_of(s)[first_active(sinks_of(s), s.sink_count)];
    const std::size_t at = done_bytes(false);
    return m.read_remote(source.peer, address(source) + at, memory(sink) + at, count * call_.element_bytes(false));
  }

  TUTTI_DEVICE_CALL bool burst(Machine& m, const Step& s, std::uint64_t count) {
    const LaneWorkspace& w = call_.workspace;
    ReduceArgs args;
    args.count = count;
    args.divisor = s.finish ? call_.divisor : 0;
    if (call_.wide_wire) {
      args.wide_sources = w.wide_sources;
      args.wide_destinations = w.wide_sinks;
    }
    if (!gather_sources(m, s, args)) return false;
    gather_sinks(m, s, args);
    if (args.destination_count != 0 && !is_identity(args)) m.reduce(args);
    return !bound_.scatters || scatter_sinks(m, s, args);
  }

  TUTTI_DEVICE_CALL bool gather_sources(Machine& m, const Step& s, ReduceArgs& args) {
    const LaneWorkspace& w = call_.workspace;
    const Side* const sides = sources_of(s);
    for (std::uint32_t i = 0; i < s.source_count; ++i) {
      const Side& side = sides[i];
      if (side.way == Way::kNone) continue;
      const std::size_t at = done_bytes(side.wide);
      std::byte* pointer = nullptr;
      if (side.way == Way::kRemote) {
        pointer = m.staging(i, tile_bytes(s));
        const std::size_t bytes = args.count * call_.element_bytes(false);
        if (!m.read_remote(side.peer, address(side) + at, pointer, bytes)) return false;
      } else {
        pointer = source_memory(side, i) + at;
      }
      w.source_pointers[args.source_count] = pointer;
      w.scales[args.source_count] = side.scale;
      if (call_.wide_wire) w.wide_sources[args.source_count] = side.wide;
      if (side.scale) args.scales = w.scales;
      ++args.source_count;
    }
    args.sources = w.source_pointers;
    return true;
  }
  /// Of each width that a sink without memory needs, one destination has memory: a tile where no sink of that width does.
  TUTTI_DEVICE_CALL void gather_sinks(Machine& m, const Step& s, ReduceArgs& args) {
    const Side* const sides = sinks_of(s);
    args.destinations = call_.workspace.sink_pointers;
    sums_[0] = sums_[1] = nullptr;
    if (bound_.streams) {
      for (std::uint32_t i = 0; i < s.sink_count; ++i) {
        if (is_streamed(sides[i])) add_sink(args, sides[i], i);
      }
      args.streamed_count = args.destination_count;
    }
    for (std::uint32_t i = 0; i < s.sink_count; ++i) {
      if (!is_streamed(sides[i])) add_sink(args, sides[i], i);
    }
    if (!bound_.scatters) return;
    for (std::uint32_t i = 0; i < s.sink_count; ++i) {
      const Side& side = sides[i];
      if ((side.way != Way::kLine && side.way != Way::kRemote) || sums_[side.wide]) continue;
      add_destination(args, m.staging(s.source_count + (side.wide ? 1 : 0), tile_bytes(s)), side.wide);
    }
  }
  TUTTI_DEVICE_CALL bool is_streamed(const Side& side) const {
    return side.streamed && (side.way == Way::kSlot || done_elements_ < bound_.streamed);
  }
  TUTTI_DEVICE_CALL void add_sink(ReduceArgs& args, const Side& side, std::uint32_t index) {
    if (kCrosses && landed_ && index + 1 == bound_.landing) return;  // it is there
    std::byte* const pointer = sink_memory(side);
    if (pointer) add_destination(args, pointer + done_bytes(side.wide), side.wide);
  }
  TUTTI_DEVICE_CALL void add_destination(ReduceArgs& args, std::byte* pointer, bool wide) {
    if (!sums_[wide]) sums_[wide] = pointer;
    if (call_.wide_wire) call_.workspace.wide_sinks[args.destination_count] = wide;
    call_.workspace.sink_pointers[args.destination_count++] = pointer;
  }
  TUTTI_DEVICE_CALL bool scatter_sinks(Machine& m, const Step& s, const ReduceArgs& args) {
    const Side* const sides = sinks_of(s);
    for (std::uint32_t i = 0; i < s.sink_count; ++i) {
      const Side& side = sides[i];
      const std::byte* const sum = sums_[side.wide];
      const std::size_t bytes = args.count * call_.element_bytes(side.wide);
      if (side.way == Way::kLine) {
        const Channel& c = call_.channels[side.peer];
        send_line(m, call_.line_shape, c.outlines, next_line(c), sum, bytes);
      }
      if (side.way != Way::kRemote) continue;
      if (!m.write_remote(side.peer, address(side) + done_bytes(false), sum, bytes)) return false;
    }
    return true;
  }
  TUTTI_DEVICE_CALL static std::uint64_t next_line(const Channel& c) { return c.lines_sent + 1; }

  // Telling the peers.

  TUTTI_DEVICE_CALL void publish(Machine& m, const Step& s) {
    const Side* const sources = sources_of(s);
    for (std::uint32_t i = 0; i < s.source_count; ++i) {
      if (sources[i].message == Message::kNone) continue;
      Channel& c = call_.channels[sources[i].peer];
      ++c.received;
      if (sources[i].message == Message::kLine) ++c.lines_received;
      if (sources[i].message != Message::kPush) m.store_release(&c.mine->head, ++c.acknowledged);
    }
    const Side* const sinks = sinks_of(s);
    for (std::uint32_t i = 0; i < s.sink_count; ++i) {
      if (sinks[i].message != Message::kNone) publish_message(m, sinks[i]);
    }
  }
  TUTTI_DEVICE_CALL void publish_message(Machine& m, const Side& side) {
    Channel& c = call_.channels[side.peer];
    ++c.sent;
    if (side.message != Message::kPush) ++c.owed;
    if (side.message == Message::kLine) {
      // One with data has gone already.
      if (line_bytes(side) == 0) send_line(m, call_.line_shape, c.outlines, next_line(c), nullptr, 0);
      ++c.lines_sent;
      return;
    }
    if constexpr (kCrosses) {
      if (c.crossing != nullptr) note_crossing(c, side);
    }
    if (side.message == Message::kPull || side.message == Message::kInput) remember_pull(c, side.peer);
    if (side.message != Message::kInput) m.store_release(&c.mine->tail, c.sent);
    if (side.way == Way::kSlot) prepare_slot(m, c, bound_.length * call_.element_bytes(side.wide));
  }
  /// Of the message that publish_message is about to publish.
  TUTTI_DEVICE_CALL void note_crossing(const Channel& c, const Side& side) const {
    const bool lent = side.way == Way::kLent;
    const std::size_t bytes = side.way == Way::kSlot || lent ? bound_.length * call_.element_bytes(side.wide) : 0;
    const std::uint64_t slot = (c.owed - 1) % call_.slot_shape.slots;
    c.crossing->bytes[slot] = static_cast<std::uint32_t>(bytes);
    c.crossing->from[slot] = lent ? memory(side) : nullptr;
  }
  /// The slot of the next message, which will be as long: a short one takes less time to write than its lines take to come.
  TUTTI_DEVICE_CALL void prepare_slot(Machine& m, const Channel& c, std::size_t bytes) const {
    if (bytes <= kPreparedBytes) m.prepare_write(outslot(c, bytes), bytes);
  }
  TUTTI_DEVICE_CALL void remember_pull(Channel& c, std::uint32_t peer) {
    if (!c.draining) call_.workspace.pulled[pulled_count_++] = peer;
    c.draining = true;
    c.unread_until = c.owed;
  }

  TUTTI_DEVICE_CALL bool drained(Machine& m) {
    while (pulled_count_ != 0) {
      Channel& c = call_.channels[call_.workspace.pulled[pulled_count_ - 1]];
      if (m.load_acquire(&c.theirs->head) < c.unread_until) return false;
      c.draining = false;
      --pulled_count_;
    }
    return true;
  }

  LaneCall call_;
  std::uint64_t rounds_ = 0;
  std::uint64_t last_count_ = 0;   ///< elements of the last round
  std::uint64_t bound_count_ = 0;  ///< elements of the rounds that the workspace's sides and steps are for; 0: of none
  std::uint64_t round_ = 0;
  std::uint32_t step_ = 0;
  bool ready_ = false;
  BoundStep bound_;      ///< the current step
  bool landed_ = false;  ///< its data has come to its place already
  std::uint64_t done_elements_ = 0;
  std::uint32_t pulled_count_ = 0;
  Exchange exchange_;
  bool given_ = false;             ///< of an exchange: what this rank does for the other one
  const std::byte* sums_[2] = {};  ///< by width: the burst's sum, for sinks that have no memory
};

}  // namespace tutti::protocol
