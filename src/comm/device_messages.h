// GPU memory that goes unchanged between ranks of different hosts whose MPI takes such memory as it is: messages of MPI's on the caller's
// own buffers, with no copy in pinned memory. So go sends and receives, and where every rank is a host of its own some collectives
// (goes_by_messages()), and sums and broadcasts as two such calls each (two_shot.h). In all else they go the way of device_staged.h: the
// stream says that the input is there, the rank's thread runs the host call, the stream waits for its end.
//
//   the rank's stream          "tutti-staged", sender                    "tutti-staged", receiver
//   ready = n         ------>  announces         <------ lines ------>   announces
//   waits for done >= n        MPI_Isend (input)   ---- one message ---> MPI_Irecv (output)
//                     <------  done = n                                  done = n   ------> the other stream
//
//  D1. All ranks of a communicator agree, when it is made, that its calls of these kinds are such messages (network.h), and all of them are,
//      whatever memory the two ends have: what one of them has staged, since its call is captured or its stream is not fit, is a message to
//      or from its pinned memory. So no end needs to know of the other's.
//  D2. Calls are cut into parts as staged ones are, for the same reason. A part is a message of its own.
//  D3. A message is posted when both ends have announced it (of a collective, when all have), and agree. So a call that differs is found
//      before anything moves, and a receive that is posted has a send, unless a failure comes in between. Then it is cancelled; one that MPI
//      has begun to take in may still be written, in the caller's memory.
//  D4. MPI copies to and from the GPU by streams of its own, while the caller's stream waits for `done`. CUDA must not put these copies behind
//      that wait. It does so for certain where the caller's stream is ordered with the default stream and MPI copies by one that is, too:
//      calls on such streams are staged. It may do so where streams share a queue of the device, and where MPI allocates, pins or frees
//      memory meanwhile: nothing here can prevent that, which is why none of this is the default
//      (docs/decisions/0022-what-mpi-does-not-do.md).
//  D5. What a network's adapter has written to the GPU is seen by what follows on the stream: its wait flushes, where the device can.
#pragma once

#include "comm/communicator.h"
#include "cuda/device.h"

#include <memory>
#include <span>
#include <vector>

namespace tutti::comm {

/// Of a communicator on `device`, when it is made: whether its calls are such messages, as all ranks agreed. Says so in the log.
Status choose_messages(Membership& members, const std::shared_ptr<cuda::Device>& device);

/// Ranks, by rank, with which calls on these streams exchange messages of the caller's own memory; empty: with none.
Result<std::vector<bool>> peers_in_place(const Membership& members, const cuda::Device& device,
                                         std::span<const cuda::StreamHandle> streams);

/// Collectives whose data goes from each rank that has a block straight to each that gets it, where every rank is a host of its own: no
/// schedule sends less. (Of a broadcast the root would send everything.)
constexpr bool goes_by_messages(Collective collective) {
  return collective == Collective::kAllGather || collective == Collective::kAllToAll ||
         collective == Collective::kGather || collective == Collective::kScatter;
}
/// Of such a call: what `rank` sends to `peer` and receives from there, which may be itself; nullptr: nothing.
struct MessageBlocks {
  std::byte* sent = nullptr;
  std::size_t sent_bytes = 0;
  std::byte* received = nullptr;
  std::size_t received_bytes = 0;
};
MessageBlocks message_blocks(const CallArgs& args, int ranks, int rank, int peer);

/// Whether it is known that a rank has died: MPI is not to be asked any more, also before it is stopped for that.
bool has_death(const Communicator& communicator);
/// Whether MPI may go on with the message of a call that has failed. Cancels it otherwise, unless a rank has died.
bool is_left(const Communicator& communicator, transport::MpiMessage& message);

/// By the thread that makes host calls, before the first: MPI finds the GPU there.
void prepare_for_messages(Communicator& communicator, const cuda::Device& device);

}  // namespace tutti::comm
