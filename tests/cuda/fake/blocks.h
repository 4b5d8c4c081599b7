// Kernels of cuda/ as work of a stream: a fiber for each thread, so that a kernel which waits for one of another process lets its own process
// go on. Blocks have fewer threads than on a GPU.
#pragma once

#include "sim/fiber.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace fake_driver {

inline constexpr std::uint32_t kFakeThreads = 32;

struct FakeBlock;

/// A Thread (cuda/payload.h).
class FakeThread {
 public:
  FakeThread(FakeBlock& block, std::uint32_t index) : block_(block), index_(index) {}

  std::uint32_t index() const { return index_; }
  std::uint32_t count() const { return kFakeThreads; }
  std::uint32_t block() const;
  std::uint32_t blocks() const;
  void sync() { (void)any(false); }
  void sync_apart() { (void)any(false); }
  bool any(bool mine);
  void pause();

  template <class T>
  T load(const T* from) const {
    return *from;
  }
  template <class T>
  void store(T* to, const T& value) const {
    *to = value;
  }
  std::uint64_t load_acquire(const std::uint64_t* word) const { return word_at(word).load(std::memory_order_acquire); }
  void store_release(std::uint64_t* word, std::uint64_t value) const {
    word_at(word).store(value, std::memory_order_release);
  }
  std::uint64_t load_word(const std::uint64_t* word) const { return word_at(word).load(std::memory_order_relaxed); }
  void store_word(std::uint64_t* word, std::uint64_t value) const {
    word_at(word).store(value, std::memory_order_relaxed);
  }
  void load_words(const std::uint64_t* from, std::uint64_t (&to)[2]) const {
    to[0] = load_word(from);
    to[1] = load_word(from + 1);
  }
  void store_words(std::uint64_t* to, std::uint64_t first, std::uint64_t second) const {
    store_word(to, first);
    store_word(to + 1, second);
  }
  std::uint32_t add(std::uint32_t* number, std::uint32_t by) const { return std::atomic_ref(*number).fetch_add(by); }
  bool claim(std::uint32_t* number) const { return std::atomic_ref(*number).exchange(1) == 0; }
  bool is_claimed(const std::uint32_t* number) const {
    return std::atomic_ref(*const_cast<std::uint32_t*>(number)).load(std::memory_order_relaxed) != 0;
  }

 private:
  static std::atomic_ref<std::uint64_t> word_at(const std::uint64_t* word) {
    return std::atomic_ref(*const_cast<std::uint64_t*>(word));
  }
  FakeBlock& block_;
  std::uint32_t index_;
};

/// One launch.
class FakeGrid {
 public:
  using Body = std::function<void(FakeThread&, void* shared)>;
  FakeGrid(std::uint32_t blocks, std::size_t shared_bytes, Body body);
  ~FakeGrid();
  /// Runs until all that is left waits; true: the launch is over.
  bool advance();

 private:
  std::vector<std::unique_ptr<FakeBlock>> blocks_;
};

}  // namespace fake_driver
