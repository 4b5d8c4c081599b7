// Which accesses of emulated GPU threads are ordered: barriers order the threads of a block, release and acquire two threads, launches of a
// stream one after the other. Two accesses of the same byte that are not ordered, one of them a write, are a race.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace tutti::sim {

/// When a thread did something: `phase` counts the barriers of its block, `epoch` also the thread's releases.
struct Moment {
  std::uint32_t thread = 0;  ///< 0: nobody; numbered over all launches
  std::uint32_t block = 0;   ///< the same
  std::uint32_t phase = 0;
  std::uint32_t epoch = 0;
};

/// What somebody knows to be over.
class Knowledge {
 public:
  bool has(const Moment& moment) const {
    if (moment.block < blocks_.size() && moment.phase < blocks_[moment.block]) return true;
    const auto found = threads_.find(moment.thread);
    return found != threads_.end() && moment.epoch <= found->second;
  }
  /// All that the block's threads did before their barrier number `phase`.
  void add_block(std::uint32_t block, std::uint32_t phase);
  /// All that the thread did up to this epoch.
  void add_thread(std::uint32_t thread, std::uint32_t epoch);
  void join(const Knowledge& other);
  bool empty() const { return blocks_.empty() && threads_.empty(); }

 private:
  std::vector<std::uint32_t> blocks_;
  std::unordered_map<std::uint32_t, std::uint32_t> threads_;
};

/// One thread's place and what it knows: what its block knew at the last barrier, and what it learned since.
struct ThreadClock {
  Moment now;
  std::shared_ptr<const Knowledge> of_block;
  Knowledge since;

  bool knows(const Moment& moment) const {
    if (moment.thread == 0 || moment.thread == now.thread) return true;
    if (moment.block == now.block && moment.phase < now.phase) return true;
    return since.has(moment) || of_block->has(moment);
  }
  /// What a release tells.
  Knowledge told() const;
};

/// The last accesses of every byte that was touched, and the clocks of released words.
class AccessHistory {
 public:
  /// Empty, or what is wrong.
  std::string read(const ThreadClock& clock, const void* where, std::size_t bytes);
  std::string write(const ThreadClock& clock, const void* where, std::size_t bytes);

  void release(ThreadClock& clock, const void* word);
  void acquire(ThreadClock& clock, const void* word);
  /// A read-modify-write: keeps what others released.
  void exchange(ThreadClock& clock, const void* word);

 private:
  struct Byte {
    Moment written;
    Moment read;
  };
  static constexpr std::size_t kGranule = 8;

  Byte& byte(std::uintptr_t address) { return bytes_[address / kGranule][address % kGranule]; }

  std::unordered_map<std::uintptr_t, std::array<Byte, kGranule>> bytes_;
  std::unordered_map<const void*, Knowledge> released_;
};

}  // namespace tutti::sim
