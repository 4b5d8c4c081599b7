#include "sim/memory.h"

#include "base/assert.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace tutti::sim {

template <class T>
Memory::Array<T> Memory::lazily_zeroed(std::size_t count) {
  // calloc takes fresh pages from the system: what a run does not touch costs nothing.
  return Array<T>(static_cast<T*>(std::calloc(count, sizeof(T))), &std::free);
}

Memory::Memory()
    : bytes_(static_cast<std::byte*>(std::aligned_alloc(kGrain, kBytesMax)), &std::free),
      last_write_(lazily_zeroed<std::uint32_t>(kBytesMax / kCellBytes)),
      last_reads_(lazily_zeroed<std::uint32_t>(kBytesMax / kCellBytes * kThreadsMax)),
      old_values_(lazily_zeroed<std::uint32_t>(kBytesMax / kCellBytes)),
      area_at_(lazily_zeroed<std::uint16_t>(kBytesMax / kGrain)),
      location_at_(lazily_zeroed<std::uint32_t>(kBytesMax / sizeof(std::uint64_t))) {}

void Memory::reset(int threads, const Options& options) {
  TUTTI_ASSERT(threads >= 1 && threads <= kThreadsMax);
  std::memset(last_write_.get(), 0, used_ / kCellBytes * sizeof(std::uint32_t));
  std::memset(last_reads_.get(), 0, used_ / kCellBytes * threads_ * sizeof(std::uint32_t));
  std::memset(area_at_.get(), 0, used_ / kGrain * sizeof(std::uint16_t));
  std::memset(location_at_.get(), 0, used_ / sizeof(std::uint64_t) * sizeof(std::uint32_t));
  used_ = 0;
  threads_ = static_cast<std::size_t>(threads);
  options_ = options;
  random_ = Random(options.seed, 1);
  areas_.clear();
  given_back_ = 0;
  accesses_.assign(1, Access{});
  clocks_.assign(threads_, VectorClock{});
  for (int t = 0; t < threads; ++t) clocks_[static_cast<std::size_t>(t)][t] = 1;
  stale_in_a_row_.assign(threads_, 0);
  location_count_ = 0;
  released_.clear();
  conflict_.reset();
}

std::byte* Memory::take(std::size_t bytes, const Area& area) {
  used_ += kGrain;  // belongs to nobody
  const std::size_t begin = used_;
  const std::size_t size = std::max<std::size_t>(1, (bytes + kGrain - 1) / kGrain) * kGrain;
  TUTTI_ASSERT(begin + size + kGrain <= kBytesMax);
  used_ += size;
  areas_.push_back(area);
  areas_.back().begin = begin;
  areas_.back().bytes = bytes;
  TUTTI_ASSERT(areas_.size() < UINT16_MAX);
  std::fill_n(area_at_.get() + begin / kGrain, size / kGrain, static_cast<std::uint16_t>(areas_.size()));
  std::memset(bytes_.get() + begin, 0, size);
  return bytes_.get() + begin;
}

bool Memory::is_watched(const void* where) const {
  const auto address = reinterpret_cast<std::uintptr_t>(where);
  const auto begin = reinterpret_cast<std::uintptr_t>(bytes_.get());
  return address >= begin && address < begin + kBytesMax;
}

const Area* Memory::area_of(const void* where, std::size_t& offset) const {
  if (!is_watched(where) || offset_of(where) >= used_) return nullptr;
  const std::uint16_t number = area_at_[offset_of(where) / kGrain];
  if (number == 0) return nullptr;
  const Area& area = areas_[number - 1u];
  offset = offset_of(where) - area.begin;
  return &area;
}

void Memory::give_back(int rank) { given_back_ |= 1u << rank; }

std::uint32_t Memory::log(int thread, const Position& at, bool write, bool word) {
  const std::uint32_t moment = clocks_[static_cast<std::size_t>(thread)][thread];
  accesses_.push_back({moment, static_cast<std::uint8_t>(thread), write, word, at});
  return static_cast<std::uint32_t>(accesses_.size() - 1);
}

bool Memory::is_inside(int thread, const Position& at, std::size_t begin, std::size_t bytes, bool write) {
  const std::uint16_t number = begin < used_ ? area_at_[begin / kGrain] : 0;
  Conflict::Kind kind = Conflict::Kind::kOutside;
  if (number != 0) {
    const Area& area = areas_[number - 1u];
    const bool users = area.kind == AreaKind::kInput || area.kind == AreaKind::kOutput;
    const bool gone = users && (given_back_ >> area.rank & 1) != 0;
    if (!gone && begin + bytes <= area.begin + area.bytes) return true;
    kind = gone ? Conflict::Kind::kGone : kind;
  }
  if (conflict_) return false;
  Conflict c;
  c.kind = kind;
  c.now = accesses_[log(thread, at, write, false)];
  const auto above = std::find_if(areas_.rbegin(), areas_.rend(), [&](const Area& a) { return a.begin <= begin; });
  if (above != areas_.rend()) {
    c.area = &*above;
    c.begin = begin - above->begin;
    c.end = c.begin + bytes;
  }
  conflict_ = c;
  return false;
}

void Memory::report(std::uint32_t now, std::uint32_t before, std::size_t begin, std::size_t end) {
  if (conflict_ || !options_.report_races) return;
  std::size_t offset = 0;
  const Area* const area = area_of(bytes_.get() + begin, offset);
  conflict_ = Conflict{Conflict::Kind::kRace, accesses_[now], accesses_[before], area, offset, offset + (end - begin)};
}

void Memory::check_read(std::size_t cell, std::uint32_t access, std::size_t begin, std::size_t end) {
  const Access& now = accesses_[access];
  const std::uint32_t write = last_write_[cell];
  if (write != 0 && !happened(accesses_[write], now.thread) && !(now.word && accesses_[write].word)) {
    report(access, write, begin, end);
  }
  last_reads_[cell * threads_ + now.thread] = access;
}

void Memory::check_write(std::size_t cell, std::uint32_t access, std::size_t begin, std::size_t end) {
  const Access& now = accesses_[access];
  const auto conflicts = [&](std::uint32_t other) {
    return other != 0 && !happened(accesses_[other], now.thread) && !(now.word && accesses_[other].word);
  };
  std::uint32_t* const reads = last_reads_.get() + cell * threads_;
  if (conflicts(last_write_[cell])) report(access, last_write_[cell], begin, end);
  for (std::size_t t = 0; t < threads_; ++t) {
    if (t != now.thread && conflicts(reads[t])) report(access, reads[t], begin, end);
    // Ordered reads need not be remembered: whoever conflicts with them conflicts with this write.
    if (!now.word) reads[t] = 0;
  }
  last_write_[cell] = access;
}

void Memory::track(std::size_t begin, std::size_t end, std::uint32_t access) {
  const bool write = accesses_[access].write;
  for (std::size_t cell = begin / kCellBytes; cell < (end + kCellBytes - 1) / kCellBytes; ++cell) {
    if (write) {
      check_write(cell, access, begin, end);
    } else {
      check_read(cell, access, begin, end);
    }
  }
}

void Memory::touch(int thread, const Position& at, const void* where, std::size_t bytes, bool write) {
  if (bytes == 0 || !is_watched(where)) return;
  const std::size_t begin = offset_of(where);
  if (!is_inside(thread, at, begin, bytes, write)) return;
  if (write && !options_.report_races) remember_old(begin, begin + bytes);
  track(begin, begin + bytes, log(thread, at, write, false));
}

void Memory::read(int thread, const Position& at, const void* from, std::size_t bytes, std::byte* to) {
  if (bytes == 0) return;
  if (is_watched(from)) {
    touch(thread, at, from, bytes, false);
    if (conflict_) {
      std::memset(to, 0, bytes);
      return;
    }
  }
  std::memcpy(to, from, bytes);
  if (is_watched(from) && !options_.report_races) return_old_where_racing(thread, offset_of(from), bytes, to);
}

void Memory::write(int thread, const Position& at, void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  touch(thread, at, to, bytes, true);
  if (conflict_) return;
  std::memmove(to, from, bytes);
  if (is_watched(to)) store_plain_words(thread, offset_of(to), offset_of(to) + bytes);
}

void Memory::remember_old(std::size_t begin, std::size_t end) {
  const std::size_t first = begin / kCellBytes;
  const std::size_t last = (end + kCellBytes - 1) / kCellBytes;
  std::memcpy(old_values_.get() + first, bytes_.get() + first * kCellBytes, (last - first) * kCellBytes);
}

void Memory::return_old_where_racing(int thread, std::size_t begin, std::size_t bytes, std::byte* to) {
  for (std::size_t at = begin; at + kCellBytes <= begin + bytes; at += kCellBytes) {
    const std::uint32_t write = last_write_[at / kCellBytes];
    if (write == 0 || happened(accesses_[write], thread) || !random_.chance(options_.stale_chance)) continue;
    std::memcpy(to + (at - begin), old_values_.get() + at / kCellBytes, kCellBytes);
  }
}

/// A plain write over words: the next load of each sees it.
void Memory::store_plain_words(int thread, std::size_t begin, std::size_t end) {
  constexpr std::size_t kWord = sizeof(std::uint64_t);
  for (std::size_t at = begin / kWord * kWord; at < end; at += kWord) {
    if (location_at_[at / kWord] == 0) continue;
    Location& l = location(at);
    std::uint64_t value = 0;
    std::memcpy(&value, bytes_.get() + at, kWord);
    l.stores.push_back(
        {value, clocks_[static_cast<std::size_t>(thread)][thread], static_cast<std::uint8_t>(thread), false, 0});
    learn(l, thread, static_cast<std::uint32_t>(l.stores.size() - 1));
  }
}

Memory::Location& Memory::location(std::size_t offset) {
  std::uint32_t& number = location_at_[offset / sizeof(std::uint64_t)];
  if (number == 0) {
    if (location_count_ == locations_.size()) locations_.emplace_back();
    Location& fresh = locations_[location_count_++];
    number = static_cast<std::uint32_t>(location_count_);
    fresh.offset = offset;
    fresh.stores.clear();
    fresh.known.clear();
    fresh.watchers = 0;
    std::uint64_t value = 0;
    std::memcpy(&value, bytes_.get() + offset, sizeof(value));
    fresh.stores.push_back({value, 0, 0, false, 0});  // before everybody's first moment
  }
  return locations_[number - 1];
}

/// The last store that a thread must know of: the latest of those whose knowledge happened before it.
std::uint32_t Memory::oldest_allowed(const Location& l, int thread) const {
  std::uint32_t oldest = 0;
  std::uint32_t settled = 0;
  const std::uint32_t everybody = (1u << threads_) - 1;
  // A thread's later knowledge is of later stores: its first entry from the back that counts is its best.
  for (auto k = l.known.rbegin(); k != l.known.rend() && settled != everybody; ++k) {
    if ((settled >> k->thread & 1) != 0) continue;
    if (k->thread != thread && k->moment > clocks_[static_cast<std::size_t>(thread)][k->thread]) continue;
    oldest = std::max(oldest, k->index);
    settled |= 1u << k->thread;
  }
  return oldest;
}

void Memory::learn(Location& l, int thread, std::uint32_t index) {
  l.known.push_back({static_cast<std::uint8_t>(thread), clocks_[static_cast<std::size_t>(thread)][thread], index});
}

Memory::Loaded Memory::load(int thread, const Position& at, const std::uint64_t* word, bool acquire) {
  const std::size_t offset = offset_of(word);
  if (!is_inside(thread, at, offset, sizeof(*word), false)) return {};
  track(offset, offset + sizeof(*word), log(thread, at, false, true));
  Location& l = location(offset);
  const std::uint32_t oldest = oldest_allowed(l, thread);
  const auto newest = static_cast<std::uint32_t>(l.stores.size() - 1);
  std::uint32_t chosen = newest;
  std::uint32_t& in_a_row = stale_in_a_row_[static_cast<std::size_t>(thread)];
  const bool fresh = options_.fresh_lines && areas_[area_at_[offset / kGrain] - 1u].kind == AreaKind::kLines;
  if (oldest < newest && !fresh && in_a_row < kStaleInARow && random_.chance(options_.stale_chance)) {
    chosen = oldest + random_.below(newest - oldest);
  }
  in_a_row = chosen == newest ? 0 : in_a_row + 1;
  const Store& s = l.stores[chosen];
  if (chosen > oldest || l.known.empty()) learn(l, thread, chosen);
  if (acquire && s.release) clocks_[static_cast<std::size_t>(thread)].join(released_[s.clock]);
  l.watchers |= 1u << thread;
  return {s.value, l.stores[newest].value, chosen != newest};
}

std::uint32_t Memory::store(int thread, const Position& at, std::uint64_t* word, std::uint64_t value, bool release) {
  const std::size_t offset = offset_of(word);
  if (!is_inside(thread, at, offset, sizeof(*word), true)) return 0;
  track(offset, offset + sizeof(*word), log(thread, at, true, true));
  if (conflict_) return 0;
  VectorClock& mine = clocks_[static_cast<std::size_t>(thread)];
  Location& l = location(offset);
  l.stores.push_back(
      {value, mine[thread], static_cast<std::uint8_t>(thread), release, static_cast<std::uint32_t>(released_.size())});
  learn(l, thread, static_cast<std::uint32_t>(l.stores.size() - 1));
  if (release) released_.push_back(mine);
  ++mine[thread];
  std::memcpy(bytes_.get() + offset, &value, sizeof(value));
  const std::uint32_t watchers = l.watchers & ~(1u << thread);
  l.watchers = 0;
  return watchers;
}

}  // namespace tutti::sim
