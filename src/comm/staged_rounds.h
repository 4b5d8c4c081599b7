// How calls on device memory are cut for the way through host memory: into parts of bounded size, and parts into rounds that go one after
// another. Arithmetic only: no device and no communicator is needed.
//
// All ranks cut a call alike: by its count, the size of an element, the number of ranks and rank 0's setting. So part k of a call meets
// part k of it everywhere, as a call of its own. In which rounds a rank's parts are is its own affair.
//  R1. Parts of collectives are in the order of the calls, and of one call in the order of its elements.
//  R2. So are parts of the sends to one rank, and of the receives from one rank; one part of each such sequence is in a round.
//  R3. A collective that reads what an earlier one of the same group writes begins a round that waits for all before it.
#pragma once

#include "comm/comm.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace tutti::comm {

/// Elements of each block of the call's buffers that are in one part of it, all blocks of a buffer together being at most `part_bytes`; at least 1.
std::size_t elements_per_part(const CallArgs& args, int ranks, std::size_t part_bytes);

/// A range of each block of a call's buffers. Where a rank's call has no input or output the number of blocks is 0.
struct StagedPart {
  CallArgs
      args;  ///< the part as a host call, but for its buffers; `send`, `receive`: the device's, where the part begins
  std::size_t input_blocks = 0;
  std::size_t output_blocks = 0;
  std::size_t pitch_bytes = 0;  ///< from one block to the next in the call's buffers
  std::size_t input_at = 0;     ///< in the round's memory, where blocks lie one behind another
  std::size_t output_at = 0;
  std::size_t scale_at = 0;  ///< a factor that lies in device memory
  bool is_in_place = false;  ///< the host call works on the call's own buffers: the part has no memory in the round

  std::size_t block_bytes() const { return args.count * size_of(args.type); }
};

struct StagedRound {
  std::vector<StagedPart> parts;
  std::size_t bytes = 0;  ///< of memory that it needs
  bool waits = false;     ///< until all rounds before it have written their outputs
  bool is_last = false;
};

class StagedRounds {
 public:
  static constexpr std::size_t kRoundCalls = 64;

  /// `part_bytes`: what a part's input may have, and its output. A round takes parts of up to `round_calls` collectives while their inputs
  /// together are not more, and their outputs.
  StagedRounds(std::span<const CallArgs> calls, int ranks, int rank, std::size_t part_bytes,
               std::size_t round_calls = kRoundCalls);
  /// Before next(): what is sent to and received from ranks that are true here, by rank, stays where it is; `copies_too`: so do blocks of
  /// collectives that go by messages.
  void leave_in_place(std::vector<bool> peers, bool copies_too) {
    in_place_ = std::move(peers);
    copies_in_place_ = copies_too && !in_place_.empty();
  }
  bool is_done() const;
  /// The calls, all of them, but for sends and receives.
  std::span<const CallArgs> collectives() const { return collectives_.calls; }
  /// There is one: with no calls not a single one.
  StagedRound next();

 private:
  /// Calls that follow one another, and how far they have come.
  struct Sequence {
    std::vector<CallArgs> calls;
    std::size_t call = 0;
    std::size_t element = 0;
    bool is_done() const { return call == calls.size(); }
  };

  bool stays(const CallArgs& call) const;
  Sequence& sequence_of(const CallArgs& call);
  StagedPart next_part(const Sequence& from) const;
  void add_part(StagedRound& round, Sequence& from) const;
  void add_collectives(StagedRound& round);
  /// What is not in place when the next round begins.
  bool reads_earlier_output(const CallArgs& call) const;

  const int ranks_;
  const int rank_;
  const std::size_t part_bytes_;
  const std::size_t round_calls_;
  std::vector<bool> in_place_;
  bool copies_in_place_ = false;
  Sequence collectives_;
  std::size_t written_ = 0;  ///< collectives before this one have their outputs in place when the next round begins
  std::vector<Sequence> sequences_;  ///< of sends and receives, by peer and direction
};

}  // namespace tutti::comm
