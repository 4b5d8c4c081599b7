#include "transport/address_table.h"

#include "base/assert.h"

#include <sched.h>

#include <algorithm>

namespace tutti::transport {
namespace {

constexpr std::size_t kFirstCapacity = 32;

/// How many of the entries start at or below `address`.
template <class EntryT>
std::size_t starts_up_to(const EntryT* entries, std::size_t count, std::uintptr_t address) {
  std::size_t low = 0;
  std::size_t high = count;
  while (low < high) {
    const std::size_t middle = low + (high - low) / 2;
    if (entries[middle].start.load(std::memory_order_acquire) <= address)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

}  // namespace

AddressTable::AddressTable() { grow(); }

void AddressTable::store(Entry& entry, const Segment& segment) {
  entry.start.store(segment.start, std::memory_order_release);
  entry.bytes.store(segment.bytes, std::memory_order_release);
  entry.file.store(segment.file, std::memory_order_release);
  entry.number_and_fd.store(std::uint64_t{segment.number} << 32 | static_cast<std::uint32_t>(segment.fd),
                            std::memory_order_release);
}

AddressTable::Segment AddressTable::load(const Entry& entry) {
  Segment segment;
  segment.start = entry.start.load(std::memory_order_acquire);
  segment.bytes = entry.bytes.load(std::memory_order_acquire);
  segment.file = entry.file.load(std::memory_order_acquire);
  const std::uint64_t number_and_fd = entry.number_and_fd.load(std::memory_order_acquire);
  segment.number = static_cast<std::uint32_t>(number_and_fd >> 32);
  segment.fd = static_cast<std::int32_t>(static_cast<std::uint32_t>(number_and_fd));
  return segment;
}

void AddressTable::begin_change() {
  sequence_.store(sequence_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

void AddressTable::end_change() {
  sequence_.store(sequence_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

/// Readers may go on in the old array: it is not changed any more and still right.
void AddressTable::grow() {
  const std::size_t capacity = std::max(kFirstCapacity, capacity_ * 2);
  arrays_.push_back(std::make_unique<Entry[]>(capacity));
  Entry* next = arrays_.back().get();
  const Entry* old = entries_.load(std::memory_order_relaxed);
  for (std::size_t i = 0; i < capacity_; ++i) store(next[i], load(old[i]));
  capacity_ = capacity;
  entries_.store(next, std::memory_order_release);
}

void AddressTable::insert(const Segment& segment) {
  const std::size_t count = count_.load(std::memory_order_relaxed);
  if (count == capacity_) grow();  // it may throw: not in the middle of a change, which readers would wait for
  begin_change();
  Entry* entries = entries_.load(std::memory_order_relaxed);
  const std::size_t place = starts_up_to(entries, count, segment.start);
  for (std::size_t i = count; i > place; --i) store(entries[i], load(entries[i - 1]));
  store(entries[place], segment);
  count_.store(count + 1, std::memory_order_release);
  end_change();
}

std::optional<AddressTable::Segment> AddressTable::remove(std::uintptr_t start) {
  Entry* entries = entries_.load(std::memory_order_relaxed);
  const std::size_t count = count_.load(std::memory_order_relaxed);
  const std::size_t after = starts_up_to(entries, count, start);
  if (after == 0) return std::nullopt;
  const Segment found = load(entries[after - 1]);
  if (found.start != start) return std::nullopt;
  begin_change();
  for (std::size_t i = after; i < count; ++i) store(entries[i - 1], load(entries[i]));
  count_.store(count - 1, std::memory_order_release);
  end_change();
  return found;
}

bool AddressTable::has_shorter(std::uint64_t file, std::uint64_t bytes) const {
  const Entry* entries = entries_.load(std::memory_order_relaxed);
  const std::size_t count = count_.load(std::memory_order_relaxed);
  for (std::size_t i = 0; i < count; ++i) {
    const Segment segment = load(entries[i]);
    if (segment.file == file && segment.bytes < bytes) return true;
  }
  return false;
}

std::optional<SharedReference> AddressTable::find(std::uintptr_t address, std::uint64_t bytes) const {
  for (;;) {
    const std::uint64_t before = sequence_.load(std::memory_order_acquire);
    if (before % 2 != 0) {
      sched_yield();
      continue;
    }
    // The array before the count could pair an old array with a new, larger count: the count comes first. Arrays only
    // grow, so a later array holds at least that many.
    const std::size_t count = count_.load(std::memory_order_acquire);
    const Entry* entries = entries_.load(std::memory_order_acquire);
    const std::size_t after = starts_up_to(entries, count, address);
    Segment segment;
    if (after > 0) segment = load(entries[after - 1]);
    if (sequence_.load(std::memory_order_relaxed) != before) continue;
    if (after == 0) return std::nullopt;
    const std::uint64_t offset = address - segment.start;
    if (offset >= segment.bytes || bytes > segment.bytes - offset) return std::nullopt;
    return SharedReference{segment.number, segment.fd, segment.file, offset, segment.bytes};
  }
}

}  // namespace tutti::transport
