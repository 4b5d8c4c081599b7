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

/// One thread: opens call `sequence` for the rank of `announcer`, which is kept from call to call, and waits for all others.
__global__ void announce_and_gather(protocol::Announcer* announcer, std::uint32_t sequence, std::uint32_t fingerprint,
                                    protocol::BufferReferences buffers, const std::uint64_t* abort_word,
                                    int* all_equal) {
  Machine machine(abort_word, nullptr, 0, nullptr);
  *all_equal = 0;
  announcer->begin(sequence, fingerprint, {0, announcer->board().ranks});
  protocol::Room room = announcer->room(machine);
  for (; room == protocol::Room::kNotYet; room = announcer->room(machine)) {
    if (machine.aborted()) return;
  }
  if (room == protocol::Room::kDiffers) return;
  protocol::announce_buffers(machine, announcer->line(), buffers);
  announcer->publish(machine);
  while (!announcer->advance(machine)) {
    if (machine.aborted()) return;
  }
  *all_equal = announcer->all_equal() ? 1 : 0;
}

}  // namespace tutti::cuda_device
