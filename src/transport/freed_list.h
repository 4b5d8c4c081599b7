// FreedList: the last shared allocations that a process has freed, in memory that other processes read, so that they let go of them.
//
// One thread adds at a time, any number of processes read.
// 1. A file is stored before the count that includes it (release): who acquires the count finds the file.
// 2. A file's place is written again after the count of kPlaces files more was stored (release). So a reader who finds a later file in the
//    place acquires that count when it loads the count once more, and knows that it has missed something.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

namespace tutti::transport {

struct alignas(64) FreedList {
  static constexpr std::uint64_t kPlaces = 63;

  std::uint64_t count = 0;  ///< so far; zero-filled memory is an empty list
  std::uint64_t files[kPlaces] = {};

  /// `file`: SharedReference's.
  void add(std::uint64_t file) {
    const std::uint64_t number = load(count);
    std::atomic_ref(files[number % kPlaces]).store(file, std::memory_order_release);
    std::atomic_ref(count).store(number + 1, std::memory_order_release);
  }
  bool has_more_than(std::uint64_t seen) const { return load(count) != seen; }
  /// Appends those after the first `seen` to `found`, and counts them in `seen`. False: they were too many, and any file may be among them.
  bool read(std::uint64_t& seen, std::vector<std::uint64_t>& found) const {
    const std::uint64_t end = load(count);
    const std::uint64_t begin = std::exchange(seen, end);
    if (end - begin >= kPlaces) return false;
    for (std::uint64_t i = begin; i != end; ++i) found.push_back(load(files[i % kPlaces]));
    return load(count) - begin < kPlaces;
  }

 private:
  static std::uint64_t load(const std::uint64_t& word) {
    return std::atomic_ref(const_cast<std::uint64_t&>(word)).load(std::memory_order_acquire);
  }
};
static_assert(sizeof(FreedList) == 512);

}  // namespace tutti::transport
