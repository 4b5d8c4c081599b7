// The Host machine: what the lane interpreter needs, on CPU threads.
#pragma once

#include "base/reduce.h"
#include "executor/store_choice.h"
#include "protocol/channel.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

namespace tutti::executor {

/// Reaches memory of other processes that is not mapped here. Failures are kept by the implementer.
class RemoteMemory {
 public:
  virtual ~RemoteMemory() = default;
  virtual bool read(std::uint32_t peer, std::uint64_t address, std::byte* local, std::size_t bytes) = 0;
  virtual bool write(std::uint32_t peer, std::uint64_t address, const std::byte* local, std::size_t bytes) = 0;
};

inline std::uint64_t load_acquire(const std::uint64_t* word) {
  return std::atomic_ref<std::uint64_t>(*const_cast<std::uint64_t*>(word)).load(std::memory_order_acquire);
}
inline void store_release(std::uint64_t* word, std::uint64_t value) {
  std::atomic_ref<std::uint64_t>(*word).store(value, std::memory_order_release);
}

/// As memcpy; without calling it where there are few bytes.
[[gnu::hot]] inline void copy_bytes(void* to, const void* from, std::size_t bytes) {
  auto* const t = static_cast<std::byte*>(to);
  const auto* const f = static_cast<const std::byte*>(from);
  /// The first and the last so many; they may overlap.
  const auto both_ends = [&]<std::size_t kBytes>(std::integral_constant<std::size_t, kBytes>) {
    std::byte first[kBytes], last[kBytes];
    std::memcpy(first, f, kBytes);
    std::memcpy(last, f + bytes - kBytes, kBytes);
    std::memcpy(t, first, kBytes);
    std::memcpy(t + bytes - kBytes, last, kBytes);
  };
  if (bytes > 64 || bytes < 4) return static_cast<void>(std::memcpy(to, from, bytes));
  if (bytes > 32) return both_ends(std::integral_constant<std::size_t, 32>());
  if (bytes > 16) return both_ends(std::integral_constant<std::size_t, 16>());
  if (bytes >= 8) return both_ends(std::integral_constant<std::size_t, 8>());
  both_ends(std::integral_constant<std::size_t, 4>());
}

/// As memcpy, by one instruction where has_fast_strings(): it takes whole lines over without asking for what is in them, which for
/// memory that another core reads and writes too is worth more than it takes to begin.
inline void copy_string(void* to, const void* from, std::size_t bytes) {
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
#else
  std::memcpy(to, from, bytes);
#endif
}

class HostMachine {
 public:
  static constexpr bool kCrosses = true;
  /// All-reduces of 2 ranks by single copies take 1.1 to 1.6 times as long in tiles of 64 KiB: a system call takes long to begin. Such
  /// tiles stay in a second-level cache of 1 MiB.
  static constexpr std::size_t kLongTileBytes = 256 << 10;
  /// Where strings are fast, memcpy makes strings of longer copies (glibc: from 2112 bytes on).
  static constexpr std::size_t kVectorBytes = 2 << 10;
  /// Shorter strings take longer to begin than their lines would.
  static constexpr std::size_t kStringBytes = 1 << 10;

  /// `abort_word`: not 0 = give up. Both outlive the machine.
  HostMachine(const std::uint64_t* abort_word, RemoteMemory* remote) : abort_word_(abort_word), remote_(remote) {}

  void set_reduce(ReduceFunction reduce) { reduce_ = reduce; }
  /// How what others read beside their lines is written, unless it is short (LaneCall::streams_slots says it of slots).
  void set_stores(const StoreRates& rates) { stores_.begin(rates); }
  bool stores_past_caches() const { return stores_.past_caches(); }

  std::uint64_t load_acquire(const std::uint64_t* word) const { return executor::load_acquire(word); }
  void store_release(std::uint64_t* word, std::uint64_t value) const { executor::store_release(word, value); }
  std::uint64_t load_word(const std::uint64_t* word) const {
    return std::atomic_ref<std::uint64_t>(*const_cast<std::uint64_t*>(word)).load(std::memory_order_relaxed);
  }
  void store_word(std::uint64_t* word, std::uint64_t value) const {
    std::atomic_ref<std::uint64_t>(*word).store(value, std::memory_order_relaxed);
  }
  void load_bytes(void* to, const void* from, std::size_t bytes) const {
    // What was just written elsewhere: vectors ask for many lines at once, and what follows need not wait for them. A long string is as good.
    constexpr std::size_t kLongest = 8 << 10;
    if (!strings_ || bytes <= kVectorBytes || bytes > kLongest) return copy_bytes(to, from, bytes);
    for (std::size_t at = 0; at < bytes; at += kVectorBytes) {
      const std::size_t left = bytes - at;
      std::memcpy(static_cast<std::byte*>(to) + at, static_cast<const std::byte*>(from) + at,
                  left < kVectorBytes ? left : kVectorBytes);
    }
  }
  void store_bytes(void* to, const void* from, std::size_t bytes) {
    if (bytes >= protocol::kStreamedBytes) return store_long(to, from, bytes, false);
    copy_bytes(to, from, bytes);
  }
  /// As store_bytes, where the next store need not wait for a reader's answer to this one.
  void store_ahead(void* to, const void* from, std::size_t bytes) {
    if (bytes >= protocol::kStreamedBytes) return store_long(to, from, bytes, true);
    store_ordinary(to, from, bytes, true);
  }
  /// Whether store_bytes, or store_ahead, takes lines over as it writes, so that asking for them early would only be in its way.
  bool takes_lines_over(std::size_t bytes, bool ahead) const {
    return strings_ && (ahead ? bytes >= kStringBytes : bytes > kVectorBytes);
  }
  /// Asks for the lines now, so that the stores need not wait for them to come from a reader's cache.
  void prepare_write([[maybe_unused]] const std::byte* address, [[maybe_unused]] std::size_t bytes) const {
#if defined(__x86_64__)
    // The compiler's own prefetch for writing is one for reading unless it may assume more than the first x86-64 had;
    // processors that do not know the instruction take it for no operation.
    // One that is to tell how long it takes is not to be helped.
    if (bytes >= protocol::kStreamedBytes && (stores_.past_caches() || stores_.times_next())) return;
    for (std::size_t at = 0; at < bytes; at += 64) asm volatile("prefetchw %0" : : "m"(address[at]));
#endif
  }
  bool aborted() const { return executor::load_acquire(abort_word_) != 0; }
  void reduce(const ReduceArgs& args) const { reduce_(args); }

  bool read_remote(std::uint32_t peer, std::uint64_t address, std::byte* local, std::size_t bytes) {
    return remote_->read(peer, address, local, bytes);
  }
  bool write_remote(std::uint32_t peer, std::uint64_t address, const void* local, std::size_t bytes) {
    return remote_->write(peer, address, static_cast<const std::byte*>(local), bytes);
  }
  std::byte* staging(std::size_t index, std::size_t) {
    if (tiles_.size() <= index) tiles_.resize(index + 1);
    // Of the longest: what is not written takes no memory.
    if (!tiles_[index]) tiles_[index] = std::make_unique_for_overwrite<std::byte[]>(kLongTileBytes);
    return tiles_[index].get();
  }

 private:
  void store_ordinary(void* to, const void* from, std::size_t bytes, bool ahead) const {
    const bool is_string = ahead && strings_ && bytes >= kStringBytes && bytes <= kVectorBytes;
    is_string ? copy_string(to, from, bytes) : copy_bytes(to, from, bytes);
  }
  void store_long(void* to, const void* from, std::size_t bytes, bool ahead) {
    if (stores_.times()) [[unlikely]]
      return store_timed(to, from, bytes, ahead);
    stores_.past_caches() ? copy_past_caches(to, from, bytes) : store_ordinary(to, from, bytes, ahead);
  }
  [[gnu::noinline]] void store_timed(void* to, const void* from, std::size_t bytes, bool ahead) {
    const auto before = StoreChoice::Clock::now();
    const auto start = StoreChoice::Clock::now();  // what a look at the clock takes is not the stores'
    store_ordinary(to, from, bytes, ahead);
    // Until the last line was had; ThreadSanitizer's builds take no fences.
    std::atomic_ref(drained_).exchange(1, std::memory_order_seq_cst);
    stores_.add(bytes, (StoreChoice::Clock::now() - start) - (start - before));
  }

  const std::uint64_t* abort_word_;
  RemoteMemory* remote_;
  ReduceFunction reduce_ = nullptr;
  const bool strings_ = has_fast_strings();
  StoreChoice stores_;
  std::uint32_t drained_ = 0;
  std::vector<std::unique_ptr<std::byte[]>> tiles_;
};

}  // namespace tutti::executor
