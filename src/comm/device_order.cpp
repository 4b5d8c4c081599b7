#include "comm/device_order.h"

#include "executor/backoff.h"

#include <chrono>
#include <optional>

namespace tutti::comm {
namespace {

/// How long kernels that were told to give up may take.
constexpr double kAbortGraceS = 10;

}  // namespace

Result<DeviceOrder> DeviceOrder::make(std::shared_ptr<cuda::Device> device) {
  DeviceOrder made;
  TUTTI_TRY_ASSIGN(made.eager_.event, cuda::Event::create(device));
  TUTTI_TRY_ASSIGN(made.captured_.event, cuda::Event::create(device));
  made.device_ = std::move(device);
  return made;
}

Status DeviceOrder::follow(cuda::StreamHandle stream, std::uint64_t capture) const {
  const Last& before = capture == 0 ? eager_ : captured_;
  if (!before.is_there || capture != before.capture) return {};
  return before.event.hold(*device_, stream);
}

Status DeviceOrder::end(cuda::StreamHandle stream, std::uint64_t capture) {
  Last& now = capture == 0 ? eager_ : captured_;
  Status recorded = now.event.record(stream);
  // The communicator fails of it, but finish() must still wait for what is on the stream: its kernels use memory that goes then.
  if (!recorded.ok()) (void)now.event.record(stream);
  now.capture = capture;
  now.is_there = true;
  return recorded;
}

void DeviceOrder::finish(const Communicator& communicator) const {
  using Clock = std::chrono::steady_clock;
  executor::Backoff backoff(true);
  std::optional<Clock::time_point> failed_at;
  int errors = 0;
  while (eager_.is_there) {
    const Result<bool> done = eager_.event.is_complete();
    if (done.ok() ? done.value() : ++errors > 1) return;  // one that fails again has a context that is lost
    if (!failed_at && communicator.failed()) failed_at = Clock::now();
    if (failed_at && Clock::now() - *failed_at > std::chrono::duration<double>(kAbortGraceS)) return;
    backoff.wait();
  }
}

}  // namespace tutti::comm
