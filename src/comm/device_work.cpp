#include "comm/device_work.h"

#include "comm/communicator.h"
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
  std::vector<std::shared_ptr<const DeviceWork>> all;
};
Remains& remains() {
  static auto* made = new Remains;
  return *made;
}

}  // namespace

void DeviceWork::finish(const Communicator& communicator, const std::function<bool()>& is_through) {
  using Clock = std::chrono::steady_clock;
  executor::Backoff backoff(true);
  std::optional<Clock::time_point> failed_at;
  while (!is_through()) {
    if (!failed_at && communicator.failed()) failed_at = Clock::now();
    if (failed_at && Clock::now() - *failed_at > std::chrono::duration<double>(kAbortGraceS)) return;
    backoff.wait();
  }
}

void DeviceWork::keep(std::shared_ptr<const DeviceWork> work) {
  if (work->is_through()) return;
  const std::lock_guard lock(remains().mutex);
  remains().all.push_back(std::move(work));
}

void DeviceWork::sweep() {
  std::vector<std::shared_ptr<const DeviceWork>> through;  // ends after the lock
  const std::lock_guard lock(remains().mutex);
  auto& all = remains().all;
  const auto end = std::ranges::partition(all, [](const auto& one) { return !one->is_through(); }).begin();
  through.assign(std::move_iterator(end), std::move_iterator(all.end()));
  all.erase(end, all.end());
}

bool is_reached(const cuda::Event& event) {
  Result<bool> reached = event.is_complete();
  if (!reached.ok()) reached = event.is_complete();  // one that fails again has a context that is lost
  return !reached.ok() || reached.value();
}

void DeviceTrail::tidy() {
  constexpr std::size_t kMany = 16;
  if (all_.size() >= kMany) std::erase_if(all_, [](const Last& last) { return is_reached(last.event); });
}

Result<const cuda::Event*> DeviceTrail::on(const std::shared_ptr<cuda::Device>& device, cuda::StreamHandle stream,
                                           Ranks ranks) {
  for (Last& last : all_) {
    if (last.stream != stream || last.device != device) continue;
    last.ranks |= ranks;
    return &last.event;
  }
  TUTTI_TRY_ASSIGN(cuda::Event event, cuda::Event::create(device));
  return &all_.emplace_back(stream, device, std::move(event), ranks).event;
}

bool DeviceTrail::is_through(Ranks ranks) const {
  return std::ranges::all_of(all_,
                             [&](const Last& last) { return (last.ranks & ranks) == 0 || is_reached(last.event); });
}

}  // namespace tutti::comm
