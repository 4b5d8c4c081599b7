// The Block machine: kernels of cuda/ on fibers, one for each thread of each block of each launch. It gives what payload.h asks of a Thread.
// Threads go on in seeded order; every access of payload is checked to be in its buffer and ordered with those of other threads;
// barriers are checked as the hardware asks for them.
//
// A stream is a list of launches that run one after the other, as a rank's do; streams run side by side.
#pragma once

#include "sim/fiber.h"
#include "sim/happens_before.h"
#include "sim/random.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

namespace tutti::sim {

class BlockThread;

struct GridShape {
  std::uint32_t blocks = 1;
  std::uint32_t threads = 1;
};

class BlockMachine {
 public:
  struct Options {
    std::uint64_t seed = 0;
    bool checks_races = true;  ///< slow: remembers every byte
  };
  using Body = std::function<void(BlockThread&, void* shared)>;

  explicit BlockMachine(const Options& options);
  ~BlockMachine();

  /// Accesses outside of what is added here are refused. `name` is for messages.
  void add_buffer(const void* memory, std::size_t bytes, std::string name);
  /// A launch behind those that the stream has. Every block has its own shared memory, poisoned.
  void add_launch(std::size_t stream, const GridShape& shape, std::size_t shared_bytes, Body body);

  /// All launches. Empty, or the first thing that went wrong: a race, a barrier that not all reach, a deadlock.
  std::string run();
  /// Passes over all threads so far: a clock of sorts, for what is to happen in the middle.
  std::uint64_t passes() const { return passes_; }
  void at_pass(std::uint64_t pass, std::function<void()> what) { events_.emplace(pass, std::move(what)); }
  /// Who looks for a line there waits first until `goes_on`: for an order that seeds hardly bring about.
  void hold_looks(const void* where, std::function<bool()> goes_on) { held_looks_[where] = std::move(goes_on); }

 private:
  friend class BlockThread;
  static constexpr std::uint64_t kIdlePassesMax = 1200;  ///< more than it takes to look at the abort word
  static constexpr std::uint32_t kWarp = 32;

  enum class State : std::uint8_t { kReady, kAtBarrier, kEnded };
  /// Which barrier a thread is at. Aligned ones: the same instruction for all threads of a warp.
  struct BarrierSite {
    bool aligned = true;
    bool votes = false;
    std::uint32_t line = 0;
    const char* file = "";
    friend bool operator==(const BarrierSite&, const BarrierSite&) = default;
  };
  struct Thread;
  struct Block;
  struct Launch;
  struct Stream {
    std::vector<Launch> launches;
    std::size_t next = 0;  ///< the launch behind the running one
    std::vector<std::unique_ptr<Block>> running;
    std::shared_ptr<const Knowledge> known;  ///< of launches that are over
  };

  void begin_launch(Stream& stream);
  bool end_launch(Stream& stream);
  void run_pass();
  bool run_block(Block& block);
  bool resume(Thread& thread);
  void arrive(Thread& thread, const BarrierSite& site, bool vote);
  void finish_barrier(Block& block);
  std::string barrier_problem(const Block& block) const;
  std::string where_all_wait() const;
  void fail(std::string problem);
  void check(Thread& thread, const void* where, std::size_t bytes, bool writes);
  bool is_in_buffer(const void* where, std::size_t bytes) const;
  Fiber* take_fiber();

  Options options_;
  Random random_;
  std::vector<Stream> streams_;
  AccessHistory history_;
  std::map<std::uintptr_t, std::pair<std::uintptr_t, std::string>> buffers_;  ///< by begin: end and name
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> free_fibers_;
  std::multimap<std::uint64_t, std::function<void()>> events_;
  std::map<const void*, std::function<bool()>> held_looks_;
  std::uint32_t next_thread_ = 1;
  std::uint32_t next_block_ = 1;
  std::uint64_t passes_ = 0;
  std::uint64_t changes_ = 0;      ///< anything but looking
  std::uint64_t idle_passes_ = 0;  ///< in a row, in which all only waited
  std::string problem_;
};

/// A Thread (cuda/payload.h).
class BlockThread {
 public:
  BlockThread(BlockMachine& machine, BlockMachine::Thread& thread) : m_(machine), thread_(thread) {}

  std::uint32_t index() const;
  std::uint32_t count() const;
  std::uint32_t block() const;
  std::uint32_t blocks() const;

  void sync(std::source_location where = std::source_location::current());
  void sync_apart(std::source_location where = std::source_location::current());
  bool any(bool mine, std::source_location where = std::source_location::current());

  template <class T>
  T load(const T* from) {
    before(from, sizeof(T), alignof(T), false);
    return *from;
  }
  template <class T>
  void store(T* to, const T& value) {
    before(to, sizeof(T), alignof(T), true);
    *to = value;
  }

  std::uint64_t load_acquire(const std::uint64_t* word);
  void store_release(std::uint64_t* word, std::uint64_t value);
  std::uint64_t load_word(const std::uint64_t* word);
  void store_word(std::uint64_t* word, std::uint64_t value);
  void load_words(const std::uint64_t* from, std::uint64_t (&words)[2]);
  void store_words(std::uint64_t* to, std::uint64_t low, std::uint64_t high);
  std::uint32_t add(std::uint32_t* number, std::uint32_t by);
  bool claim(std::uint32_t* number);
  bool is_claimed(const std::uint32_t* number);
  void pause();

 private:
  void before(const void* where, std::size_t bytes, std::size_t alignment, bool writes);
  void step(bool changes);
  void wait_at(const BlockMachine::BarrierSite& site, bool vote);

  BlockMachine& m_;
  BlockMachine::Thread& thread_;
};

}  // namespace tutti::sim
