// What the host and the kernels agree on: names, arguments, memory that stays, sizes of launches, how failures come back. Plain C++, no
// CUDA header: the C++ compiler and nvcc both read it.
//
// Kernels, one of each kind per data type; the reduction is an argument, as a branch that all threads take alike costs nothing.
//   tutti_fold_<dtype>    sums and copies straight between buffers. Fused (all ranks of the calls are on this GPU and in this
//                         process, and the launch does everybody's part): no waiting at all, any grid, nothing need be co-resident.
//                         Per rank (each rank launches its own part): opens with announce lines, closes with counts. Or
//                         for several ranks, whose streams have said before what their buffers are, and no waiting (StreamCall).
//   tutti_lines_<dtype>   small and middle messages per rank: pushed into the peers' line memory with flags in the words; one-shot or
//                         two-shot. Buffers need not be mapped by peers.
//   tutti_lanes_<dtype>   the lane interpreter of src/protocol/lane.h: any program. One block is one lane of the tiling; a lane of the
//                         program may be several such lanes ("rows"), which have channels of their own.
// Data that is only moved (all_gather, broadcast ...) goes through the uint8 kernels, counted in bytes.
// All three sum in the order of the program that they stand for: fold and lines in rank order, so the bits are those of one-shot and
// two-shot on the host. All threads of a kernel that waits must be resident at once, on all ranks: blocks of all ranks that
// share a GPU together.
//
// A launch takes one argument by value (FoldLaunch, LinesLaunch, LanesLaunch: each below 4 KiB), dynamic shared memory 0 bytes, and
// kThreads threads per block. Launches of one rank are ordered as its stream is. Sequence numbers live in device memory and are counted by
// the kernels, so that a captured launch can be replayed.
//
// Failures: a kernel never traps for a reason of ours. Whoever has to give up writes the rank's FailureRecord (the first one wins,
// until the host clears it with the device idle) and ends; every other block sees RankState::failed or the abort word and ends. A rank
// that failed leaves its counts behind: the communicator cannot be used on, as on the host. The host passes a failure on to
// other ranks by their abort words.
//
// tutti_copy (CopyLaunch; a copy by the same payload loop) copies from host memory to host memory (cuda/stream_words.h), and is the ceiling
// that the others are held against. For measurements: tutti_nothing (no arguments; the price of a launch). Sums of 2 .. 16 sources into one
// destination are tutti_fold with Collective::kReduce.
#pragma once

#include "base/device_call.h"
#include "base/dtype.h"
#include "protocol/announce.h"
#include "protocol/lane_call.h"

#include <cstddef>
#include <cstdint>

namespace tutti::cuda {

inline constexpr std::uint32_t kRanksMax = 16;   ///< of fold and lines; lanes have no limit
inline constexpr std::uint32_t kThreads = 512;   ///< of a block of any kernel
inline constexpr std::uint32_t kBlocksMax = 64;  ///< of one rank, in kernels that wait
inline constexpr std::uint32_t kCallsMax = 8;    ///< in one fold launch

// ---------------------------------------------------------------------------------------------- results

enum class Failure : std::uint32_t {
  kNone = 0,
  kAborted = 1,  ///< the abort word was set
  kMismatch =
      2,  ///< `peer` made another call than this rank: `theirs` and `ours` are the fingerprints; no output was written
  kNotMapped = 3,  ///< `peer` announced a buffer that this rank has no mapping for: `theirs` is the mapping's number
};

/// In pinned host memory, one per rank; zero while all is well. `failure` is written last (release, system scope).
struct alignas(64) FailureRecord {
  Failure failure;
  std::uint32_t rank;
  std::int32_t peer;  ///< waited for or at fault; -1: none
  std::uint32_t block;
  std::uint64_t sequence;  ///< of the call, counted per kind of kernel
  std::uint64_t ours;
  std::uint64_t theirs;
  std::uint64_t round;  ///< lanes only
  std::uint32_t step;   ///< lanes only
  std::uint32_t reserved;
};

// ---------------------------------------------------------------------------------------------- memory that stays

/// In device memory of the rank's GPU, zero at first. Only kernels of this rank touch it.
struct alignas(64) RankState {
  std::uint64_t announced_sequence;  ///< calls so far that opened with announce lines: fold and lanes
  std::uint64_t lines_sequence;      ///< lines calls so far
  std::uint64_t lanes_sequence;      ///< other lanes calls so far, for records only
  std::uint32_t blocks_done;         ///< of the running launch
  std::uint32_t failed;              ///< 1: a block has given up
};

/// Line memory: where the peers push small messages. By parity of the call, phase and sender, `units` units of 16 bytes: two words of
/// 4 bytes of data and a 4-byte flag each. Before them the sender's header line: one unit with the call's fingerprint.
struct LineMemory {
  std::uint32_t units = 0;  ///< of one message; equal for all ranks

  static constexpr std::size_t kUnitBytes = 16;
  static constexpr std::size_t kUnitPayloadBytes = 8;
  static constexpr std::uint32_t kPhases = 2;  ///< what comes to be summed, and finished sums
  static constexpr std::uint32_t kTurns = 2;

  TUTTI_DEVICE_CALL std::size_t payload_bytes() const { return std::size_t{units} * kUnitPayloadBytes; }
  /// 8-byte words from the start of a rank's memory to the header unit of this message.
  TUTTI_DEVICE_CALL std::size_t at(std::uint32_t ranks, std::uint64_t sequence, std::uint32_t phase,
                                   std::uint32_t sender) const {
    const std::size_t message = (sequence % kTurns * kPhases + phase) * ranks + sender;
    return message * (std::size_t{units} + 1) * 2;
  }
  TUTTI_DEVICE_CALL std::size_t bytes(std::uint32_t ranks) const {
    return std::size_t{kTurns} * kPhases * ranks * (std::size_t{units} + 1) * kUnitBytes;
  }
};

inline constexpr std::uint64_t kNoMapping = ~std::uint64_t{0};
struct PeerMapping {
  std::uint64_t base = kNoMapping;  ///< where it is mapped here; kNoMapping: nowhere
  std::uint64_t tag = 0;
};
/// Where a peer's memory is mapped, for buffers that it announces: a rank announces BufferReference{name(), offset}.
/// Number 0 has base 0 everywhere: ranks of the same process announce their addresses as offsets, and {0, 0} is a buffer that the
/// call does not use.
struct PeerMappings {
  const PeerMapping* list = nullptr;  ///< device memory, by number
  std::uint32_t count = 0;

  static constexpr int kNumberBits = 6;
  static constexpr int kTagBits = 10;
  /// Numbers come back for other memory, and graphs keep what they have announced: the memories of a number are told apart by the low bits of
  /// how many have been before (`which`).
  static constexpr std::uint64_t name(std::uint64_t number, std::uint64_t which) {
    return number | (which & ((1u << kTagBits) - 1)) << kNumberBits;
  }
};

/// The buffers of all ranks of a call.
struct Buffers {
  const void* inputs[kRanksMax];
  void* outputs[kRanksMax];
  std::uint64_t factors[kRanksMax];
};

/// One rank's end of everything, in device memory; the host writes it once. All pointers are ones that this rank's GPU can use.
struct RankHome {
  std::uint32_t rank = 0;
  std::uint32_t ranks = 1;
  const std::uint64_t* abort_word = nullptr;  ///< pinned host memory, one per rank; not 0: give up
  FailureRecord* failure = nullptr;           ///< pinned host memory
  RankState* state = nullptr;
  Buffers* learned = nullptr;  ///< of the call whose other ranks' parts a launch does (FoldMembers)
  // By rank: that rank's memory, mapped here; zero at first. The own entry is this rank's own. nullptr: this GPU does not reach it, and
  // exchanges nothing with that rank.
  protocol::AnnounceLine* boards[kRanksMax] = {};  ///< kAnnounceDepth x ranks lines: a copy of the board for each rank
  std::uint64_t* closings[kRanksMax] = {};         ///< kBlocksMax x ranks counts
  std::uint64_t* lines[kRanksMax] = {};            ///< line_memory.bytes(ranks)
  LineMemory line_memory;
  PeerMappings mappings[kRanksMax];
};
constexpr std::size_t board_bytes(std::uint32_t ranks) {
  return std::size_t{protocol::kAnnounceDepth} * ranks * sizeof(protocol::AnnounceLine);
}
constexpr std::size_t closing_bytes(std::uint32_t ranks) {
  return std::size_t{kBlocksMax} * ranks * sizeof(std::uint64_t);
}

/// One lane of one rank, as long as the communicator lives; in device memory of the rank's GPU.
struct LaneHome {
  protocol::Channel* channels = nullptr;  ///< by rank; the host fills in the pointers, the kernels count
  protocol::LaneWorkspace workspace;      ///< device memory, large enough for every program that is run here
  std::byte* scratch = nullptr;           ///< as many blocks of one slab as the program has scratch blocks
  std::byte* tiles = nullptr;             ///< kLaneTileBytes each; as many as a step has sources at most, plus 2
};
inline constexpr std::size_t kLaneTileBytes = 64 << 10;

/// One program lane of one rank, in device memory; the same for all calls of a plan.
struct LaneProgramReference {
  const schedule::Step* steps = nullptr;
  const schedule::Endpoint* endpoints = nullptr;
  std::uint32_t step_count = 0;
};

// ---------------------------------------------------------------------------------------------- arguments

/// A factor that a rank's input is multiplied with first (PreMulSum).
struct Factor {
  std::uint64_t value = 0;  ///< one element in its low bytes, or its address in device memory
  bool is_address = false;
};

/// One collective call, or one rank's part of it. Of send and receive there is kSend only, fused: from inputs[root] to outputs[root].
struct FoldCall {
  Collective collective = Collective::kAllReduce;
  ReduceOp op = ReduceOp::kSum;  ///< kAverage: kSum with a divisor
  bool scaled = false;           ///< factors count
  std::uint8_t reserved = 0;
  std::uint32_t root = 0;
  std::int32_t divisor = 0;       ///< 0, or the average's
  std::uint32_t ranks = 0;        ///< of this call, at most kRanksMax
  std::uint32_t first_block = 0;  ///< of the grid; the calls of a launch have blocks of their own
  std::uint32_t block_count = 0;
  std::uint64_t count = 0;  ///< elements of a block, as in schedule/tiling.h
  // By rank. Per rank launches: the own entry only, the others come by announce lines.
  const void* inputs[kRanksMax] = {};
  void* outputs[kRanksMax] = {};
};

/// What a per-rank launch announces for its buffers, see PeerMappings.
struct AnnouncedBuffers {
  protocol::BufferReferences own{};
  std::uint32_t fingerprint = 0;  ///< of the call: equal at all ranks, or it fails with kMismatch
  std::uint32_t reserved = 0;
};

/// What a rank's stream says of a call where another rank's launch does its part: words that the stream stores, low halves first. Host
/// memory that all processes share.
struct alignas(64) StreamCall {
  std::uint32_t input[2] = {};  ///< pack() of the reference
  std::uint32_t output[2] = {};
  std::uint32_t factor[2] = {};

  static constexpr int kOffsetBits = 64 - PeerMappings::kNumberBits - PeerMappings::kTagBits;
  /// Name and offset of a reference to mapped memory in one word.
  static constexpr std::uint64_t pack(const protocol::BufferReference& reference) {
    return reference.address << kOffsetBits | reference.offset;
  }
  TUTTI_DEVICE_CALL static protocol::BufferReference unpack(std::uint64_t word) {
    return {word >> kOffsetBits, word & ((std::uint64_t{1} << kOffsetBits) - 1)};
  }
};

/// The ranks whose parts launches do. All their streams have come to the call before these start (device_bells.h), and go on behind them, so
/// that they wait for nobody. Two launches: one block looks at the words, as blocks that read the same word of host memory take turns of a
/// microsecond each (H100); the other finds in device memory what that one has learnt.
struct FoldMembers {
  std::uint32_t bits = 0;                       ///< the ranks; 0: the launch does its own rank's part alone
  bool learns = false;                          ///< the first of the two
  const StreamCall* calls = nullptr;            ///< by rank
  const std::uint32_t* fingerprints = nullptr;  ///< by rank, each | 1
};

/// grid: the sum of block counts. In place is right for all but all_to_all (fused or not): that one needs other buffers, or lanes.
struct FoldLaunch {
  const RankHome* home = nullptr;  ///< nullptr: fused; else per rank, with one call
  std::uint32_t call_count = 0;
  std::uint32_t reserved = 0;
  AnnouncedBuffers announced;
  FoldMembers members;
  Factor factors[kRanksMax];  ///< by rank, of all calls that are scaled
  FoldCall calls[kCallsMax];
};

/// grid: launch ranks x blocks_per_rank, at most kBlocksMax per rank and the same at all ranks; block b is block b % blocks_per_rank of rank
/// b / blocks_per_rank of the launch (in the arrays). A launch has those ranks of this GPU that share a process, so that none
/// of them is behind another one in a stream. Every rank takes part in every call, rooted ones too.
/// two_shot: all_reduce only, and its message is lines_share_bytes(count x element, ranks); else a whole block.
struct LinesLaunch {
  std::uint32_t launch_ranks = 1;
  std::uint32_t blocks_per_rank = 1;
  Collective collective = Collective::kAllReduce;  ///< not send, receive
  ReduceOp op = ReduceOp::kSum;
  bool two_shot = false;
  bool scaled = false;
  std::uint32_t root = 0;
  std::int32_t divisor = 0;
  std::uint32_t fingerprint = 0;
  std::uint64_t count = 0;
  // By launch rank.
  const RankHome* homes[kRanksMax] = {};
  const void* inputs[kRanksMax] = {};
  void* outputs[kRanksMax] = {};
  Factor factors[kRanksMax];
};
/// Bytes of one rank's share in two-shot lines: whole units.
TUTTI_DEVICE_CALL constexpr std::uint64_t lines_share_bytes(std::uint64_t bytes, std::uint32_t ranks) {
  const std::uint64_t units = (bytes + LineMemory::kUnitPayloadBytes - 1) / LineMemory::kUnitPayloadBytes;
  return (units + ranks - 1) / ranks * LineMemory::kUnitPayloadBytes;
}

/// grid: launch ranks x blocks_per_rank; block b is lane b % blocks_per_rank of rank b / blocks_per_rank of the launch (in the arrays; the
/// rank's number in its program and channels is its home's). The tiling has blocks_per_rank lanes; lane l of it runs program lane
/// l / rows. Peers' buffers of direct calls: the host knows them (fused launches), or they come by announce lines, as in
/// a per-rank fold launch. Calls whose data goes through slots may announce too, so that ranks find whose calls differ.
struct LanesLaunch {
  // By launch rank, in device memory.
  const RankHome* homes[kRanksMax] = {};
  const LaneHome* lanes[kRanksMax] = {};                 ///< each: by lane of the tiling
  const LaneProgramReference* programs[kRanksMax] = {};  ///< each: by lane of the program
  std::uint32_t launch_ranks = 1;
  std::uint32_t blocks_per_rank = 1;
  std::uint32_t rows = 1;
  bool direct = false;
  bool lines = false;
  bool wide_wire = false;
  bool announces =
      false;  ///< opens with announce lines; direct: one rank per launch, whose peers' buffers come by them
  bool scaled = false;
  ReduceOp op = ReduceOp::kSum;
  std::uint16_t reserved = 0;
  std::int32_t divisor = 0;
  schedule::Tiling tiling;
  schedule::SlotShape slot_shape;
  protocol::LineShape line_shape;
  AnnouncedBuffers announced;
  Factor factors[kRanksMax];  ///< by rank
  // By rank. Direct calls: of all ranks, unless they are announced.
  const void* inputs[kRanksMax] = {};
  void* outputs[kRanksMax] = {};
};

struct CopyLaunch {
  const void* from = nullptr;
  void* to = nullptr;
  std::uint64_t bytes = 0;
};

static_assert(sizeof(FoldLaunch) <= 4096 && sizeof(LinesLaunch) <= 4096 && sizeof(LanesLaunch) <= 4096);

// ---------------------------------------------------------------------------------------------- names and sizes

enum class KernelKind : std::uint8_t { kFold = 0, kLines = 1, kLanes = 2 };
inline constexpr int kKernelKinds = 3;
inline constexpr const char* kKernelKindNames[kKernelKinds] = {"fold", "lines", "lanes"};
inline constexpr const char* kNothingKernel = "tutti_nothing";  ///< both in uint8's image
inline constexpr const char* kCopyKernel = "tutti_copy";

/// One embedded fat binary: the kernels of one data type ("tutti_" + kind + "_" + name_of(dtype)).
struct KernelImage {
  DataType dtype;
  const void* begin;
  const void* end;
};

/// Blocks that are worth their start for a fused fold of so many bytes in the longest buffer.
constexpr std::uint32_t fold_blocks(std::uint64_t bytes, std::uint32_t multiprocessors) {
  constexpr std::uint64_t kBlockBytes = std::uint64_t{kThreads} * 16;  // one vector per thread
  const std::uint64_t useful = (bytes + kBlockBytes - 1) / kBlockBytes;
  const std::uint64_t most = std::uint64_t{multiprocessors} * 2;
  return static_cast<std::uint32_t>(useful < 1 ? 1 : useful < most ? useful : most);
}
/// Of one rank, in a lines launch with messages of so many bytes.
constexpr std::uint32_t lines_blocks(std::uint64_t message_bytes) {
  const std::uint64_t units = (message_bytes + LineMemory::kUnitPayloadBytes - 1) / LineMemory::kUnitPayloadBytes;
  const std::uint64_t useful = (units + kThreads - 1) / kThreads;
  return static_cast<std::uint32_t>(useful < 1 ? 1 : useful < kBlocksMax ? useful : kBlocksMax);
}

}  // namespace tutti::cuda
