#include "comm/registry.h"

#include "comm/communicator.h"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace tutti::comm {
namespace {

// Bits of a handle: 0..15 slot, 16..47 generation, 52..59 a mark that user-space pointers do not have.
constexpr std::uint64_t kMark = std::uint64_t{0xC0} << 52;
/// In place of kMark in the slot's copy of a handle that a forked child has inherited: find() sees another handle there, and pays nothing.
constexpr std::uint64_t kInheritedMark = std::uint64_t{0x80} << 52;
constexpr std::uint32_t kSlots = kOpenMax;

struct Slot {
  std::atomic<std::uint64_t> handle{0};  ///< of the communicator in it, 0 = free
  std::atomic<Communicator*> communicator{nullptr};
  std::shared_ptr<Communicator> owner;  ///< guarded by the mutex
  std::uint32_t generation = 0;         ///< guarded by the mutex
  std::int32_t process = 0;             ///< that made the communicator; guarded by the mutex
};

using Clock = std::chrono::steady_clock;
using Grave = std::pair<Clock::time_point, std::shared_ptr<Communicator>>;

constinit std::mutex mutex;
// Never destroyed: a program may end while other threads are inside calls, or without destroying its communicators.
Slot* const slots = new Slot[kSlots];
std::uint32_t used = 0;
std::vector<std::uint32_t>& free_slots() {
  static auto* list = [] {
    auto made = std::make_unique<std::vector<std::uint32_t>>();
    made->reserve(kSlots);  // remove() may be called where memory has run out
    return made.release();
  }();
  return *list;
}

/// Guarded by the mutex, and never destroyed.
std::deque<Grave>* graves = nullptr;

/// In a forked child, which has none of the threads that work for its parent's communicators, while their memory, sockets and devices
/// are still the parent's: it keeps its copies of these objects as they are, and never touches them again.
void disown() {
  for (std::uint32_t i = 0; i < used; ++i) {
    const std::uint64_t bits = slots[i].handle.load(std::memory_order_relaxed);
    if ((bits & kMark) == kMark) slots[i].handle.store(bits ^ kMark ^ kInheritedMark, std::memory_order_relaxed);
  }
  graves = nullptr;
}

// When the library is loaded, as for FirstUse.
[[maybe_unused]] const int registered = pthread_atfork([] { mutex.lock(); }, [] { mutex.unlock(); },
                                                       [] {
                                                         disown();
                                                         mutex.unlock();
                                                       });

/// With the lock held. nullptr for what is no inherited handle.
Slot* inherited_slot_of(Handle handle) {
  const auto bits = reinterpret_cast<std::uint64_t>(handle);
  const std::uint64_t index = bits & 0xffff;
  if ((bits & kMark) != kMark || index >= kSlots) return nullptr;
  return slots[index].handle.load(std::memory_order_relaxed) == (bits ^ kMark ^ kInheritedMark) ? &slots[index]
                                                                                                : nullptr;
}

Slot* slot_of(Handle handle) {
  const auto bits = reinterpret_cast<std::uint64_t>(handle);
  const std::uint64_t index = bits & 0xffff;
  if ((bits & kMark) != kMark || index >= kSlots) return nullptr;
  Slot& slot = slots[index];
  return slot.handle.load(std::memory_order_acquire) == bits ? &slot : nullptr;
}

}  // namespace

[[gnu::cold]] Handle add(std::shared_ptr<Communicator> communicator) {
  // After what the communicator works with has been loaded, so that it is still there then.
  [[maybe_unused]] static const int registered_exit = std::atexit(leave_all);
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
  slot.process = getpid();
  slot.communicator.store(slot.owner.get(), std::memory_order_relaxed);
  const std::uint64_t bits = kMark | std::uint64_t{++slot.generation} << 16 | index;
  slot.owner->set_handle(reinterpret_cast<Handle>(bits));
  slot.handle.store(bits, std::memory_order_release);
  return reinterpret_cast<Handle>(bits);
}

[[gnu::cold]] std::shared_ptr<Communicator> remove(Handle handle) {
  const std::lock_guard lock(mutex);
  Slot* slot = slot_of(handle);
  if (!slot) return nullptr;
  slot->handle.store(0, std::memory_order_release);
  slot->communicator.store(nullptr, std::memory_order_release);
  free_slots().push_back(static_cast<std::uint32_t>(slot - slots));
  return std::move(slot->owner);
}

bool is_inherited(Handle handle) {
  const std::lock_guard lock(mutex);
  return inherited_slot_of(handle) != nullptr;
}

bool forget_inherited(Handle handle) {
  const std::lock_guard lock(mutex);
  Slot* const slot = inherited_slot_of(handle);
  if (slot) slot->handle.store(0, std::memory_order_relaxed);
  return slot != nullptr;
}

[[gnu::cold]] Error no_communicator(Handle handle) {
  const std::lock_guard lock(mutex);
  if (const Slot* const slot = inherited_slot_of(handle))
    return error(Code::kInvalidUsage,
                 fmt::format("comm {} belongs to process {}, from which this process ({}) was forked; make a new "
                             "communicator after fork",
                             fmt::ptr(handle), slot->process, getpid()));
  return error(Code::kInvalidArgument,
               fmt::format("comm {} is no communicator of this process: it was never made, or is destroyed or aborted "
                           "already",
                           fmt::ptr(handle)));
}

[[gnu::cold]] void bury(std::shared_ptr<Communicator> communicator) {
  constexpr auto kRest = std::chrono::seconds(1);
  std::vector<std::shared_ptr<Communicator>> gone;
  const std::lock_guard lock(mutex);
  if (!graves) graves = new std::deque<Grave>;
  for (; !graves->empty() && Clock::now() - graves->front().first > kRest; graves->pop_front()) {
    gone.push_back(std::move(graves->front().second));
  }
  if (communicator) graves->emplace_back(Clock::now(), std::move(communicator));
}

[[gnu::cold]] void leave_all() {
  std::vector<std::shared_ptr<Communicator>> open;
  {
    const std::lock_guard lock(mutex);
    for (std::uint32_t i = 0; i < used; ++i)
      if (slots[i].owner && slots[i].process == getpid()) open.push_back(slots[i].owner);
  }
  for (const auto& communicator : open) communicator->leave_at_exit();
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
