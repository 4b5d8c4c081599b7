// HandleTable: gives objects opaque handles that can be checked. A handle holds a kind, a slot and the slot's generation,
// so that a stale one, one of another kind, or any real pointer is recognised and never followed.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace tutti::executor {

// Bits of a handle: 0..19 slot, 20..51 generation, 52..59 kind. User-space pointers have zeros in bits 52..59.
template <class T, std::uint8_t kKind>
class HandleTable {
  static_assert(kKind != 0, "kind 0 is what pointers look like");

 public:
  /// nullptr when all 2^20 slots are taken.
  void* insert(std::shared_ptr<T> object) {
    const std::lock_guard lock(mutex_);
    std::uint32_t index = 0;
    if (!free_.empty()) {
      index = free_.back();
      free_.pop_back();
    } else if (slots_.size() < kSlotsMax) {
      free_.reserve(slots_.size() + 1);  // remove() needs no memory
      index = static_cast<std::uint32_t>(slots_.size());
      slots_.emplace_back();
    } else {
      return nullptr;
    }
    slots_[index].object = std::move(object);
    return encode(index, slots_[index].generation);
  }

  /// nullptr for anything that is not a live handle of this table.
  std::shared_ptr<T> find(const void* handle) {
    if (!has_kind(handle)) return nullptr;  // no lock for pointers, which streams of CUDA's are
    const std::lock_guard lock(mutex_);
    Slot* slot = slot_of(handle);
    return slot ? slot->object : nullptr;
  }

  /// Takes the object out; the handle is stale afterwards. nullptr for anything that is not a live handle.
  std::shared_ptr<T> remove(const void* handle) {
    const std::lock_guard lock(mutex_);
    Slot* slot = slot_of(handle);
    if (!slot) return nullptr;
    std::shared_ptr<T> object = std::move(slot->object);
    slot->object.reset();
    // A slot whose generations are used up is retired: a handle is never given out twice.
    if (slot->generation++ != std::numeric_limits<std::uint32_t>::max())
      free_.push_back(static_cast<std::uint32_t>(slot - slots_.data()));
    return object;
  }

  /// For pthread_atfork: no other thread is inside the table while the process is copied.
  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork() { mutex_.unlock(); }

 private:
  static constexpr std::uint32_t kSlotsMax = 1u << 20;

  struct Slot {
    std::shared_ptr<T> object;
    std::uint32_t generation = 0;
  };

  static void* encode(std::uint32_t index, std::uint32_t generation) {
    const std::uint64_t bits = std::uint64_t{kKind} << 52 | std::uint64_t{generation} << 20 | index;
    return reinterpret_cast<void*>(static_cast<std::uintptr_t>(bits));
  }

  static bool has_kind(const void* handle) { return reinterpret_cast<std::uintptr_t>(handle) >> 52 == kKind; }

  Slot* slot_of(const void* handle) {
    const auto bits = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(handle));
    const auto index = static_cast<std::uint32_t>(bits & (kSlotsMax - 1));
    if (!has_kind(handle) || index >= slots_.size()) return nullptr;
    Slot& slot = slots_[index];
    if (static_cast<std::uint32_t>(bits >> 20) != slot.generation || !slot.object) return nullptr;
    return &slot;
  }

  std::mutex mutex_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;
};

}  // namespace tutti::executor
