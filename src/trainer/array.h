// Elements in a back end's memory, zero at first.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <utility>

namespace tutti::trainer {

/// Host memory on a cache-line boundary, all zero: the same addresses modulo 64 in every run, so that no kernel that looks at alignment sums
/// in another order.
inline std::shared_ptr<void> host_zeros(std::size_t bytes) {
  constexpr std::align_val_t kAlignment{64};
  std::shared_ptr<void> memory(::operator new(bytes, kAlignment), [](void* p) { ::operator delete(p, kAlignment); });
  std::memset(memory.get(), 0, bytes);
  return memory;
}

/// The memory is freed as whoever made it said.
template <class T>
class Array {
 public:
  Array() = default;
  /// On the host.
  explicit Array(std::size_t count) : Array(host_zeros(count * sizeof(T)), count) {}
  Array(std::shared_ptr<void> memory, std::size_t count) : memory_(std::move(memory)), count_(count) {}

  T* data() { return static_cast<T*>(memory_.get()); }
  const T* data() const { return static_cast<const T*>(memory_.get()); }
  std::size_t size() const { return count_; }
  /// Of the host's only.
  std::span<T> span() { return {data(), count_}; }

 private:
  std::shared_ptr<void> memory_;
  std::size_t count_ = 0;
};

}  // namespace tutti::trainer
