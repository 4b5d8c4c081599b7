// AddressTable: which segment an address lies in. Written under a lock, read without one on every call.
//
// Why it is right: a sequence lock whose data are atomics.
// 1. Writers are serialised by the caller's lock. A writer makes sequence_ odd, changes the entries by release stores,
//    and makes sequence_ even again by a release store.
// 2. A reader loads sequence_ (acquire), then entries (acquire), then sequence_ again. If one of its loads saw a store
//    of a writer, that load synchronised with it, so the second load of sequence_ sees that writer's odd value or a
//    later one: it differs from the first, and the reader starts again.
// 3. Entries live in arrays that are never freed, only left for one of twice the size (all of them together are smaller
//    than the last). A reader that holds an old array reads stale values, never freed ones, and then starts again by 2.
// 4. Nothing here waits but a reader, and only for a writer in the middle of a change of a few entries.
#pragma once

#include "transport/shared_memory.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace tutti::transport {

class AddressTable {
 public:
  struct Segment {
    std::uintptr_t start = 0;
    std::uint64_t bytes = 0;  ///< at least 1
    std::uint64_t file = 0;
    std::uint32_t number = 0;
    std::int32_t fd = -1;
  };

  AddressTable();

  /// Segments never overlap. Under the caller's lock.
  void insert(const Segment& segment);
  /// The segment that starts at `start` is taken out and returned. Under the caller's lock.
  std::optional<Segment> remove(std::uintptr_t start);
  /// Whether a segment is a shorter mapping of that file. Under the caller's lock.
  bool has_shorter(std::uint64_t file, std::uint64_t bytes) const;

  /// Any thread, any time.
  std::optional<SharedReference> find(std::uintptr_t address, std::uint64_t bytes) const;
  /// Another number after every change; odd while one is being made.
  std::uint64_t version() const { return sequence_.load(std::memory_order_acquire); }

 private:
  struct Entry {
    std::atomic<std::uintptr_t> start{0};
    std::atomic<std::uint64_t> bytes{0};
    std::atomic<std::uint64_t> file{0};
    std::atomic<std::uint64_t> number_and_fd{0};
  };

  static void store(Entry& entry, const Segment& segment);
  static Segment load(const Entry& entry);
  void begin_change();
  void end_change();
  void grow();

  std::atomic<std::uint64_t> sequence_{0};
  std::atomic<Entry*> entries_{nullptr};  ///< sorted by start
  std::atomic<std::size_t> count_{0};
  std::size_t capacity_ = 0;
  std::vector<std::unique_ptr<Entry[]>> arrays_;
};

}  // namespace tutti::transport
