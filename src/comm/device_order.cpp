#include "comm/device_order.h"

#include "base/config.h"
#include "executor/backoff.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace tutti::comm {
namespace {

/// How long kernels that were told to give up may take, and what comes before them on the stream.
constexpr double kAbortGraceS = 1;

/// What outlives its communicator. Never destroyed: a process ends without.
struct Remains {
  std::mutex mutex;
  std::vector<std::shared_ptr<const DeviceOrder>> all;
};
Remains& remains() {
  static auto* made = new Remains;
  return *made;
}

}  // namespace

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

void DeviceOrder::finish(const Communicator& communicator) const {
  using Clock = std::chrono::steady_clock;
  executor::Backoff backoff(true);
  std::optional<Clock::time_point> failed_at;
  while (!is_through()) {
    if (!failed_at && communicator.failed()) failed_at = Clock::now();
    if (failed_at && Clock::now() - *failed_at > std::chrono::duration<double>(kAbortGraceS)) return;
    backoff.wait();
  }
}

bool DeviceOrder::is_through() const {
  Result<bool> done = last_.is_complete();
  if (!done.ok()) done = last_.is_complete();  // one that fails again has a context that is lost
  return !done.ok() || done.value();
}

void DeviceOrder::keep(std::shared_ptr<const DeviceOrder> order) {
  if (order->is_through()) return;
  const std::lock_guard lock(remains().mutex);
  remains().all.push_back(std::move(order));
}

void DeviceOrder::sweep() {
  std::vector<std::shared_ptr<const DeviceOrder>> through;  // ends after the lock
  const std::lock_guard lock(remains().mutex);
  auto& all = remains().all;
  const auto end = std::ranges::partition(all, [](const auto& one) { return !one->is_through(); }).begin();
  through.assign(std::move_iterator(end), std::move_iterator(all.end()));
  all.erase(end, all.end());
}

}  // namespace tutti::comm
