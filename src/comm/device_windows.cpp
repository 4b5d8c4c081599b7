#include "comm/device_windows.h"

#include "base/log.h"
#include "cuda/access.h"
#include "executor/backoff.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace tutti::comm {

Status DeviceWindows::share(Window& window, DeviceWindow& place) const {
  const auto* const begin = reinterpret_cast<const void*>(window.begin);
  TUTTI_TRY_ASSIGN(const cuda::PointerFacts facts, cuda::pointer_facts(begin));
  if (facts.kind != cuda::MemoryKind::kDevice) return {};
  TUTTI_TRY_ASSIGN(const cuda::AddressRange range, cuda::address_range(device_, begin));
  const auto* const allocation = reinterpret_cast<const void*>(range.begin);
  const Result<cuda::MemoryHandle> handle = cuda::export_memory(allocation, device_.context());
  if (!handle.ok()) return share_pieces(window, place, handle.error().message);
  std::memcpy(place.handle, &handle.value(), sizeof place.handle);
  place.allocation = range.begin;
  place.bytes = range.bytes;
  place.kind = DeviceWindowKind::kHandle;
  TUTTI_TRY_ASSIGN(const DeviceAllocation whole, DeviceAllocation::look_up(range.begin, range.begin + range.bytes));
  window.allocations = {whole};
  return {};
}

Status DeviceWindows::share_pieces(Window& window, DeviceWindow& place, const std::string& why_no_handle) const {
  const Result<cuda::SharedPieces> exported =
      cuda::export_pieces(device_, reinterpret_cast<const void*>(window.begin), window.bytes, DeviceMail::kPiecesMax);
  if (!exported.ok()) {
    // Memory of pools, for instance.
    log_info("window {} of rank {} is not shared with other processes, calls copy what lies in it: {}; {}",
             window.number, comm_.rank(), why_no_handle, exported.error().message);
    return {};
  }
  const cuda::SharedPieces& pieces = exported.value();
  std::vector<DeviceAllocation> allocations;
  std::uint64_t at = pieces.begin;
  for (const std::size_t bytes : pieces.bytes) {
    TUTTI_TRY_ASSIGN(const DeviceAllocation piece, DeviceAllocation::look_up(at, at + bytes));
    allocations.push_back(piece);
    at += bytes;
  }
  const Membership& members = comm_.members();
  for (int r = 0; r < comm_.ranks(); ++r) {
    if (members.reach.same_process(r)) continue;
    const Status sent = DeviceMail::send(members.control.device_card(r), comm_.rank(), window.number, pieces);
    if (!sent.ok()) {
      log_warn(
          "window {} of rank {} lies in {} pieces of memory, which could not be sent to rank {}, so that calls copy "
          "what lies in it: {}; a user's processes may have as many descriptors on their way as one may have open "
          "(ulimit -n)",
          window.number, comm_.rank(), pieces.bytes.size(), r, sent.error().message);
      return {};
    }
  }
  place.allocation = pieces.begin;
  place.bytes = pieces.total();
  place.kind = DeviceWindowKind::kMailed;
  window.allocations = std::move(allocations);
  return {};
}

Result<bool> DeviceWindows::Window::holds(std::uint64_t at, std::size_t length) const {
  const std::uint64_t last = at + std::max<std::size_t>(length, 1) - 1;
  for (std::uint64_t byte = at;; byte = last) {
    const auto one =
        std::ranges::find_if(allocations, [byte](const DeviceAllocation& found) { return found.holds(byte, 1); });
    if (one == allocations.end()) return false;
    TUTTI_TRY_ASSIGN(const bool is_there, one->is_there());
    if (!is_there) return false;
    if (last < one->end) return true;
  }
}

void DeviceWindows::sift_mail() {
  mail_.sift([this](std::uint64_t number) {
    const auto found = std::ranges::find(windows_, number, &Window::number);
    return number > added_ || (found != windows_.end() && !found->is_linked);
  });
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
  place.kind = DeviceWindowKind::kNone;
  const Status shared = share(window, place);
  // Nobody will remove one that has failed, and the others find that they cannot use theirs.
  if (!shared.ok()) place.kind = DeviceWindowKind::kNone;
  executor::store_release(&place.number, window.number);
  if (shared.ok()) windows_.push_back(std::move(window));
  sift_mail();
  return shared;
}

void DeviceWindows::remove(const void* begin, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto at = reinterpret_cast<std::uint64_t>(begin);
  const auto found =
      std::ranges::find_if(windows_, [&](const Window& window) { return window.begin == at && window.bytes == bytes; });
  if (found != windows_.end()) windows_.erase(found);
  sift_mail();
}

Result<std::optional<protocol::BufferReference>> DeviceWindows::find(const void* address, std::size_t bytes) {
  std::optional<protocol::BufferReference> none;
  const auto at = reinterpret_cast<std::uint64_t>(address);
  const std::lock_guard lock(mutex_);
  for (Window& window : windows_) {
    if (at < window.begin || at + bytes > window.begin + window.bytes) continue;
    TUTTI_TRY_ASSIGN(const bool holds, window.holds(at, bytes));
    // One that this rank could not share is found by none of them.
    if (!holds && !window.allocations.empty()) continue;
    if (!window.is_linked) TUTTI_TRY(link(window));
    if (!window.is_usable) return none;
    return std::optional(protocol::BufferReference{DeviceSegment::window_mapping(place_of(window.number)),
                                                   at - window.allocations.front().begin});
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
    TUTTI_TRY_ASSIGN(const cuda::SharedPieces pieces, mail_.take(peer, window.number));
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
    TUTTI_TRY(segment_.set_mapping(r, DeviceSegment::window_mapping(place), base));
  }
  window.is_linked = true;
  window.is_usable = usable;
  sift_mail();
  return {};
}

}  // namespace tutti::comm
