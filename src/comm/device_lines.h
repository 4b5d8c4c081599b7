// Calls as lines: launches of tutti_lines, and what ranks of one process need for them.
//
// Each GPU of the communicator gets one launch with all its ranks, so that none of them is behind another one in a stream. Launches of
// different GPUs wait for each other while they run; no event joins their streams. All of a call's launches are put on the streams by
// one thread, one after the other (device_meeting.h), so that none waits for a call that is not made.
#pragma once

#include "comm/comm.h"
#include "comm/communicator.h"
#include "comm/device_fifos.h"
#include "comm/device_order.h"
#include "comm/device_path.h"
#include "comm/device_segment.h"
#include "comm/device_watch.h"
#include "cuda/device.h"

#include <memory>
#include <mutex>

namespace tutti::comm {

/// One launch: ranks of a GPU.
class LinesCall {
 public:
  /// Of `ranks` in all. `fingerprint`: of the call, equal on all ranks; but for its lowest bit, which is set.
  LinesCall(const CallArgs& args, int ranks, DevicePath path, std::uint32_t fingerprint);
  void add(const cuda::RankHome* home, const CallArgs& args);
  /// `blocks_max`: of one rank.
  Status launch(const cuda::Device& device, std::uint32_t blocks_max, cuda::StreamHandle stream);

 private:
  cuda::LinesLaunch launch_;
  DataType type_;
  std::uint64_t message_bytes_;
};

/// A rank's line memory, where all ranks share a process.
class DeviceLines {
 public:
  /// Allocates it. Before the ranks meet.
  static Result<std::shared_ptr<DeviceLines>> open(std::shared_ptr<cuda::Device> device, const Control& control,
                                                   int rank);
  /// When all ranks have opened theirs.
  Status link(const Membership& members, const DeviceLinks& links);
  /// When all ranks have linked: looks after the kernels from now on.
  Status start(Communicator& communicator);
  /// Waits until what is on the streams is done, soon if the communicator fails, and looks after the kernels no more. The memory stays as
  /// long as somebody holds this. By the rank, before the communicator goes.
  void close();
  /// The same without an end.
  void finish() const;

  /// As DeviceWatch::note(), of a call that is not captured; after close() nothing is left to do. By any thread.
  Status note(const Signature& signature, DeviceWatch::Way way);
  const cuda::RankHome* home() const { return segment_->home(); }
  std::uint32_t blocks_max() const { return blocks_max_; }
  DeviceOrder& order() { return order_; }

 private:
  DeviceLines() = default;
  std::unique_ptr<DeviceSegment> segment_;
  DeviceOrder order_;
  std::uint32_t blocks_max_ = 1;
  Communicator* comm_ = nullptr;
  std::mutex watching_;  ///< of the pointer
  std::unique_ptr<DeviceWatch> watch_;
};

}  // namespace tutti::comm
