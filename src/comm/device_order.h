// A rank's launches one after the other, whatever their streams: of kernels that count their calls in device memory.
#pragma once

#include "comm/communicator.h"
#include "cuda/device.h"

#include <cstdint>
#include <memory>

namespace tutti::comm {

class DeviceOrder {
 public:
  static Result<DeviceOrder> make(std::shared_ptr<cuda::Device> device);

  /// What `stream` is given from now on waits for the last call, of those in the same capture, or of those in none: on the same stream too,
  /// as one handle may stand for several streams (one per thread; one that was destroyed). What is captured and what is not have no order
  /// but that in which the program launches its graphs.
  Status follow(cuda::StreamHandle stream, std::uint64_t capture) const;
  /// The call that was begun by follow() is on the stream.
  Status end(cuda::StreamHandle stream, std::uint64_t capture);
  /// Waits until the last call outside of captures is done; not for long if the communicator has failed, or fails meanwhile: the program's
  /// own work may come before.
  void finish(const Communicator& communicator) const;
  /// `order`: keeps what calls use. It is let go of when the last call outside of captures is done: by sweep(), or at once.
  static void keep(std::shared_ptr<const DeviceOrder> order);
  static void sweep();

 private:
  /// Also if nobody can tell any more: the context is lost.
  bool is_through() const;

  /// Behind the last call.
  struct Last {
    cuda::Event event;
    std::uint64_t capture = 0;
    bool is_there = false;
  };

  std::shared_ptr<cuda::Device> device_;
  Last eager_;
  Last captured_;
};

}  // namespace tutti::comm
