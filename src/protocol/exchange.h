// Exchanges: calls between two ranks over mapped buffers whose steps wait for nothing, but for the last one, which waits for what the peer has
// pushed: direct two-shot. As steps such a call takes several times as many instructions as it has work to do, all of them between the
// peer's announcement and the word that the peer waits for.
//
//   read what the peer lends, sum, push       one reduction
//   head += lent by the peer       (release)  the same counts as of the steps one by one (channel.h)
//   tail += lent and pushed        (release)
//   wait until the peer's tail has counted its push, and its head what was lent to it   (acquire)
#pragma once

#include "protocol/lane_call.h"

namespace tutti::protocol {

struct Exchange {
  Channel* channel = nullptr;       ///< nullptr: the call is none
  const ReduceArgs* sum = nullptr;  ///< nullptr: nothing is
  std::uint32_t peer = 0;
  std::uint32_t read = 0;    ///< messages: inputs of the peer
  std::uint32_t lent = 0;    ///< inputs that the peer reads
  std::uint32_t pushed = 0;  ///< to the peer
};

namespace detail {

/// Takes a side's message into an exchange; false if it is of another kind, or of another peer.
TUTTI_DEVICE_CALL inline bool join_exchange(Exchange& exchange, const LaneCall& call, const Side& side, bool source) {
  if (side.message == Message::kNone) return true;
  const bool input = side.message == Message::kInput;
  if (!input && (source || side.message != Message::kPush)) return false;
  Channel& channel = call.channels[side.peer];
  if (exchange.channel != nullptr && exchange.peer != side.peer) return false;
  if (channel.crossing != nullptr) return false;
  exchange.channel = &channel;
  exchange.peer = side.peer;
  ++(!input ? exchange.pushed : source ? exchange.read : exchange.lent);
  return true;
}

/// Whether all that a step does is to wait for one push of the exchange's peer.
TUTTI_DEVICE_CALL inline bool awaits_push(const Exchange& exchange, const LaneCall& call, const schedule::Step& step,
                                          const BoundStep& bound) {
  if (bound.moves || step.source_count != 1) return false;
  const Side& source = call.workspace.sides[step.first_source];
  for (std::uint32_t i = 0; i < step.sink_count; ++i) {
    if (call.workspace.sides[step.first_sink + i].message != Message::kNone) return false;
  }
  return source.message == Message::kPush && source.peer == exchange.peer;
}

}  // namespace detail

/// What a bound call of one round comes to; none if it is no exchange.
TUTTI_DEVICE_CALL inline Exchange find_exchange(const LaneCall& call) {
  const LaneWorkspace& w = call.workspace;
  if (w.reductions == nullptr || call.step_count < 2) return {};
  Exchange found;
  const std::uint32_t last = call.step_count - 1;
  for (std::uint32_t s = 0; s < last; ++s) {
    const schedule::Step& step = call.steps[s];
    for (std::uint32_t i = 0; i < step.source_count; ++i) {
      if (!detail::join_exchange(found, call, w.sides[step.first_source + i], true)) return {};
    }
    for (std::uint32_t i = 0; i < step.sink_count; ++i) {
      if (!detail::join_exchange(found, call, w.sides[step.first_sink + i], false)) return {};
    }
    if (!w.steps[s].moves) continue;
    if (!w.steps[s].ready_made || found.sum != nullptr) return {};
    found.sum = &w.reductions[s];
  }
  const bool exchanged = found.channel != nullptr && found.pushed != 0;
  return exchanged && detail::awaits_push(found, call, call.steps[last], w.steps[last]) ? found : Exchange{};
}

/// What this rank does for the peer, and tells it.
template <class Machine>
TUTTI_DEVICE_CALL void give(Machine& m, const Exchange& exchange) {
  if (exchange.sum != nullptr) m.reduce(*exchange.sum);
  Channel& c = *exchange.channel;
  c.received += exchange.read;
  c.acknowledged += exchange.read;
  c.owed += exchange.lent;
  c.sent += exchange.lent + exchange.pushed;
  m.store_release(&c.mine->head, c.acknowledged);
  m.store_release(&c.mine->tail, c.sent);
}
/// After give(): whether the peer has pushed, and is through with what it was lent.
template <class Machine>
TUTTI_DEVICE_CALL bool has_come(Machine& m, const Exchange& exchange) {
  const Channel& c = *exchange.channel;
  return m.load_acquire(&c.theirs->tail) > c.received && m.load_acquire(&c.theirs->head) >= c.owed;
}

}  // namespace tutti::protocol
