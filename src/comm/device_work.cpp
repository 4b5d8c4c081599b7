#include "comm/device_work.h"

#include "comm/communicator.h"
#include "executor/backoff.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <utility>

namespace tutti::comm {
namespace {

/// What outlives its communicator. Never destroyed: a process ends without.
struct Remains {
  struct Kept {
    std::shared_ptr<const DeviceWork> work;
    std::optional<int> device;
  };
  std::mutex mutex;
  std::list<Kept> all;
};
Remains& remains() {
  static auto* made = new Remains;
  return *made;
}

/// Ranks of this process, by device.
struct Tenants {
  std::mutex mutex;
  std::map<int, int> counts;
};
Tenants& tenants() {
  static auto* made = new Tenants;
  return *made;
}

}  // namespace

DeviceTenant::DeviceTenant(int device) : device_(device) {
  const std::lock_guard lock(tenants().mutex);
  ++tenants().counts[device];
}

DeviceTenant::~DeviceTenant() {
  const std::lock_guard lock(tenants().mutex);
  --tenants().counts[device_];
}

bool may_free(int device, int own) {
  if (device == own) return true;
  const std::lock_guard lock(tenants().mutex);
  return tenants().counts[device] == 0;
}

void release_graph_memory(int own) {
  cuda::release_graph_memory([own](int device) { return may_free(device, own); });
}

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

void DeviceWork::keep(std::shared_ptr<const DeviceWork> work, std::optional<int> device) {
  if (!work->is_through()) leave(std::move(work), device);
}

void DeviceWork::leave(std::shared_ptr<const DeviceWork> work, std::optional<int> device) try {
  std::list<Remains::Kept> one(1);
  one.front() = {std::move(work), device};
  const std::lock_guard lock(remains().mutex);
  remains().all.splice(remains().all.end(), one);
} catch (const std::bad_alloc&) {
  // It stays for ever.
  alignas(std::shared_ptr<const DeviceWork>) std::byte room[sizeof work];
  new (room) std::shared_ptr<const DeviceWork>(std::move(work));
}

namespace {

std::list<Remains::Kept> take_what_is_through(int device) {
  std::list<Remains::Kept> through;
  const std::lock_guard lock(remains().mutex);
  auto& all = remains().all;
  for (auto one = all.begin(); one != all.end();) {
    const auto its = one++;
    if (may_free(its->device.value_or(device), device) && its->work->is_through())
      through.splice(through.end(), all, its);
  }
  return through;
}

}  // namespace

void DeviceWork::sweep(int device) {
  // What goes may leave something itself.
  while (!take_what_is_through(device).empty()) continue;
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
  TUTTI_TRY_ASSIGN(const std::uint64_t id, cuda::stream_id(*device, stream));
  for (Last& last : all_) {
    if (last.stream != id || last.device != device) continue;
    last.ranks |= ranks;
    return &last.event;
  }
  TUTTI_TRY_ASSIGN(cuda::Event event, cuda::Event::create(device));
  return &all_.emplace_back(id, device, std::move(event), ranks).event;
}

bool DeviceTrail::is_through(Ranks ranks) const {
  return std::ranges::all_of(all_,
                             [&](const Last& last) { return (last.ranks & ranks) == 0 || is_reached(last.event); });
}

}  // namespace tutti::comm
