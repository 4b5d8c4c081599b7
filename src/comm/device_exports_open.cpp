// What a rank opens of others' exports, and lets go of (device_exports.h).
#include "base/log.h"
#include "comm/device_exports.h"
#include "cuda/access.h"

#include <atomic>
#include <cstring>

namespace tutti::comm {

void DeviceExports::let_go() {
  if (works() && have_changed(looked_at_)) (void)look(false);
}

bool DeviceExports::have_changed(const std::vector<std::uint64_t>& since) {
  const std::lock_guard lock(mutex_);
  for (int peer = 0; peer < control_.ranks(); ++peer) {
    if (peer == rank_) continue;
    const std::uint64_t changes = std::atomic_ref(board(peer).changes).load(std::memory_order_acquire);
    if (changes != since[static_cast<std::size_t>(peer)]) return true;
  }
  return false;
}

std::string DeviceExports::why_not(int peer, std::uint64_t mapping) {
  // Who has the lock may wait for the device, and that for whoever asks.
  const std::unique_lock lock(mutex_, std::try_to_lock);
  const std::uint64_t place = mapping - DeviceSegment::export_mapping(0, 0);
  return lock && place < kPlaces ? imports_[static_cast<std::size_t>(peer)][place].why_not : "";
}

Status DeviceExports::look(bool opens) {
  const std::lock_guard lock(mutex_);
  if (is_closed_) return {};
  for (int peer = 0; peer < control_.ranks(); ++peer) {
    const auto index = static_cast<std::size_t>(peer);
    const std::uint64_t changes = std::atomic_ref(board(peer).changes).load(std::memory_order_seq_cst);
    if (peer == rank_ || changes == (opens ? opened_at_ : looked_at_)[index]) continue;
    for (std::size_t place = 0; place < kPlaces; ++place) TUTTI_TRY(look_at(peer, place, opens));
    looked_at_[index] = changes;
    if (opens) opened_at_[index] = changes;
  }
  sift_mail();
  return {};
}

/// What was sent lies at an earlier place than its number: it is wanted until that is known, and opened or gone.
void DeviceExports::sift_mail() {
  mail_.sift(MailOf::kExport, [this](const MailKey& key) {
    if (key.from < 0 || key.from >= control_.ranks()) return false;
    Board& theirs = board(key.from);
    if (key.number > std::atomic_ref(theirs.exported).load(std::memory_order_seq_cst)) return true;
    const auto& imports = imports_[static_cast<std::size_t>(key.from)];
    for (std::size_t i = 0; i < kPlaces; ++i) {
      const std::uint64_t number = std::atomic_ref(theirs.places[i].number).load(std::memory_order_seq_cst);
      if (number == key.number) return imports[i].number != number;
    }
    return false;
  });
}

Status DeviceExports::look_at(int peer, std::size_t at, bool opens) {
  Place& place = board(peer).places[at];
  Import& import = imports_[static_cast<std::size_t>(peer)][at];
  const std::atomic_ref number(place.number);
  const std::atomic_ref holders(place.holders);
  const std::uint32_t bit = 1u << rank_;
  if (import.number != 0 && number.load(std::memory_order_seq_cst) != import.number) {
    TUTTI_TRY(segment_.set_mapping(peer, DeviceSegment::export_mapping(at, 0), cuda::kNoMapping));
    import = {};
    holders.fetch_and(~bit, std::memory_order_seq_cst);
  }
  const std::uint64_t found = number.load(std::memory_order_seq_cst);
  if (!opens || found == import.number) return {};
  holders.fetch_or(bit, std::memory_order_seq_cst);
  if (number.load(std::memory_order_seq_cst) != found) {
    holders.fetch_and(~bit, std::memory_order_seq_cst);
    return {};
  }
  import.number = found;  // from here on the bit goes with it, whatever happens
  const Result<std::uint64_t> base = open(peer, place, import);
  if (!base.ok()) {
    holders.fetch_and(~bit, std::memory_order_seq_cst);
    import.why_not = base.error().message;
    log_info("rank {} cannot open what rank {} has at {:#x}: {}", rank_, peer, place.allocation, import.why_not);
    return {};
  }
  return segment_.set_mapping(peer, DeviceSegment::export_mapping(at, found), base.value());
}

Result<std::uint64_t> DeviceExports::open(int peer, const Place& place, Import& import) {
  if (same_process_[static_cast<std::size_t>(peer)]) {
    // Memory of cudaMalloc is reached as the peer's segment is.
    if (place.mailed == 0) return place.allocation;
    const int device = device_->facts().ordinal;
    const auto* const memory = reinterpret_cast<const void*>(place.allocation);
    TUTTI_TRY(cuda::allow_access(*device_, memory, place.mailed, {&device, 1}));
    return place.allocation;
  }
  if (place.mailed != 0) {
    TUTTI_TRY_ASSIGN(const cuda::SharedPieces pieces, mail_.take({MailOf::kExport, peer, place.number}));
    TUTTI_TRY_ASSIGN(import.pieces, cuda::ImportedPieces::open(*device_, pieces));
    return import.pieces.begin();
  }
  cuda::MemoryHandle handle{};
  std::memcpy(&handle, place.handle, sizeof handle);
  TUTTI_TRY_ASSIGN(import.memory, cuda::ImportedMemory::open(handle, device_->context()));
  return reinterpret_cast<std::uint64_t>(import.memory.data());
}

}  // namespace tutti::comm
