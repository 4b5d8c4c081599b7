// A rank's calls one after the other, whatever their streams, as the program gives them: calls outside of graphs when they are made, those in
// graphs when the graphs are launched. For what ranks do with words, counts and staging memory that all calls of a communicator share.
//
// An event of the world outside of graphs is behind the last call. What is given to a stream waits for it and then records it; a graph has
// nodes that do both at each launch, with what the event is then. Within a graph an event of the capture's does the same.
//  O1. Calls and launches wait only for what was given before them, so that no order of them waits for itself.
//  O2. Where all ranks give their calls and launches in the same order, they run in that order on all ranks.
//  O3. The program may promise that it orders them itself (NCCL_GRAPH_MIXING_SUPPORT=0): then graphs are without those nodes.
//
// Two captures at once that take turns in one communicator are followed one at a time: the streams of each must order its calls.
#pragma once

#include "comm/device_work.h"
#include "cuda/device.h"

#include <cstdint>
#include <memory>

namespace tutti::comm {

class DeviceOrder : public DeviceWork {
 public:
  static Result<DeviceOrder> make(std::shared_ptr<cuda::Device> device);

  /// What `stream` is given from now on waits for the last call: on the same stream too, as one handle may stand for several streams (one per
  /// thread; one that was destroyed). `capture`: that the stream is in; 0: none. A graph needs this as long as it lives.
  Status follow(cuda::StreamHandle stream, std::uint64_t capture) const;
  /// The call that was begun by follow() is on the stream.
  Status end(cuda::StreamHandle stream, std::uint64_t capture);
  /// The last call and the last replay.
  bool is_through() const override { return is_reached(last_); }

 private:
  std::shared_ptr<cuda::Device> device_;
  bool mixes_ = true;          ///< O3
  cuda::Event last_;           ///< behind the last call or replay
  cuda::Event captured_;       ///< behind the last call of the last capture
  std::uint64_t capture_ = 0;  ///< that one; 0: there was none
};

}  // namespace tutti::comm
