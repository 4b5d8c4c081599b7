// Binding: what the steps of a lane come to in one call, worked out once for all rounds of one length, so that running a step
// neither divides nor decides. Where the data of each endpoint lies, what its message needs, and which ends have work at all.
#pragma once

#include "protocol/lane_call.h"

namespace tutti::protocol {

/// The first side that has data to move; 0 if none has.
TUTTI_DEVICE_CALL inline std::uint32_t first_active(const Side* sides, std::uint32_t count) {
  for (std::uint32_t i = 0; i < count; ++i) {
    if (sides[i].way != Way::kNone) return i;
  }
  return 0;
}

/// Whether nothing has to be done.
TUTTI_DEVICE_CALL inline bool is_identity(const ReduceArgs& a) {
  return a.source_count == 1 && a.destination_count == 1 && a.sources[0] == a.destinations[0] && !a.scales &&
         a.divisor == 0;
}

class Binding {
 public:
  /// For rounds that cover `slab_count` elements.
  TUTTI_DEVICE_CALL Binding(const LaneCall& call, std::uint64_t slab_count)
      : call_(call),
        slab_count_(slab_count),
        unit_count_(call.tiling.unit_count(slab_count)),
        share_offset_(call.tiling.share(call.lane).offset) {}

  /// Fills the workspace's sides and steps.
  TUTTI_DEVICE_CALL void bind() const {
    for (std::uint32_t s = 0; s < call_.step_count; ++s) bind(call_.steps[s], call_.workspace.steps[s]);
  }
  /// After bind(), on machines with channels to other hosts: no copy between a buffer and a slot where none is needed.
  TUTTI_DEVICE_CALL void cross() const {
    for (std::uint32_t s = 0; s < call_.step_count; ++s) cross(s);
  }

  /// After both, for a call of one round: what steps reduce from memory to memory, up to `most` bytes each, does not change from one
  /// such call to the next.
  TUTTI_DEVICE_CALL void make_reductions(std::size_t most) const {
    if (call_.workspace.reductions == nullptr) return;
    for (std::uint32_t s = 0; s < call_.step_count; ++s) make_reduction(s, most);
  }

 private:
  using Endpoint = schedule::Endpoint;
  using Place = schedule::Place;
  using Direct = schedule::Direct;

  TUTTI_DEVICE_CALL void bind(const schedule::Step& s, BoundStep& bound) const {
    const Endpoint* const sources = call_.endpoints + s.first_source;
    const Endpoint* const sinks = call_.endpoints + s.first_sink;
    Side* const source_sides = call_.workspace.sides + s.first_source;
    Side* const sink_sides = call_.workspace.sides + s.first_sink;
    for (std::uint32_t i = 0; i < s.source_count; ++i) source_sides[i] = source_side(sources[i]);
    for (std::uint32_t i = 0; i < s.sink_count; ++i) sink_sides[i] = sink_side(sinks[i]);
    for (std::uint32_t i = 0; i < s.source_count; ++i) {
      if (source_sides[i].message == Message::kPush) take_pushed(source_sides[i], sinks, sink_sides, s.sink_count);
    }
    bound = BoundStep{};
    bound.length = length(s);
    bound.streamed = streamed_elements(bound.length);
    std::uint32_t active_sources = 0;
    std::uint32_t active_sinks = 0;
    for (std::uint32_t i = 0; i < s.source_count; ++i) {
      active_sources += source_sides[i].way != Way::kNone;
      bound.tiles |= source_sides[i].way == Way::kRemote;
    }
    for (std::uint32_t i = 0; i < s.sink_count; ++i) {
      active_sinks += sink_sides[i].way != Way::kNone;
      sink_sides[i].streamed |= streams_slot(sink_sides[i], bound.length);
      bound.streams |= sink_sides[i].streamed;
      bound.scatters |= sink_sides[i].way == Way::kLine || sink_sides[i].way == Way::kRemote;
    }
    bound.moves = bound.length != 0 && active_sources != 0 && active_sinks != 0;
    const Side& source = source_sides[first_active(source_sides, s.source_count)];
    const Side& sink = sink_sides[first_active(sink_sides, s.sink_count)];
    bound.fetches = bound.moves && active_sources == 1 && active_sinks == 1 && source.way == Way::kRemote &&
                    !source.scale && sink.way == Way::kMemory && !(s.finish && call_.divisor);
    bound.tiles = (bound.tiles || bound.scatters) && !bound.fetches;
  }

  /// The data was pushed into my one local sink: what else the step feeds reads from there.
  TUTTI_DEVICE_CALL void take_pushed(Side& source, const Endpoint* sinks, Side* sink_sides, std::uint32_t count) const {
    for (std::uint32_t i = 0; i < count && source.way == Way::kNone; ++i) {
      if (sinks[i].place != Place::kOutput || sinks[i].width == 0) continue;
      const Message message = source.message;
      const std::uint32_t peer = source.peer;
      source = sink_sides[i];
      source.message = message;
      source.peer = peer;
      sink_sides[i].way = Way::kNone;
    }
  }

  TUTTI_DEVICE_CALL void make_reduction(std::uint32_t at, std::size_t most) const {
    const schedule::Step& s = call_.steps[at];
    BoundStep& bound = call_.workspace.steps[at];
    if (!bound.moves || bound.tiles || bound.fetches || bound.streams || bound.landing != 0 || call_.wide_wire) return;
    if (bound.length * call_.element_bytes(false) > most) return;
    ReduceArgs& args = call_.workspace.reductions[at];
    args = ReduceArgs{};
    args.count = bound.length;
    args.divisor = s.finish ? call_.divisor : 0;
    void** const sources = call_.workspace.pointers + s.first_source;
    void** const sinks = call_.workspace.pointers + s.first_sink;
    if (!point(s.first_source, s.source_count, sources, args.source_count)) return;
    if (!point(s.first_sink, s.sink_count, sinks, args.destination_count)) return;
    args.sources = sources;
    args.destinations = sinks;
    bound.ready_made = !is_identity(args);
  }
  /// Where the sides are that have data; false if one is not in memory as it is.
  TUTTI_DEVICE_CALL bool point(std::uint32_t first, std::uint32_t count, void** pointers, int& found) const {
    for (std::uint32_t i = first; i < first + count; ++i) {
      const Side& side = call_.workspace.sides[i];
      if (side.way == Way::kNone) continue;
      if (side.way != Way::kMemory || side.scale != nullptr) return false;
      pointers[found++] = reinterpret_cast<void*>(side.address);
    }
    return true;
  }

  // To and from other hosts.

  TUTTI_DEVICE_CALL bool crosses(const Side& side) const {
    return side.way == Way::kSlot && !side.wide && call_.channels[side.peer].crossing != nullptr;
  }
  TUTTI_DEVICE_CALL bool is_in_buffer(const Endpoint& e, const Side& side) const {
    return side.way == Way::kMemory && !side.wide && (e.place == Place::kInput || e.place == Place::kOutput);
  }

  TUTTI_DEVICE_CALL void cross(std::uint32_t at) const {
    const schedule::Step& s = call_.steps[at];
    BoundStep& bound = call_.workspace.steps[at];
    if (!bound.moves || bound.fetches || bound.tiles) return;
    const Side* const sources = call_.workspace.sides + s.first_source;
    Side* const sinks = call_.workspace.sides + s.first_sink;
    std::uint32_t active = 0;
    for (std::uint32_t i = 0; i < s.source_count; ++i) active += sources[i].way != Way::kNone;
    const std::uint32_t first = first_active(sources, s.source_count);
    const bool as_it_is = active == 1 && sources[first].scale == nullptr && !(s.finish && call_.divisor);
    const std::uint32_t kept = first_in_buffer(s, sinks);
    if (as_it_is && kept != s.sink_count && crosses(sources[first])) bound.landing = kept + 1;
    for (std::uint32_t i = 0; i < s.sink_count; ++i) {
      if (!crosses(sinks[i])) continue;
      if (kept != s.sink_count) {
        lend(sinks[i], sinks[kept], at, bound.length);
      } else if (as_it_is && is_in_buffer(call_.endpoints[s.first_source + first], sources[first])) {
        lend(sinks[i], sources[first], at, bound.length);
      }
    }
  }
  /// Of the sinks; their number if none is.
  TUTTI_DEVICE_CALL std::uint32_t first_in_buffer(const schedule::Step& s, const Side* sinks) const {
    std::uint32_t i = 0;
    while (i < s.sink_count && !is_in_buffer(call_.endpoints[s.first_sink + i], sinks[i])) ++i;
    return i;
  }
  /// If no later step writes there: it is sent some time before the call ends.
  TUTTI_DEVICE_CALL void lend(Side& sink, const Side& from, std::uint32_t at, std::uint64_t length) const {
    const std::uint64_t end = from.address + length * call_.element_bytes(false);
    for (std::uint32_t t = at + 1; t < call_.step_count; ++t) {
      const schedule::Step& later = call_.steps[t];
      const std::uint64_t bytes = call_.workspace.steps[t].length * call_.element_bytes(false);
      for (std::uint32_t i = 0; i < later.sink_count; ++i) {
        const Side& written = call_.workspace.sides[later.first_sink + i];
        if (written.way == Way::kMemory && written.address < end && from.address < written.address + bytes) return;
      }
    }
    sink.way = Way::kLent;
    sink.address = from.address;
    sink.round_bytes = from.round_bytes;
  }

  /// The part of a side that sources and sinks have in common.
  TUTTI_DEVICE_CALL Side side_of(const Endpoint& e) const {
    Side side;
    side.peer = e.peer;
    side.message = message_of(e);
    side.wide = call_.wide_wire && e.wide;
    if (e.width == 0) return side;
    switch (side.message) {
      case Message::kNone: place_locally(side, e); break;
      case Message::kSlot: side.way = Way::kSlot; break;
      case Message::kLine: side.way = Way::kLine; break;
      default: break;  // pulls have work at their source, pushes at their sink
    }
    return side;
  }
  TUTTI_DEVICE_CALL Side source_side(const Endpoint& e) const {
    Side side = side_of(e);
    if (e.width == 0) return side;
    if (e.place == Place::kInput) side.scale = call_.scale;
    if (side.message == Message::kPull || side.message == Message::kInput) {
      if (e.remote == Place::kInput) side.scale = call_.peers[e.peer].scale;
      place_remotely(side, e);
    }
    return side;
  }
  TUTTI_DEVICE_CALL Side sink_side(const Endpoint& e) const {
    Side side = side_of(e);
    if (e.width != 0 && side.message == Message::kPush) place_remotely(side, e);
    const bool to_output = e.place == Place::kOutput || side.message == Message::kPush;
    side.streamed = call_.streamed_parts != 0 && to_output && side.way == Way::kMemory;
    return side;
  }

  /// Of so many elements that go to an output. What follows them begins a cache line if they do.
  TUTTI_DEVICE_CALL std::uint64_t streamed_elements(std::uint64_t length) const {
    if (call_.streamed_parts == kStreamedParts) return length;
    return length / (kStreamedParts * kStreamedElements) * kStreamedElements * call_.streamed_parts;
  }
  TUTTI_DEVICE_CALL bool streams_slot(const Side& side, std::uint64_t length) const {
    return call_.streams_slots && side.way == Way::kSlot && length * call_.element_bytes(side.wide) >= kStreamedBytes;
  }

  TUTTI_DEVICE_CALL Message message_of(const Endpoint& e) const {
    if (e.place != Place::kPeer) return Message::kNone;
    if (!call_.direct || e.direct == Direct::kNone) return call_.lines ? Message::kLine : Message::kSlot;
    if (e.direct == Direct::kPush) return Message::kPush;
    // An input is there from the start, and nothing changes it before it is read (the verifier takes no order from such a
    // message, in place as well).
    return e.remote == Place::kInput ? Message::kInput : Message::kPull;
  }

  TUTTI_DEVICE_CALL schedule::Piece piece(const Endpoint& e) const {
    return schedule::Tiling::piece_in_slab(slab_count_, unit_count_, e.unit, e.width);
  }
  /// From the start of a buffer that has the whole count in each block, in round 0.
  TUTTI_DEVICE_CALL std::uint64_t offset(const Endpoint& e) const {
    const schedule::Tiling& t = call_.tiling;
    return (e.block * t.count + share_offset_ + piece(e).offset) * t.element_bytes;
  }
  TUTTI_DEVICE_CALL void place(Side& side, std::uint64_t base, const Endpoint& e) const {
    side.address = base + offset(e);
    side.round_bytes = call_.tiling.slab * call_.tiling.element_bytes;
  }
  TUTTI_DEVICE_CALL void place_locally(Side& side, const Endpoint& e) const {
    side.way = Way::kMemory;
    switch (e.place) {
      case Place::kInput: return place(side, reinterpret_cast<std::uint64_t>(call_.input), e);
      case Place::kOutput: return place(side, reinterpret_cast<std::uint64_t>(call_.output), e);
      default: {
        // The same memory in every round.
        const std::uint64_t at = e.block * call_.tiling.slab + piece(e).offset;
        side.address = reinterpret_cast<std::uint64_t>(call_.scratch) + at * call_.tiling.element_bytes;
      }
    }
  }
  TUTTI_DEVICE_CALL void place_remotely(Side& side, const Endpoint& e) const {
    const PeerBuffers& p = call_.peers[e.peer];
    side.way = p.mapped ? Way::kMemory : Way::kRemote;
    place(side, e.remote == Place::kInput ? p.input : p.output, e);
  }

  /// Elements of the step: of its first endpoint that carries data and names a place (all are equally long).
  TUTTI_DEVICE_CALL std::uint64_t length(const schedule::Step& s) const {
    for (std::uint32_t i = 0; i < s.source_count + s.sink_count; ++i) {
      const Endpoint& e = call_.endpoints[i < s.source_count ? s.first_source + i : s.first_sink + i - s.source_count];
      if (e.width == 0) continue;
      if (e.place != Place::kPeer || e.direct != Direct::kNone) return piece(e).count;
    }
    return forwarded_length(s);
  }
  /// Message to message: widths only, and the planner sees to it that there is one unit then.
  TUTTI_DEVICE_CALL std::uint64_t forwarded_length(const schedule::Step& s) const {
    for (std::uint32_t i = 0; i < s.source_count; ++i) {
      const Endpoint& e = call_.endpoints[s.first_source + i];
      if (e.width != 0) return piece(e).count;
    }
    return 0;
  }

  const LaneCall& call_;
  std::uint64_t slab_count_;
  std::uint64_t unit_count_;
  std::uint64_t share_offset_;
};

}  // namespace tutti::protocol
