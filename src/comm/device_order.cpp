#include "comm/device_order.h"

#include "base/config.h"

#include <utility>

namespace tutti::comm {

Result<DeviceOrder> DeviceOrder::make(std::shared_ptr<cuda::Device> device) {
  DeviceOrder made;
  TUTTI_TRY_ASSIGN(made.last_, cuda::Event::create(device));
  TUTTI_TRY_ASSIGN(made.captured_, cuda::Event::create(device));
  made.mixes_ = config().graph_mixing;
  made.device_ = std::move(device);
  return made;
}

Status DeviceOrder::follow(cuda::StreamHandle stream, std::uint64_t capture) const {
  if (capture == 0) return last_.hold(*device_, stream);
  if (capture == capture_) return captured_.hold(*device_, stream);
  return mixes_ ? last_.hold_launches(*device_, stream) : Status();
}

Status DeviceOrder::end(cuda::StreamHandle stream, std::uint64_t capture) {
  if (capture != 0) {
    if (mixes_) TUTTI_TRY(last_.record_by_launches(stream));
    capture_ = capture;
    return captured_.record(stream);
  }
  Status recorded = last_.record(stream);
  // The communicator fails of it, but finish() must still wait for what is on the stream: its kernels use memory that goes then.
  if (!recorded.ok()) (void)last_.record(stream);
  return recorded;
}

}  // namespace tutti::comm
