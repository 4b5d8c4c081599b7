// Calls on device memory among ranks in several processes of one host. Each rank launches its own part; the kernels wait for each other on
// the devices (cuda/opening.h), and no thread does.
//
// A call is cut into pieces that fit into the ranks' staging (device_segment.h). For each piece, in the order of the caller's stream:
//
//   input -> own staging        a copy on this device
//   tutti_fold                  all ranks: from everybody's staging to everybody's, between opening and closing
//   own staging -> output       a copy on this device
//
//  I1. A piece's kernel ends when all ranks are through with it: so the copies of the next piece, and of the next call, find the staging
//      free, and what the peers have written there is complete.
//  I2. A rank's launches run one after the other, whatever their streams: events order a call behind the last one. Sequence numbers
//      are counted by the kernels, so that graphs can be replayed.
//  I3. All ranks cut a call alike, and launch as many blocks: by the call's arguments, and what is on the cards.
#pragma once

#include "comm/communicator.h"
#include "comm/device_segment.h"
#include "comm/device_watch.h"
#include "cuda/device.h"

#include <cstdint>
#include <memory>
#include <span>

namespace tutti::comm {

class DeviceIpc {
 public:
  /// Before the ranks meet. Failure: this rank's memory cannot be shared.
  static Result<std::unique_ptr<DeviceIpc>> open(std::shared_ptr<cuda::Device> device, const Control& control,
                                                 int rank);
  /// Waits for the device to be done; kernels that wait for others give up.
  ~DeviceIpc();
  DeviceIpc(const DeviceIpc&) = delete;
  DeviceIpc& operator=(const DeviceIpc&) = delete;

  /// When all cards are there: maps the others' memory.
  Status link(const Reach& reach) { return segment_->link(reach); }
  /// When all ranks have linked.
  Status start(Communicator& communicator);

  /// Puts the calls on their streams, in order, and waits for nobody. By whoever has the communicator's turn, in the caller's thread.
  /// kInvalidUsage: a send or a receive; nothing is on the streams then. After any other failure the communicator has failed too.
  Status enqueue(std::span<const CallArgs> calls);
  /// Waits until what is on the streams is done. It is over soon if the communicator fails.
  void finish();

 private:
  /// What one rank copies in and out for a piece.
  struct Piece {
    std::uint64_t first = 0;  ///< element of each block
    std::uint64_t count = 0;
  };

  DeviceIpc(std::shared_ptr<cuda::Device> device, std::unique_ptr<DeviceSegment> segment)
      : device_(std::move(device)), segment_(std::move(segment)) {}
  Status put(const CallArgs& args);
  Status put_pieces(const CallArgs& args);
  Status put_piece(const CallArgs& args, const Piece& piece);
  /// Between blocks of a buffer, `count` elements apart, and those of a piece, which lie one behind the other.
  Status copy_blocks(const CallArgs& args, const Piece& piece, std::size_t bytes, bool in);
  Status launch(const CallArgs& args, const Piece& piece, bool uses_input, bool uses_output);
  Status follow_last(cuda::StreamHandle stream, std::uint64_t capture);
  Status end_call(cuda::StreamHandle stream, std::uint64_t capture);

  const std::shared_ptr<cuda::Device> device_;
  const std::unique_ptr<DeviceSegment> segment_;
  Communicator* comm_ = nullptr;
  std::unique_ptr<DeviceWatch> watch_;
  std::uint32_t blocks_max_ = 1;  ///< of a launch, so that those of all ranks on a GPU are resident together

  cuda::Event last_;        ///< behind the last call
  cuda::Event last_eager_;  ///< behind the last one that was not captured
  cuda::StreamHandle last_stream_ = nullptr;
  std::uint64_t last_capture_ = 0;
  bool has_last_ = false;
  bool has_eager_ = false;
};

}  // namespace tutti::comm
