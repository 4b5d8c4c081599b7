#include "comm/registry.h"

#include "comm/communicator.h"

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

namespace tutti::comm {
namespace {

// Bits of a handle: 0..15 slot, 16..47 generation, 52..59 a mark that user-space pointers do not have.
constexpr std::uint64_t kMark = std::uint64_t{0xC0} << 52;
constexpr std::uint32_t kSlots = 1 << 14;

struct Slot {
  std::atomic<std::uint64_t> handle{0};  ///< of the communicator in it, 0 = free
  std::atomic<Communicator*> communicator{nullptr};
  std::shared_ptr<Communicator> owner;  ///< guarded by the mutex
  std::uint32_t generation = 0;         ///< guarded by the mutex
};

std::mutex mutex;
// Never destroyed: a program may end while other threads are inside calls, or without destroying its communicators.
Slot* const slots = new Slot[kSlots];
std::uint32_t used = 0;
std::vector<std::uint32_t>& free_slots() {
  static auto* list = new std::vector<std::uint32_t>;
  return *list;
}

Slot* slot_of(Handle handle) {
  const auto bits = reinterpret_cast<std::uint64_t>(handle);
  const std::uint64_t index = bits & 0xffff;
  if ((bits & kMark) != kMark || index >= kSlots) return nullptr;
  Slot& slot = slots[index];
  return slot.handle.load(std::memory_order_acquire) == bits ? &slot : nullptr;
}

}  // namespace

Handle add(std::shared_ptr<Communicator> communicator) {
  const std::lock_guard lock(mutex);
  std::uint32_t index = used;
  if (!free_slots().empty()) {
    index = free_slots().back();
    free_slots().pop_back();
  } else if (used < kSlots) {
    ++used;
  } else {
    return nullptr;
  }
  Slot& slot = slots[index];
  slot.owner = std::move(communicator);
  slot.communicator.store(slot.owner.get(), std::memory_order_relaxed);
  const std::uint64_t bits = kMark | std::uint64_t{++slot.generation} << 16 | index;
  slot.owner->set_handle(reinterpret_cast<Handle>(bits));
  slot.handle.store(bits, std::memory_order_release);
  return reinterpret_cast<Handle>(bits);
}

std::shared_ptr<Communicator> remove(Handle handle) {
  const std::lock_guard lock(mutex);
  Slot* slot = slot_of(handle);
  if (!slot) return nullptr;
  slot->handle.store(0, std::memory_order_release);
  slot->communicator.store(nullptr, std::memory_order_release);
  free_slots().push_back(static_cast<std::uint32_t>(slot - slots));
  return std::move(slot->owner);
}

Registry::Registry() : lock_(mutex) {}

std::shared_ptr<Communicator> Registry::share(Handle handle) const {
  const Slot* const slot = slot_of(handle);
  return slot ? slot->owner : nullptr;
}

[[gnu::hot]] Communicator* find(Handle handle) {
  Slot* slot = slot_of(handle);
  return slot ? slot->communicator.load(std::memory_order_acquire) : nullptr;
}

}  // namespace tutti::comm
