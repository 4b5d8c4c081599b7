// What a lane is told about one call, and the memory that it works in.
#pragma once

#include "base/device_call.h"
#include "base/reduce.h"
#include "protocol/channel.h"
#include "protocol/lines.h"
#include "schedule/step.h"
#include "schedule/tiling.h"

#include <cstddef>
#include <cstdint>

namespace tutti::protocol {

/// How this rank reaches one peer's buffers in a direct call. Addresses are local ones where mapped, the peer's own otherwise.
struct PeerBuffers {
  std::uint64_t input = 0;
  std::uint64_t output = 0;
  bool mapped = false;
  const void* scale = nullptr;  ///< PreMulSum: the peer's factor
};

/// How an endpoint's data gets from or to its place.
enum class Way : std::uint8_t {
  kNone,    ///< it has none, or somebody else moves it: who pulls, or has pushed
  kMemory,  ///< memory of this rank, or mapped
  kSlot,
  kLine,
  kRemote,  ///< by system call, from or to a tile
  kLent,    ///< a sink whose message goes to another host from where its data lies already
};

/// What an endpoint is to its channel.
enum class Message : std::uint8_t {
  kNone,  ///< a local place
  kSlot,  ///< through a slot, or only order
  kLine,
  kPull,
  kInput,  ///< a pull that needs no word from the sender (C4')
  kPush,
};

/// An endpoint as a call sees it; binding.h makes it.
struct Side {
  std::uint64_t address = 0;      ///< kMemory, kRemote, kLent: in round 0 ...
  std::uint64_t round_bytes = 0;  ///< ... and by so much further in each round
  const void* scale = nullptr;
  std::uint32_t peer = 0;
  Way way = Way::kNone;
  Message message = Message::kNone;
  bool wide = false;      ///< float32, whatever the data type
  bool streamed = false;  ///< a sink that is written past the caches
};

/// A step as a call sees it.
struct BoundStep {
  std::uint64_t length = 0;    ///< elements in a round
  bool moves = false;          ///< there is something to do but messages
  bool fetches = false;        ///< one remote source straight into one local sink: no tile in between
  bool tiles = false;          ///< data goes through tiles
  bool scatters = false;       ///< some sink has no memory
  bool streams = false;        ///< some sink is written past the caches:
  std::uint64_t streamed = 0;  ///< so many elements of an output, and slots as a whole
  bool ready_made = false;     ///< it is the workspace's reduction
  std::uint32_t landing =
      0;  ///< the sink, counted from 1, to which its one source, from another host, may come by itself; 0: none
};

/// Memory that a lane works in, private to it (lane_storage.h makes it on the host).
struct LaneWorkspace {
  Side* sides = nullptr;                   ///< by endpoint
  BoundStep* steps = nullptr;              ///< by step
  ReduceArgs* reductions = nullptr;        ///< by step, made when its ends are known; nullptr: none is
  void** pointers = nullptr;               ///< by endpoint: theirs
  const void** source_pointers = nullptr;  ///< as many as a step has sources at most, like the next four
  const void** scales = nullptr;
  std::uint8_t* wide_sources = nullptr;
  std::uint32_t* arrived = nullptr;
  std::byte* line_tiles = nullptr;  ///< a line's payload each; lines come bit by bit, so no other lane may use them
  void** sink_pointers = nullptr;   ///< as many as a step has sinks at most
  std::uint8_t* wide_sinks = nullptr;
  std::uint32_t* pulled = nullptr;  ///< as many as there are ranks
};

/// Everything a lane needs for one call. Pointers stay valid until the lane is done.
struct LaneCall {
  const schedule::Step* steps = nullptr;
  std::uint32_t step_count = 0;
  const schedule::Endpoint* endpoints = nullptr;
  schedule::Tiling tiling;
  std::uint32_t lane = 0;
  std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::byte* scratch = nullptr;  ///< scratch blocks of one slab each
  Channel* channels = nullptr;   ///< by rank; own entry unused
  SlotShape slot_shape;
  std::size_t slot_room = 0;         ///< bytes of each slot that are this lane's; 0: as many as a message has
  std::size_t turns_from_bytes = 1;  ///< messages as long take turns in that room, if several fit
  LineShape line_shape;
  const PeerBuffers* peers = nullptr;  ///< by rank; direct calls only
  bool direct = false;                 ///< messages annotated pull or push use the peers' buffers
  bool lines = false;                  ///< all other messages are lines; none is longer than a line
  bool wide_wire = false;              ///< wide messages are float32
  std::uint32_t streamed_parts =
      0;  ///< of kStreamedParts of what is written to outputs, past the caches: they are large, and nobody reads them soon
  bool streams_slots = false;   ///< slots are, but for short messages: readers are far away
  const void* scale = nullptr;  ///< PreMulSum: own factor
  int divisor = 0;              ///< average: applied by finishing steps
  LaneWorkspace workspace;

  TUTTI_DEVICE_CALL std::size_t element_bytes(bool wide) const { return wide ? sizeof(float) : tiling.element_bytes; }
};

}  // namespace tutti::protocol
