#include "sim/happens_before.h"

#include <fmt/format.h>

#include <algorithm>

namespace tutti::sim {
namespace {

std::string race(const ThreadClock& clock, const Moment& other, const char* now, const char* before,
                 const void* where) {
  return fmt::format("thread {} of block {} {} {} that thread {} of block {} {}, and nothing orders the two",
                     clock.now.thread, clock.now.block, now, where, other.thread, other.block, before);
}

}  // namespace

void Knowledge::add_block(std::uint32_t block, std::uint32_t phase) {
  if (blocks_.size() <= block) blocks_.resize(block + 1);
  blocks_[block] = std::max(blocks_[block], phase);
}

void Knowledge::add_thread(std::uint32_t thread, std::uint32_t epoch) {
  std::uint32_t& known = threads_[thread];
  known = std::max(known, epoch);
}

void Knowledge::join(const Knowledge& other) {
  if (blocks_.size() < other.blocks_.size()) blocks_.resize(other.blocks_.size());
  for (std::size_t b = 0; b < other.blocks_.size(); ++b) blocks_[b] = std::max(blocks_[b], other.blocks_[b]);
  for (const auto& [thread, epoch] : other.threads_) add_thread(thread, epoch);
}

Knowledge ThreadClock::told() const {
  Knowledge all = *of_block;
  all.join(since);
  all.add_block(now.block, now.phase);
  all.add_thread(now.thread, now.epoch);
  return all;
}

std::string AccessHistory::read(const ThreadClock& clock, const void* where, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(where);
  for (std::uintptr_t at = begin; at < begin + bytes; ++at) {
    Byte& b = byte(at);
    if (!clock.knows(b.written)) return race(clock, b.written, "reads", "wrote", where);
    // Of several readers the last one is kept: other seeds have other ones last.
    b.read = clock.now;
  }
  return {};
}

std::string AccessHistory::write(const ThreadClock& clock, const void* where, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(where);
  for (std::uintptr_t at = begin; at < begin + bytes; ++at) {
    Byte& b = byte(at);
    if (!clock.knows(b.written)) return race(clock, b.written, "writes", "wrote", where);
    if (!clock.knows(b.read)) return race(clock, b.read, "writes", "read", where);
    b.written = clock.now;
    b.read = Moment{};
  }
  return {};
}

void AccessHistory::release(ThreadClock& clock, const void* word) {
  released_[word] = clock.told();
  ++clock.now.epoch;
}

void AccessHistory::acquire(ThreadClock& clock, const void* word) {
  const auto found = released_.find(word);
  if (found != released_.end()) clock.since.join(found->second);
}

void AccessHistory::exchange(ThreadClock& clock, const void* word) {
  acquire(clock, word);
  released_[word].join(clock.told());
  ++clock.now.epoch;
}

}  // namespace tutti::sim
