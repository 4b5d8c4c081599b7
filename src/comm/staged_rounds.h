// How calls on device memory are cut for the way through host memory: into parts of bounded size, and parts into rounds that go one after
// another. Arithmetic only: no device and no communicator is needed.
//
// All ranks cut a call alike: by its count, the size of an element, the number of ranks and rank 0's setting. So part k of a call meets
// part k of it everywhere, as a call of its own. In which rounds a rank's parts are is its own affair, but for R5.
//  R1. Parts of collectives are in the order of the calls, and of one call in the order of its elements.
//  R2. So are parts of the sends to one rank, and of the receives from one rank; one part of each such sequence is in a round.
//  R3. A collective that reads what an earlier one of the same group writes begins a round that waits for all before it. So does one whose output
//      MPI writes in its place, if an earlier one reads or writes that: the stream may have to do so yet, when it comes to that one's end.
//  R4. Of a call that goes by shots (two_shot.h) a part is two: the first shots of two parts, then the second ones. Each is alone in its round,
//      but for sends and receives. A second one is in a round that comes two behind its first one's, or that waits.
//  R5. A round is over when all that is in it has met its likes. With sends or receives in the group, part k of those to one rank is in round
//      k, and so is part k of the collectives, one in a round: on a root, whose buffers are longer, and elsewhere. Else a rank's round could wait
//      for a collective of a later round of a rank that waits for a send of a later round of the first one.
#pragma once

#include "comm/comm.h"
#include "comm/staged_part.h"

#include <cstddef>
#include <deque>
#include <span>
#include <utility>
#include <vector>

namespace tutti::comm {

/// Elements of each block of the call's buffers that are in one part of it, all blocks of a buffer together being at most `part_bytes`; at least 1.
std::size_t elements_per_part(const CallArgs& args, int ranks, std::size_t part_bytes);

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
  /// Scratch memory on the device, before the first next(), of so many bytes; 0: there need be none.
  std::size_t scratch_bytes() const { return 2 * half_bytes_; }
  void put_scratch(std::byte* memory) { scratch_ = memory; }
  /// Parts' shots go in pairs that may be of two calls: none of them reads what another one writes.
  void pair_calls() { pairs_calls_ = true; }
  /// Of the first call, while it is to come.
  bool has_second_shots() const;
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

  /// A second shot that has its first one before it.
  struct Second {
    std::size_t call = 0;
    std::size_t element = 0;
    std::size_t count = 0;
    std::byte* scratch = nullptr;
  };

  bool stays(const CallArgs& call) const;
  Sequence& sequence_of(const CallArgs& call);
  StagedPart next_part(const Sequence& from) const;
  void pass(Sequence& sequence, std::size_t elements) const;
  void place(StagedRound& round, StagedPart part) const;
  void add_part(StagedRound& round, Sequence& from) const;
  bool is_pair_over();
  void add_first_shot(StagedRound& round);
  void add_second_shot(StagedRound& round);
  void add_collectives(StagedRound& round);
  /// What is not in place when the next round begins (R3).
  bool needs_earlier_outputs(const CallArgs& call) const;

  const int ranks_;
  const int rank_;
  const std::size_t part_bytes_;
  std::size_t round_calls_;
  std::vector<bool> in_place_;
  bool copies_in_place_ = false;
  Sequence collectives_;
  std::size_t written_ = 0;  ///< collectives before this one have their outputs in place when the next round begins
  std::deque<Second> seconds_;
  bool has_pair_ = false;  ///< what is in seconds_ goes before any first shot
  bool is_alone_ = false;  ///< that pair is a single one
  bool pairs_calls_ = false;
  std::size_t half_bytes_ = 0;
  std::byte* scratch_ = nullptr;
  std::size_t first_shots_ = 0;
  std::vector<Sequence> sequences_;  ///< of sends and receives, by peer and direction
};

}  // namespace tutti::comm
