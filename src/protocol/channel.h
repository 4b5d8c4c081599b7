// A channel: connected memory between two ranks in one lane. One protocol serves slots and direct access alike:
//
//   sender                                            receiver
//   wait until owed - head < slots (slots and lines)
//   write slot owed++ % slots, or push, or nothing (pull: ++owed)
//   tail = ++sent            (release)  ---------->   wait until tail > received   (acquire)
//                                                     read the slot, or pull, or nothing (push)
//   head: so many are consumed  <------------------   head = ++acknowledged        (release; not for a push)
//
// Lines (lines.h) are small messages whose words carry their own flags: no tail, one cache miss less.
//
// Why it is right (docs/memory-model.md has the same numbers):
//  C1. A line of counts has one writer, so plain increments of local mirrors, published by release stores, lose nothing.
//  C2. Of the messages that are acknowledged (all but pushes: those leave no memory to wait for), number k takes slot k % slots. It
//      is written only after the receiver's release of head > k - slots was acquired: no overwrite under a reader.
//  C3. A slot (or pushed data) is read only after the sender's release of a tail that counts its message was acquired.
//  C4. A pulled place is left alone until the receiver's head has passed the message: by the verifier inside the call, and
//      at its end because the sender's lane does not finish before (drain).
//  C5. tail (to a peer) and head (of what came from it) share one line, as both go the same way.
#pragma once

#include "schedule/tiling.h"

#include <cstddef>
#include <cstdint>

namespace tutti::protocol {

using schedule::SlotShape;

/// The least that is written past the caches where readers are far away: it has to reach memory before they are told.
inline constexpr std::size_t kStreamedBytes = 2 << 10;
/// Outputs go past the caches in so many parts, each of whole multiples of so many elements.
inline constexpr std::uint32_t kStreamedParts = 64;
inline constexpr std::uint32_t kStreamedElements = 64;

/// Written by one rank, read by one other. Counts never wrap (2^64 messages).
struct alignas(64) PairLine {
  std::uint64_t tail;  ///< messages that the writer has sent to the reader; not counting lines since the last other one
  std::uint64_t head;  ///< messages from the reader that the writer has consumed, not counting pushes
};
static_assert(sizeof(PairLine) == 64);

/// Of a channel to another host: what its lane and whoever carries its messages tell each other. Messages are numbered from 1, as
/// tails count them.
struct Crossing {
  static constexpr std::uint32_t kSlotsMax = 8;
  std::uint32_t bytes[kSlotsMax] = {};    ///< by slot that I fill: of its message
  const std::byte* from[kSlotsMax] = {};  ///< and where that lies until the call is over; nullptr: in the slot
  std::uint64_t expected =
      0;  ///< this message, of so many bytes, may come to its place in a buffer and not to its slot
  std::uint64_t place_bytes = 0;
  std::byte* place = nullptr;
  std::uint64_t landed = 0;  ///< the last one that did
};

/// One rank's end of a channel. Lives as long as the communicator: the counts go on from call to call.
struct Channel {
  PairLine* mine = nullptr;     ///< I write
  PairLine* theirs = nullptr;   ///< the peer writes
  std::byte* outbox = nullptr;  ///< slots that I fill
  std::byte* inbox = nullptr;   ///< slots that the peer fills
  std::uint64_t* outlines =
      nullptr;  ///< lines that I fill, as many as slots; zero at first, and never anything but lines
  std::uint64_t* inlines = nullptr;  ///< lines that the peer fills
  Crossing* crossing = nullptr;      ///< to another host; nullptr: the peer sees the same slots
  std::uint64_t sent = 0;            ///< messages of all kinds
  std::uint64_t received = 0;
  std::uint64_t owed = 0;          ///< of those sent, the ones that the peer acknowledges: all but pushes
  std::uint64_t acknowledged = 0;  ///< of those received
  std::uint64_t lines_sent = 0;    ///< those of them that were lines
  std::uint64_t lines_received = 0;
  std::uint64_t unread_until = 0;  ///< drain: the peer's head must reach this before the lane may finish
  bool draining = false;           ///< the lane waits for unread_until at its end
};

}  // namespace tutti::protocol
