// The lane interpreter and the announce exchange as device code: one block runs one lane.
#include "device_machine.cuh"

#include "protocol/announce.h"
#include "protocol/lane.h"

namespace tutti::cuda_device {

using Machine = DeviceMachine<Float32Sum>;

/// Block b runs calls[b] until it is done or the abort word is set. `results`: a Progress per block.
__global__ void run_lanes(const protocol::LaneCall* calls, const std::uint64_t* abort_word, std::byte* tiles,
                          std::size_t tiles_per_block, std::uint8_t* results) {
  __shared__ PostedWork posted;
  constexpr std::size_t kTile = protocol::Lane<Machine>::kTileBytes;
  Machine machine(abort_word, tiles + blockIdx.x * tiles_per_block * kTile, kTile, &posted);
  if (threadIdx.x != 0) return machine.serve();
  protocol::Lane<Machine> lane;
  lane.start(calls[blockIdx.x]);
  protocol::Progress progress = protocol::Progress::kAdvanced;
  while (progress == protocol::Progress::kAdvanced || progress == protocol::Progress::kBlocked) {
    progress = lane.advance(machine);
    if (progress == protocol::Progress::kBlocked && machine.aborted()) progress = protocol::Progress::kFailed;
  }
  machine.finish();
  results[blockIdx.x] = static_cast<std::uint8_t>(progress);
}

/// One thread: opens call `sequence` for rank `rank` and waits for all others.
__global__ void announce_and_gather(protocol::AnnounceBoard board, std::uint32_t rank, std::uint32_t sequence,
                                    std::uint32_t fingerprint, protocol::BufferReferences buffers,
                                    const std::uint64_t* abort_word, int* all_equal) {
  Machine machine(abort_word, nullptr, 0, nullptr);
  const std::uint64_t word = protocol::announce_word(sequence, fingerprint);
  protocol::AnnounceLine& line = board.line(rank, sequence);
  protocol::announce_buffers(machine, line, buffers);
  protocol::publish(machine, line, word);
  protocol::Gathering gathering;
  gathering.start(sequence, word);
  while (!gathering.advance(machine, board)) {
    if (machine.aborted()) return;
  }
  *all_equal = gathering.all_equal() ? 1 : 0;
}

}  // namespace tutti::cuda_device
