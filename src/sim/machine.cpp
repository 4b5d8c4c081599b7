#include "sim/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace tutti::sim {

/// The moment before an operation: false if the run is over, and nothing may happen any more.
bool Machine::begin() {
  if (quiet_) return false;
  if (sim_.over()) {
    // Nothing happens any more, so a protocol that waits for something else than data may never come out by itself.
    if (++after_the_end_ > kOperationsAfterEndMax) fiber_.suspend();
    return false;
  }
  sim_.turn(rank_);
  if (sim_.current() != rank_) fiber_.suspend();
  return !sim_.over();
}

Machine::Word Machine::kind_of(const std::uint64_t* word) const {
  std::size_t offset = 0;
  const Area* const area = sim_.memory().area_of(word, offset);
  switch (area ? area->kind : AreaKind::kAbort) {
    case AreaKind::kCounts: return offset == 0 ? Word::kTail : Word::kHead;
    case AreaKind::kAnnounce: return Word::kAnnounce;
    default: return Word::kOther;
  }
}

std::string Machine::name_of(const void* where, std::size_t bytes) const {
  if (!sim_.memory().is_watched(where)) return "private memory";
  std::size_t offset = 0;
  const Area* const area = sim_.memory().area_of(where, offset);
  if (!area) return "memory that nobody has";
  return bytes == 0 ? describe_word(*area, offset) : describe(*area, offset, offset + bytes);
}

Memory::Loaded Machine::load(const std::uint64_t* word, bool acquire) {
  if (!begin()) return {*word, *word, false};
  const Memory::Loaded loaded = sim_.memory().load(rank_, position(), word, acquire);
  saw_stale_ |= loaded.older;
  if (sim_.tracing()) {
    const std::string older = loaded.older ? fmt::format(" (the newest is {:#x})", loaded.newest) : "";
    note(fmt::format("{} {} = {:#x}{}", acquire ? "acquires" : "loads", name_of(word, 0), loaded.value, older));
  }
  sim_.conflicted();
  return loaded;
}

void Machine::store(std::uint64_t* word, std::uint64_t value, bool release) {
  if (!begin()) return;
  if (sim_.tracing()) note(fmt::format("{} {} = {:#x}", release ? "releases" : "stores", name_of(word, 0), value));
  sim_.scheduler().wake(sim_.memory().store(rank_, position(), word, value, release));
  sim_.conflicted();
}

std::uint64_t Machine::load_acquire(const std::uint64_t* word) {
  const Word kind = kind_of(word);
  const bool relaxed =
      (kind == Word::kTail && has(Fault::kTailWithoutAcquire)) ||
      (kind == Word::kHead && has(Fault::kHeadWithoutAcquire)) ||
      (kind == Word::kAnnounce && has(looks_for_room() ? Fault::kRoomWithoutAcquire : Fault::kAnnounceWithoutAcquire));
  const std::uint64_t value = load(word, !relaxed).value;
  return sim_.options().fault == Fault::kNone ? value : mistaken(word, kind, value);
}

/// The announce word of `rank` in the same turn as `word`, or some turns before.
const std::uint64_t* Machine::announced_by(int rank, const std::uint64_t* word, std::size_t turns_before) const {
  std::size_t offset = 0;
  const Area& lines = *sim_.memory().area_of(word, offset);
  const auto ranks = static_cast<std::size_t>(lines.peer);
  const std::size_t turn = offset / lines.part_bytes / ranks;
  const std::size_t other = (turn + protocol::kAnnounceDepth - turns_before) % protocol::kAnnounceDepth;
  const std::byte* const first = reinterpret_cast<const std::byte*>(word) - offset;
  return reinterpret_cast<const std::uint64_t*>(first +
                                                (other * ranks + static_cast<std::size_t>(rank)) * lines.part_bytes);
}

/// What a faulty protocol would take the value for.
std::uint64_t Machine::mistaken(const std::uint64_t* word, Word kind, std::uint64_t value) {
  switch (kind) {
    case Word::kTail: return has(Fault::kTailAhead) ? value + 1 : value;
    case Word::kHead: {
      if (has(Fault::kNoDrain) && position().phase == Phase::kDrain) return UINT64_MAX;
      std::size_t offset = 0;
      const Area& theirs = *sim_.memory().area_of(word, offset);
      return has(Fault::kCreditTooMany) ? std::min(value + 1, sim_.locator(rank_).owed(theirs.lane, theirs.rank))
                                        : value;
    }
    case Word::kAnnounce: {
      const std::uint64_t own = *announced_by(rank_, word, 0);
      if (has(looks_for_room() ? Fault::kRoomAhead : Fault::kAnnounceAhead)) return own;
      if (!has(Fault::kRoomTooMuch) || !looks_for_room()) return value;
      std::size_t offset = 0;
      const Area& lines = *sim_.memory().area_of(word, offset);
      const std::uint64_t before =
          sim_.memory().load(rank_, position(), announced_by(writer_of(lines, offset), word, 1), true).value;
      return protocol::sequence_of(before) + 1 == protocol::sequence_of(own) ? own : value;
    }
    case Word::kOther: break;
  }
  return value;
}

void Machine::store_release(std::uint64_t* word, std::uint64_t value) {
  const Word kind = kind_of(word);
  const bool relaxed = (kind == Word::kTail && has(Fault::kTailWithoutRelease)) ||
                       (kind == Word::kHead && has(Fault::kHeadWithoutRelease)) ||
                       (kind == Word::kAnnounce && has(Fault::kAnnounceWithoutRelease));
  store(word, value, !relaxed);
}

std::uint64_t Machine::load_word(const std::uint64_t* word) { return load(word, false).value; }
void Machine::store_word(std::uint64_t* word, std::uint64_t value) { store(word, value, false); }

/// Reads and writes are two moments.
bool Machine::copy(const void* from, void* to, std::size_t bytes, const char* verb) {
  if (!begin()) return false;
  views_.resize(std::max<std::size_t>(views_.size(), 1));
  views_[0].resize(std::max(views_[0].size(), bytes));
  if (sim_.tracing()) note(fmt::format("{} {} to {}", verb, name_of(from, bytes), name_of(to, bytes)));
  sim_.memory().read(rank_, position(), from, bytes, views_[0].data());
  if (sim_.conflicted()) return false;
  if (!begin()) return false;
  sim_.memory().write(rank_, position(), to, views_[0].data(), bytes);
  return !sim_.conflicted();
}

void Machine::load_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes != 0 && !copy(from, to, bytes, "copies")) std::memset(to, 0, bytes);
}

void Machine::store_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes != 0) copy(from, to, bytes, "copies");
}

/// The kernel works on copies: the sources as this rank sees them, and the sums that it stores a moment later.
void Machine::reduce(const ReduceArgs& args) {
  if (!begin()) return;
  const auto sources = static_cast<std::size_t>(args.source_count);
  const auto destinations = static_cast<std::size_t>(args.destination_count);
  const auto bytes_of = [&](const auto* wide, std::size_t i) {
    return args.count * (wide && wide[i] ? sizeof(float) : element_bytes_);
  };
  views_.resize(std::max(views_.size(), sources + destinations));
  view_pointers_.resize(views_.size());
  std::string text;
  for (std::size_t i = 0; i < sources; ++i) {
    const std::size_t bytes = bytes_of(args.wide_sources, i);
    sim_.memory().read(rank_, position(), args.sources[i], bytes, view(i, bytes));
    if (sim_.tracing()) text += (i == 0 ? "reads " : " + ") + name_of(args.sources[i], bytes);
  }
  if (sim_.tracing()) note(text);
  if (sim_.conflicted() || !begin()) return;
  for (std::size_t i = 0; i < destinations; ++i) view(sources + i, bytes_of(args.wide_destinations, i));
  ReduceArgs copies = args;
  copies.sources = view_pointers_.data();
  copies.destinations = view_pointers_.data() + sources;
  reduce_(copies);
  for (std::size_t i = 0; i < destinations; ++i) {
    const std::size_t bytes = bytes_of(args.wide_destinations, i);
    if (sim_.tracing()) note("writes " + name_of(args.destinations[i], bytes));
    sim_.memory().write(rank_, position(), args.destinations[i], views_[sources + i].data(), bytes);
  }
  sim_.conflicted();
}

/// Memory of `bytes` for copy number i.
std::byte* Machine::view(std::size_t i, std::size_t bytes) {
  if (views_[i].size() < bytes) views_[i].resize(bytes);
  view_pointers_[i] = views_[i].data();
  return views_[i].data();
}

/// A system call on a dead process's memory fails; whoever notices says so to all.
bool Machine::peer_lives(std::uint32_t peer) {
  if (!begin()) return false;
  if (!sim_.is_dead(static_cast<int>(peer))) return true;
  sim_.set_abort();
  return false;
}

bool Machine::read_remote(std::uint32_t peer, std::uint64_t address, std::byte* local, std::size_t bytes) {
  return peer_lives(peer) && copy(reinterpret_cast<const void*>(address), local, bytes, "fetches");
}

bool Machine::write_remote(std::uint32_t peer, std::uint64_t address, const void* local, std::size_t bytes) {
  return peer_lives(peer) && copy(local, reinterpret_cast<void*>(address), bytes, "delivers");
}

std::byte* Machine::staging(std::size_t index, std::size_t bytes) {
  if (tiles_.size() <= index) tiles_.resize(index + 1);
  if (tiles_[index].size() < bytes) tiles_[index].resize(bytes);
  return tiles_[index].data();
}

bool Machine::aborted() {
  if (sim_.over()) return true;
  return load(sim_.abort_word(), true).value != 0;
}

void Machine::pause() {
  if (quiet_ || sim_.over()) return;
  sim_.wait(rank_, saw_stale_);
  saw_stale_ = false;
  if (sim_.current() != rank_) fiber_.suspend();
}

}  // namespace tutti::sim
