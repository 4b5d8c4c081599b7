#include "comm/device_windows.h"

#include "executor/backoff.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace tutti::comm {

Status DeviceWindows::share(Window& window, DeviceWindow& place) const {
  const auto* const begin = reinterpret_cast<const void*>(window.begin);
  TUTTI_TRY_ASSIGN(const cuda::PointerFacts facts, cuda::pointer_facts(begin));
  window.buffer_id = facts.buffer_id;
  if (facts.kind != cuda::MemoryKind::kDevice) return {};
  TUTTI_TRY_ASSIGN(const cuda::AddressRange range, cuda::address_range(begin));
  const auto* const allocation = reinterpret_cast<const void*>(range.begin);
  const Result<cuda::MemoryHandle> handle = cuda::export_memory(allocation, device_.context());
  if (!handle.ok()) return {};  // memory of pools, for instance: calls use the staging
  std::memcpy(place.handle, &handle.value(), sizeof place.handle);
  window.allocation = place.allocation = range.begin;
  place.exported = 1;
  return {};
}

Status DeviceWindows::add(const void* begin, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  Window window;
  window.number = ++added_;
  window.begin = reinterpret_cast<std::uint64_t>(begin);
  window.bytes = bytes;
  const std::size_t at = place_of(window.number);
  // All ranks have the same ones, and leave out the same ones.
  if (std::ranges::any_of(windows_, [&](const Window& other) { return place_of(other.number) == at; })) return {};
  DeviceWindow& place = comm_.members().control.device_card(comm_.rank()).windows[at];
  place.exported = 0;
  const Status shared = share(window, place);
  executor::store_release(&place.number, window.number);
  windows_.push_back(std::move(window));
  return shared;
}

void DeviceWindows::remove(const void* begin) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(windows_, reinterpret_cast<std::uint64_t>(begin), &Window::begin);
  if (found != windows_.end()) windows_.erase(found);
}

Result<std::optional<protocol::BufferReference>> DeviceWindows::find(const void* address, std::size_t bytes) {
  std::optional<protocol::BufferReference> none;
  const auto at = reinterpret_cast<std::uint64_t>(address);
  const std::lock_guard lock(mutex_);
  for (Window& window : windows_) {
    if (at < window.begin || at + bytes > window.begin + window.bytes) continue;
    TUTTI_TRY_ASSIGN(const cuda::PointerFacts facts, cuda::pointer_facts(address));
    if (facts.buffer_id != window.buffer_id) continue;
    if (!window.is_linked) TUTTI_TRY(link(window));
    if (!window.is_usable) return none;
    return std::optional(
        protocol::BufferReference{DeviceSegment::window_mapping(place_of(window.number)), at - window.allocation});
  }
  return none;
}

Status DeviceWindows::wait_for(int peer, const Window& window) const {
  const Control& control = comm_.members().control;
  const std::uint64_t& number = control.device_card(peer).windows[place_of(window.number)].number;
  const double limit = control.settings().timeout_s;
  const auto since = std::chrono::steady_clock::now();
  executor::Backoff backoff(true);
  while (executor::load_acquire(&number) < window.number) {
    if (comm_.failed()) return comm_.failure();
    const bool late = limit > 0 && std::chrono::steady_clock::now() - since > std::chrono::duration<double>(limit);
    if (late || comm_.has_left(peer)) {
      return error(Code::kRemote,
                   fmt::format("rank {} has not registered its window {} (ncclCommWindowRegister), which all ranks "
                               "must, and rank {} calls with one",
                               peer, window.number, comm_.rank()));
    }
    backoff.wait();
  }
  return {};
}

Status DeviceWindows::link(Window& window) {
  const Membership& members = comm_.members();
  const std::size_t place = place_of(window.number);
  bool usable = true;
  for (int r = 0; r < comm_.ranks(); ++r) {
    TUTTI_TRY(wait_for(r, window));
    usable &= members.control.device_card(r).windows[place].exported != 0;
  }
  for (int r = 0; usable && r < comm_.ranks(); ++r) {
    const DeviceWindow& theirs = members.control.device_card(r).windows[place];
    std::uint64_t base = theirs.allocation;
    if (!members.reach.same_process(r)) {
      cuda::MemoryHandle handle{};
      std::memcpy(&handle, theirs.handle, sizeof handle);
      TUTTI_TRY_ASSIGN(cuda::ImportedMemory memory, cuda::ImportedMemory::open(handle, device_.context()));
      base = reinterpret_cast<std::uint64_t>(memory.data());
      window.imports.push_back(std::move(memory));
    }
    TUTTI_TRY(segment_.set_window(r, place, base));
  }
  window.is_linked = true;
  window.is_usable = usable;
  return {};
}

}  // namespace tutti::comm
