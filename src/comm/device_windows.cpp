#include "comm/device_windows.h"

#include "base/log.h"
#include "cuda/access.h"
#include "executor/backoff.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>

namespace tutti::comm {

Status DeviceWindows::share(Window& window, DeviceWindow& place) const {
  const auto* const begin = reinterpret_cast<const void*>(window.begin);
  TUTTI_TRY_ASSIGN(const cuda::PointerFacts facts, cuda::pointer_facts(begin));
  if (facts.kind != cuda::MemoryKind::kDevice) return {};
  TUTTI_TRY_ASSIGN(const cuda::AddressRange range, cuda::address_range(device_, begin));
  const auto* const allocation = reinterpret_cast<const void*>(range.begin);
  TUTTI_TRY_ASSIGN(const cuda::Sharing sharing, cuda::sharing_of(allocation));
  const Result<cuda::MemoryHandle> handle = cuda::export_memory(allocation, sharing, device_.context());
  if (!handle.ok()) return share_pieces(window, place, sharing, handle.error().message);
  std::memcpy(place.handle, &handle.value(), sizeof place.handle);
  place.allocation = range.begin;
  place.bytes = range.bytes;
  place.kind = DeviceWindowKind::kHandle;
  TUTTI_TRY_ASSIGN(const DeviceAllocation whole, DeviceAllocation::look_up(range.begin, range.begin + range.bytes));
  window.extent.pieces = {whole};
  return {};
}

Status DeviceWindows::share_pieces(Window& window, DeviceWindow& place, cuda::Sharing sharing,
                                   const std::string& why_no_handle) const {
  const Membership& members = comm_.members();
  std::vector<const DeviceCard*> others;
  for (int r = 0; r < comm_.ranks(); ++r) {
    if (!members.reach.same_process(r)) others.push_back(&members.control.device_card(r));
  }
  const Result<cuda::SharedPieces> shared =
      DeviceMail::share(device_, reinterpret_cast<const void*>(window.begin), window.bytes, sharing, others,
                        {MailOf::kWindow, comm_.rank(), window.number});
  if (!shared.ok()) {
    // Memory of pools, for instance.
    log_unshared(fmt::format("window {} of rank {}", window.number, comm_.rank()), why_no_handle, shared.error());
    return {};
  }
  TUTTI_TRY_ASSIGN(window.extent, DeviceExtent::look_up(shared.value()));
  place.allocation = window.extent.begin();
  place.bytes = window.extent.end() - window.extent.begin();
  place.kind = DeviceWindowKind::kMailed;
  return {};
}

void DeviceWindows::sift_mail() {
  mail_.sift(MailOf::kWindow, [this](const MailKey& key) {
    const auto found = std::ranges::find(windows_, key.number, &Window::number);
    return key.number > added_ || (found != windows_.end() && !found->is_linked);
  });
}

Status DeviceWindows::add(const void* begin, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t number = ++added_;
  const std::size_t at = place_of(number);
  // All ranks have the same ones, and leave out the same ones.
  if (std::ranges::any_of(windows_, [&](const Window& other) { return place_of(other.number) == at; })) return {};
  DeviceWindow& place = comm_.members().control.device_card(comm_.rank()).windows[at];
  place.kind = DeviceWindowKind::kNone;
  // Nobody will remove one that has failed, and the others find that they cannot use theirs.
  const auto publish = [&](bool is_shared) {
    if (!is_shared) place.kind = DeviceWindowKind::kNone;
    if (!is_shared) std::erase_if(windows_, [&](const Window& window) { return window.number == number; });
    executor::store_release(&place.number, number);
  };
  try {
    Window& window = windows_.emplace_back();
    window.number = number;
    window.begin = reinterpret_cast<std::uint64_t>(begin);
    window.bytes = bytes;
    Status shared = share(window, place);
    publish(shared.ok());
    sift_mail();
    return shared;
  } catch (const std::bad_alloc&) {
    publish(false);
    throw;
  }
}

void DeviceWindows::end(const void* begin, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto at = reinterpret_cast<std::uint64_t>(begin);
  const auto is_it = [&](const Window& window) {
    return window.begin == at && window.bytes == bytes && !window.is_ended;
  };
  if (const auto found = std::ranges::find_if(windows_, is_it); found != windows_.end()) found->is_ended = true;
}

void DeviceWindows::remove(const void* begin, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto at = reinterpret_cast<std::uint64_t>(begin);
  const auto is_it = [&](const Window& window) {
    return window.begin == at && window.bytes == bytes && window.is_ended;
  };
  const auto found = std::ranges::find_if(windows_, is_it);
  if (found != windows_.end()) {
    // Graphs that still use it are to find that it is gone. If they would not, the others' stay open, and nobody makes calls any more.
    for (int r = 0; found->is_usable && r < comm_.ranks(); ++r) {
      const Status told = segment_.set_mapping(r, mapping_of(*found), cuda::kNoMapping);
      if (!told.ok()) return comm_.fail(told.error().code, comm_.rank(), told.error().message);
    }
    windows_.erase(found);
  }
  sift_mail();
}

Result<std::optional<protocol::BufferReference>> DeviceWindows::find(const void* address, std::size_t bytes) {
  std::optional<protocol::BufferReference> none;
  const auto at = reinterpret_cast<std::uint64_t>(address);
  const std::lock_guard lock(mutex_);
  for (Window& window : windows_) {
    if (window.is_ended || at < window.begin || at + bytes > window.begin + window.bytes) continue;
    TUTTI_TRY_ASSIGN(const bool is_there, window.extent.is_there(at, bytes));
    // One that this rank could not share is found by none of them.
    if (!is_there && !window.extent.pieces.empty()) continue;
    if (!window.is_linked) TUTTI_TRY(link(window));
    if (!window.is_usable) return none;
    return std::optional(protocol::BufferReference{mapping_of(window), at - window.extent.begin()});
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
                   fmt::format("rank {} has no window {}, with which rank {} calls: all ranks must register theirs "
                               "(ncclCommWindowRegister), and deregister those that failed on another rank",
                               peer, window.number, comm_.rank()));
    }
    backoff.wait();
  }
  return {};
}

Result<std::uint64_t> DeviceWindows::map(int peer, Window& window) {
  const DeviceWindow& theirs = comm_.members().control.device_card(peer).windows[place_of(window.number)];
  if (comm_.members().reach.same_process(peer)) {
    // Those of cudaMalloc are reached as the peer's segment is.
    if (theirs.kind == DeviceWindowKind::kMailed) {
      const int device = device_.facts().ordinal;
      const auto* const memory = reinterpret_cast<const void*>(theirs.allocation);
      TUTTI_TRY(cuda::allow_access(device_, memory, theirs.bytes, {&device, 1}));
    }
    return theirs.allocation;
  }
  if (theirs.kind == DeviceWindowKind::kMailed) {
    TUTTI_TRY_ASSIGN(const cuda::SharedPieces pieces, mail_.take({MailOf::kWindow, peer, window.number}));
    TUTTI_TRY_ASSIGN(cuda::ImportedPieces memory, cuda::ImportedPieces::open(device_, pieces));
    window.imported_pieces.push_back(std::move(memory));
    return window.imported_pieces.back().begin();
  }
  cuda::MemoryHandle handle{};
  std::memcpy(&handle, theirs.handle, sizeof handle);
  TUTTI_TRY_ASSIGN(cuda::ImportedMemory memory, cuda::ImportedMemory::open(handle, device_.context()));
  window.imports.push_back(std::move(memory));
  return reinterpret_cast<std::uint64_t>(window.imports.back().data());
}

Status DeviceWindows::link(Window& window) {
  const std::size_t place = place_of(window.number);
  bool usable = true;
  for (int r = 0; r < comm_.ranks(); ++r) {
    TUTTI_TRY(wait_for(r, window));
    // A later one is in the place of one that the rank could not add.
    const DeviceWindow& theirs = comm_.members().control.device_card(r).windows[place];
    usable &= executor::load_acquire(&theirs.number) == window.number && theirs.kind != DeviceWindowKind::kNone;
  }
  for (int r = 0; usable && r < comm_.ranks(); ++r) {
    TUTTI_TRY_ASSIGN(const std::uint64_t base, map(r, window));
    TUTTI_TRY(segment_.set_mapping(r, mapping_of(window), base));
  }
  window.is_linked = true;
  window.is_usable = usable;
  sift_mail();
  return {};
}

}  // namespace tutti::comm
