// The simulated memory: C++11's, run operationally. Protocol words keep all their stores, and a load may return any that
// coherence and happens-before allow; plain bytes are watched for conflicting accesses that happens-before does not order.
//
// Threads have vector clocks. A release store carries its thread's clock; an acquire load that reads it joins it. An access at
// moment m of thread a happened before what thread b does now if b's clock has a's moment m.
//  - A word's stores are ordered as they were executed. A load may not return a store older than one that this thread read or
//    wrote, or than one whose reading or writing happened before the load: the four coherence rules.
//  - Plain bytes are tracked in cells of 4. In a program without races each load has one allowed value; so every load
//    that has a choice is a race, and is reported. With reports off, such a load returns the old value or the new one.
//  - Not modelled: loads that return stores of the future (load buffering), read-modify-writes, fences: the protocol has none.
#pragma once

#include "sim/area.h"
#include "sim/clock.h"
#include "sim/random.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tutti::sim {

/// One access that the memory remembers.
struct Access {
  std::uint32_t moment = 0;  ///< of its thread's own clock
  std::uint8_t thread = 0;
  bool write = false;
  bool word = false;  ///< a protocol word's: atomic
  Position position;
};

/// Why a run is over: the first access that must not happen.
struct Conflict {
  enum class Kind : std::uint8_t { kRace, kOutside, kGone };
  Kind kind = Kind::kRace;
  Access now;
  Access before;               ///< kRace
  const Area* area = nullptr;  ///< kOutside: the nearest area below, or nullptr
  std::size_t begin = 0;       ///< offset within the area
  std::size_t end = 0;
};

class Memory : public MemorySource {
 public:
  static constexpr std::size_t kBytesMax = 32 << 20;
  static constexpr std::size_t kGrain = 64;  ///< areas start at multiples, with one free between

  Memory();

  struct Options {
    std::uint64_t seed = 0;
    std::uint32_t stale_chance = 128;  ///< of 256: a load that has a choice returns an older store
    bool fresh_lines = false;          ///< lines' words have no stale loads
    bool report_races = true;
  };
  /// Forgets everything; `threads` clocks.
  void reset(int threads, const Options& options);

  std::byte* take(std::size_t bytes, const Area& area) override;

  /// A rank's user has its buffers back: nobody else may touch them.
  void give_back(int rank);

  /// Plain accesses. Memory that was not taken here is private to its rank and not watched.
  void read(int thread, const Position& at, const void* from, std::size_t bytes, std::byte* to);
  void write(int thread, const Position& at, void* to, const void* from, std::size_t bytes);
  /// Checks without moving anything.
  void touch(int thread, const Position& at, const void* where, std::size_t bytes, bool write);

  struct Loaded {
    std::uint64_t value = 0;
    std::uint64_t newest = 0;
    bool stale() const { return older; }
    bool older = false;
  };
  Loaded load(int thread, const Position& at, const std::uint64_t* word, bool acquire);
  /// Returns the threads that have loaded the word since its last store.
  std::uint32_t store(int thread, const Position& at, std::uint64_t* word, std::uint64_t value, bool release);

  const std::optional<Conflict>& conflict() const { return conflict_; }
  /// What orders the two accesses of a race, or should: words that `before.thread` stored since, as text.
  std::string missing(const Conflict& race) const;

  bool is_watched(const void* where) const;
  /// The area and the offset in it; nullptr where nobody has memory.
  const Area* area_of(const void* where, std::size_t& offset) const;

 private:
  static constexpr std::size_t kCellBytes = 4;
  static constexpr std::uint32_t kStaleInARow = 16;  ///< then the newest: a store is seen some day

  struct Store {
    std::uint64_t value = 0;
    std::uint32_t moment = 0;
    std::uint8_t thread = 0;
    bool release = false;
    std::uint32_t clock = 0;  ///< index in released_, if release
  };
  /// A thread knew of store number `index` at that moment of its own.
  struct Knowledge {
    std::uint8_t thread = 0;
    std::uint32_t moment = 0;
    std::uint32_t index = 0;
  };
  struct Location {
    std::size_t offset = 0;
    std::vector<Store> stores;
    std::vector<Knowledge> known;
    std::uint32_t watchers = 0;
  };

  template <class T>
  using Array = std::unique_ptr<T[], void (*)(void*)>;
  template <class T>
  static Array<T> lazily_zeroed(std::size_t count);

  std::size_t offset_of(const void* where) const {
    return static_cast<std::size_t>(static_cast<const std::byte*>(where) - bytes_.get());
  }
  bool happened(const Access& access, int thread) const {
    return access.moment <= clocks_[static_cast<std::size_t>(thread)][access.thread];
  }
  std::uint32_t log(int thread, const Position& at, bool write, bool word);
  bool is_inside(int thread, const Position& at, std::size_t begin, std::size_t bytes, bool write);
  void check_read(std::size_t cell, std::uint32_t access, std::size_t begin, std::size_t end);
  void check_write(std::size_t cell, std::uint32_t access, std::size_t begin, std::size_t end);
  void report(std::uint32_t now, std::uint32_t before, std::size_t begin, std::size_t end);
  void track(std::size_t begin, std::size_t end, std::uint32_t access);
  void remember_old(std::size_t begin, std::size_t end);
  void return_old_where_racing(int thread, std::size_t begin, std::size_t bytes, std::byte* to);
  void store_plain_words(int thread, std::size_t begin, std::size_t end);
  Location& location(std::size_t offset);
  std::uint32_t oldest_allowed(const Location& l, int thread) const;
  void learn(Location& l, int thread, std::uint32_t index);
  std::string explain(const Location& l, const Conflict& race) const;

  Array<std::byte> bytes_;
  Array<std::uint32_t> last_write_;   ///< by cell: access number, 0 none
  Array<std::uint32_t> last_reads_;   ///< by cell and thread, since the last write
  Array<std::uint32_t> old_values_;   ///< by cell: before the last write
  Array<std::uint16_t> area_at_;      ///< by grain: area number + 1
  Array<std::uint32_t> location_at_;  ///< by 8 bytes: location number + 1
  std::size_t used_ = 0;
  std::size_t threads_ = 0;
  Options options_;
  Random random_;
  std::vector<Area> areas_;
  std::uint32_t given_back_ = 0;  ///< bits by rank
  std::vector<Access> accesses_;  ///< number 0 is nobody's
  std::vector<VectorClock> clocks_;
  std::vector<std::uint32_t> stale_in_a_row_;
  std::vector<Location> locations_;
  std::size_t location_count_ = 0;
  std::vector<VectorClock> released_;
  std::optional<Conflict> conflict_;
};

}  // namespace tutti::sim
