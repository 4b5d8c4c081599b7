// Sums and broadcasts of GPU memory among hosts of one rank each, where MPI takes such memory as it is (device_messages.h): in two shots of
// messages, of which each is a host call of all ranks, and between them a kernel on the caller's stream. Each part of a call is shared out:
//
//                    first shot                           the stream                    second shot
//   all_reduce       each sends each its share            adds up its own share         each sends all what it has added up
//   reduce           the same                             the same                      each sends it to the root
//   reduce_scatter   each sends each its block            adds up its own block         -
//   broadcast        the root sends all others a share    -                             those send it to each other
//
//   the stream                                       the rank's thread
//   ready = 1                              ------->  first shot of part 0: input -> the others' scratch memory
//   ready = 2                              ------->  first shot of part 1
//   waits for done >= 1, adds up part 0    <-------
//   ready = 3                              ------->  second shot of part 0: sums -> the others' outputs
//   waits for done >= 2, adds up part 1    <-------
//   ready = 4                              ------->  second shot of part 1
//   ...
//
// So a rank sends and receives 2 (n - 1) / n of a sum's bytes (of a broadcast: all bytes once), and has a message under way while it adds up.
//
//  W1. Which calls go so follows from their arguments and from what all ranks know alike: all make the same shots, in the same order. Shots of
//      a call go by pairs of parts, in which ranks do not differ either.
//  W2. The second shot of a part is given when the stream has the kernel of its first one before it. That waits for the end of the first
//      shot, for which no rank needs anything that its stream is given later: by induction over the shots' numbers no wait stands before
//      what ends it (S1 of device_staged.h).
//  W3. A share is added up by one rank, of all sources in the order of ranks, in one step: the bits are those of two-shot on the host, and the
//      same on all ranks. A factor is applied by its own rank, before it sends, and rounds as it does on the host.
//  W4. Scratch memory has room for two parts. The third one's first shot is given behind the ends of the first one's shots.
//  W5. A shot that cannot take the device's memory at one end, since the stream is not fit or is captured, is staged at that end (D1); the kernel
//      is on the stream there as well.
#pragma once

#include "comm/device_messages.h"
#include "comm/staged_part.h"

#include <cstddef>

namespace tutti::comm {

/// Calls whose longer buffer has fewer bytes are staged. Reckoned, not measured: a shot is a meeting of all ranks and some messages, about 20 us,
/// and there are two of them, with a kernel; staging costs about 0.3 ns for each byte.
inline constexpr std::size_t kLeastShotBytes = std::size_t{64} << 10;

/// Whether the call goes so. A schedule that is set, NCCL_ALGO, reproducible sums and a float32 wire are the host's.
bool goes_by_shots(Communicator& communicator, const CallArgs& args);
/// 1: there is no second one.
int shots_of(const CallArgs& args, int ranks);

/// How a part of a call is shared out; in bytes.
class Shares {
 public:
  Shares(const CallArgs& part, int ranks);
  /// Of the part's buffer. Where each rank has a block: 0.
  std::size_t begin(int rank) const;
  std::size_t bytes(int rank) const;
  /// Of scratch memory, from what one rank sends to what the next one does.
  std::size_t slot_bytes() const;

 private:
  /// Among those that have one; -1: none.
  int index(int rank) const;

  const CallArgs& part_;
  std::size_t each_ = 0;  ///< elements
};

struct ShotPlace {
  int ranks = 0;
  int rank = 0;
};
/// A part of a call: elements of each block.
struct ShotRange {
  std::size_t first = 0;
  std::size_t count = 0;
};
/// Scratch memory of a part of at most so many elements; 0: it needs none.
std::size_t scratch_of_shot(const CallArgs& call, std::size_t count, int ranks);
/// The two shots of a part, with its scratch memory.
StagedPart first_shot(const CallArgs& call, const ShotRange& range, const ShotPlace& place, std::byte* scratch);
StagedPart second_shot(const CallArgs& call, const ShotRange& range, const ShotPlace& place, std::byte* scratch);
/// message_blocks() of a shot.
MessageBlocks blocks_of_shot(const CallArgs& args, const ShotPlace& place, int peer);

}  // namespace tutti::comm
