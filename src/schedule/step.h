// The step program: what one lane of one rank does in a collective call. Plain data, read by the printer, the
// verifier, the cost model and the executors alike; compiled by the C++ compiler and by nvcc.
//
// A step says: wait for my sources, add them up in the order listed, write the sum to my sinks.
//
// Places.    A buffer (input, output, scratch) is an array of *blocks* of `count` elements each (an all-gather's
//            output has one block per rank, an all-reduce's has one). Each block is cut into lane shares, each share
//            into rounds (slabs), each slab into `units` equal units. An endpoint names `width` adjacent units of
//            one block. The same list of steps runs once per round.
// Messages.  A sink at a peer is a message to it; the k-th message from a to b in a lane meets the k-th source at b
//            that names a. A message of width 0 carries no data, only order (ready, done).
// Direct.    Where memory allows, the data of a message need not travel through the channel:
//            - pull: the receiver reads it straight from the sender's buffer, at `remote`/block/unit. The sender's step is
//              then a plain copy from that place, and the place may not change until the receiver has read it.
//            - push: the sender writes it straight into the receiver's buffer, at `remote`/block/unit. The receiver's step
//              has that place as a sink, and the place must be free for the whole call up to then.
//            Both ends of a message carry the same annotation. Channels that move bytes ignore it.
// Wide.      A message may be a partial sum: two or more ranks' data, not finished. Calls that ask for it send such
//            messages as float32 where the data type is a float of 16 or 8 bits, so that the sum is rounded only by the
//            step that finishes it. Both ends say so; such a message is never direct.
#pragma once

#include <cstdint>

namespace tutti::schedule {

enum class Place : std::uint8_t { kInput, kOutput, kScratch, kPeer };
enum class Direct : std::uint8_t { kNone, kPull, kPush };

struct Endpoint {
  Place place = Place::kInput;
  Direct direct = Direct::kNone;  ///< kPeer only
  Place remote = Place::kInput;   ///< kPeer with direct: the buffer at the sender (pull) or receiver (push)
  bool wide = false;              ///< kPeer only: a partial sum, which may travel in the wire type
  std::uint32_t peer = 0;         ///< kPeer only: the rank at the other end
  std::uint32_t block = 0;        ///< of the local buffer, or of the remote one for direct messages
  std::uint32_t unit = 0;         ///< first unit
  std::uint32_t width = 1;        ///< units; 0 = no data, only order

  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

/// Sources then sinks lie side by side in the lane's endpoint array.
struct Step {
  std::uint32_t first_source = 0;
  std::uint32_t source_count = 0;
  std::uint32_t first_sink = 0;
  std::uint32_t sink_count = 0;
  /// The sum is complete here: an average divides now. Set on exactly the step that makes each finished value.
  bool finish = false;

  friend bool operator==(const Step&, const Step&) = default;
};

}  // namespace tutti::schedule
