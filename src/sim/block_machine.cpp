#include "sim/block_machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace tutti::sim {

struct BlockMachine::Launch {
  GridShape shape;
  std::size_t shared_bytes = 0;
  Body body;
};

struct BlockMachine::Thread {
  Thread(BlockMachine& machine, Block& its_block, std::uint32_t its_index)
      : block(its_block), index(its_index), handle(machine, *this) {}

  Block& block;
  std::uint32_t index;
  BlockThread handle;
  Fiber* fiber = nullptr;
  State state = State::kReady;
  BarrierSite site;
  bool vote = false;
  bool pauses = false;  ///< it came back to say that it waits
  ThreadClock clock;
};

struct BlockMachine::Block {
  const Launch* launch = nullptr;
  std::uint32_t index = 0;
  std::uint32_t stream = 0;
  std::vector<std::unique_ptr<Thread>> threads;
  std::unique_ptr<std::byte[]> shared;
  std::uint32_t waiting = 0;
  std::uint32_t ended = 0;
  bool vote = false;  ///< of the last barrier

  bool is_over() const { return ended == threads.size(); }
};

namespace {

constexpr std::byte kPoison{0xab};

template <class T>
void shuffle(Random& random, std::vector<T>& values) {
  for (std::size_t i = values.size(); i > 1; --i) {
    std::swap(values[i - 1], values[random.below(static_cast<std::uint32_t>(i))]);
  }
}

}  // namespace

BlockMachine::BlockMachine(const Options& options) : options_(options), random_(options.seed, 0xb10c) {}
BlockMachine::~BlockMachine() {
  for (const auto& fiber : fibers_) fiber->abandon();
}

void BlockMachine::add_buffer(const void* memory, std::size_t bytes, std::string name) {
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  buffers_[begin] = {begin + bytes, std::move(name)};
}

void BlockMachine::add_launch(std::size_t stream, const GridShape& shape, std::size_t shared_bytes, Body body) {
  if (streams_.size() <= stream) streams_.resize(stream + 1);
  streams_[stream].launches.push_back({shape, shared_bytes, std::move(body)});
}

Fiber* BlockMachine::take_fiber() {
  if (free_fibers_.empty()) {
    fibers_.push_back(std::make_unique<Fiber>());
    return fibers_.back().get();
  }
  Fiber* const fiber = free_fibers_.back();
  free_fibers_.pop_back();
  return fiber;
}

void BlockMachine::begin_launch(Stream& stream) {
  if (stream.next == stream.launches.size()) return;
  const Launch& launch = stream.launches[stream.next++];
  if (!stream.known) stream.known = std::make_shared<Knowledge>();
  for (std::uint32_t b = 0; b < launch.shape.blocks; ++b) {
    auto block = std::make_unique<Block>();
    block->launch = &launch;
    block->index = b;
    block->stream = static_cast<std::uint32_t>(&stream - streams_.data());
    block->shared = std::make_unique_for_overwrite<std::byte[]>(launch.shared_bytes);
    std::fill_n(block->shared.get(), launch.shared_bytes, kPoison);
    const std::uint32_t number = next_block_++;
    for (std::uint32_t t = 0; t < launch.shape.threads; ++t) {
      block->threads.push_back(std::make_unique<Thread>(*this, *block, t));
      Thread& thread = *block->threads.back();
      thread.clock.now = {next_thread_++, number, 0, 1};
      thread.clock.of_block = stream.known;
      thread.fiber = take_fiber();
      thread.fiber->start(
          [](void* argument) {
            auto& self = *static_cast<Thread*>(argument);
            self.block.launch->body(self.handle, self.block.shared.get());
          },
          &thread);
    }
    stream.running.push_back(std::move(block));
  }
}

/// True when the stream's launch is over.
bool BlockMachine::end_launch(Stream& stream) {
  if (stream.running.empty()) return false;
  for (const auto& block : stream.running) {
    if (!block->is_over()) return false;
  }
  auto known = std::make_shared<Knowledge>(*stream.known);
  for (const auto& block : stream.running) {
    for (const auto& thread : block->threads) {
      known->join(thread->clock.since);
      known->add_block(thread->clock.now.block, ~0u);
      free_fibers_.push_back(thread->fiber);
    }
    known->join(*block->threads.front()->clock.of_block);
  }
  stream.known = std::move(known);
  stream.running.clear();
  return true;
}

std::string BlockMachine::run() {
  for (Stream& stream : streams_) begin_launch(stream);
  for (;;) {
    for (Stream& stream : streams_) {
      while (end_launch(stream)) begin_launch(stream);
    }
    if (std::all_of(streams_.begin(), streams_.end(), [](const Stream& s) { return s.running.empty(); })) return {};
    run_pass();
    if (problem_.empty() && idle_passes_ > kIdlePassesMax) fail("nothing moves any more: " + where_all_wait());
    if (!problem_.empty()) return problem_;
  }
}

/// Every thread goes on for a while, in some order; some seeds keep a stream or a block back.
void BlockMachine::run_pass() {
  ++passes_;
  bool moved = false;
  for (auto event = events_.begin(); event != events_.end() && event->first <= passes_;) {
    event->second();
    event = events_.erase(event);
    moved = true;
  }
  std::vector<Block*> blocks;
  for (const Stream& stream : streams_) {
    for (const auto& block : stream.running) blocks.push_back(block.get());
  }
  shuffle(random_, blocks);
  const std::uint64_t manner = options_.seed % 4;
  const std::uint64_t victim = options_.seed / 4;
  bool held_back = false;
  for (Block* block : blocks) {
    const bool kept = (manner == 1 && block->stream == victim % streams_.size()) ||
                      (manner == 2 && block->index == victim % block->launch->shape.blocks);
    if (kept && !random_.chance(32)) {
      held_back = true;
      continue;
    }
    moved |= run_block(*block);
    if (!problem_.empty()) return;
  }
  if (moved) {
    idle_passes_ = 0;
  } else if (!held_back) {
    ++idle_passes_;
  }
}

bool BlockMachine::run_block(Block& block) {
  std::vector<std::uint32_t> order(block.threads.size());
  std::iota(order.begin(), order.end(), 0u);
  if (options_.seed % 4 != 3) {
    shuffle(random_, order);
  } else if (options_.seed / 4 % 2 == 0) {
    std::reverse(order.begin(), order.end());
  }
  bool moved = false;
  for (const std::uint32_t t : order) {
    Thread& thread = *block.threads[t];
    if (thread.state == State::kReady) moved |= resume(thread);
    if (!problem_.empty()) return true;
  }
  return moved;
}

bool BlockMachine::resume(Thread& thread) {
  const std::uint64_t before = changes_;
  thread.pauses = false;
  thread.fiber->resume();
  if (!problem_.empty()) return true;
  Block& block = thread.block;
  if (thread.fiber->ended()) {
    thread.state = State::kEnded;
    ++block.ended;
    ++changes_;
  }
  if (block.waiting != 0 && block.ended != 0) {
    fail(fmt::format("some threads of block {} of stream {} have ended and others wait at a barrier: {}", block.index,
                     block.stream, where_all_wait()));
  } else if (block.waiting != 0 && block.waiting == block.threads.size()) {
    finish_barrier(block);
  }
  return changes_ != before || !thread.pauses;
}

void BlockMachine::arrive(Thread& thread, const BarrierSite& site, bool vote) {
  thread.state = State::kAtBarrier;
  thread.site = site;
  thread.vote = vote;
  ++thread.block.waiting;
  ++changes_;
}

std::string BlockMachine::barrier_problem(const Block& block) const {
  const BarrierSite& first = block.threads.front()->site;
  for (const auto& thread : block.threads) {
    const BarrierSite& site = thread->site;
    const BarrierSite& of_warp = block.threads[thread->index / kWarp * kWarp]->site;
    const bool differs = site.aligned != first.aligned || site.votes != first.votes;
    if (!differs && (!site.aligned || site == of_warp)) continue;
    const BarrierSite& other = differs ? first : of_warp;
    return fmt::format("divergent barrier: thread {} of block {} is at {}:{}, another one{} at {}:{}", thread->index,
                       block.index, site.file, site.line, differs ? "" : " of its warp", other.file, other.line);
  }
  return {};
}

void BlockMachine::finish_barrier(Block& block) {
  if (std::string problem = barrier_problem(block); !problem.empty()) return fail(std::move(problem));
  bool learned = false;
  block.vote = false;
  for (const auto& thread : block.threads) {
    block.vote |= thread->vote;
    learned |= !thread->clock.since.empty();
  }
  std::shared_ptr<const Knowledge> known = block.threads.front()->clock.of_block;
  if (learned) {
    auto joined = std::make_shared<Knowledge>(*known);
    for (const auto& thread : block.threads) joined->join(thread->clock.since);
    known = std::move(joined);
  }
  for (const auto& thread : block.threads) {
    thread->state = State::kReady;
    thread->clock.of_block = known;
    thread->clock.since = Knowledge{};
    ++thread->clock.now.phase;
    ++thread->clock.now.epoch;
  }
  block.waiting = 0;
}

std::string BlockMachine::where_all_wait() const {
  std::string text;
  for (const Stream& stream : streams_) {
    for (const auto& block : stream.running) {
      const auto at = std::find_if(block->threads.begin(), block->threads.end(),
                                   [](const auto& t) { return t->state == State::kAtBarrier; });
      text += fmt::format("stream {} launch {} block {}: {} of {} threads at a barrier{}, {} ended; ", block->stream,
                          stream.next - 1, block->index, block->waiting, block->threads.size(),
                          at == block->threads.end() ? "" : fmt::format(" ({}:{})", (*at)->site.file, (*at)->site.line),
                          block->ended);
    }
  }
  return text;
}

void BlockMachine::fail(std::string problem) {
  if (problem_.empty()) problem_ = std::move(problem);
}

bool BlockMachine::is_in_buffer(const void* where, std::size_t bytes) const {
  const auto begin = reinterpret_cast<std::uintptr_t>(where);
  auto found = buffers_.upper_bound(begin);
  if (found == buffers_.begin()) return false;
  --found;
  return begin + bytes <= found->second.first;
}

void BlockMachine::check(Thread& thread, const void* where, std::size_t bytes, bool writes) {
  if (!is_in_buffer(where, bytes)) {
    return fail(fmt::format("thread {} of block {} of stream {} {} {} bytes at {}, outside of all buffers",
                            thread.index, thread.block.index, thread.block.stream, writes ? "writes" : "reads", bytes,
                            where));
  }
  if (!options_.checks_races) return;
  std::string race = writes ? history_.write(thread.clock, where, bytes) : history_.read(thread.clock, where, bytes);
  if (race.empty()) return;
  const auto buffer = std::prev(buffers_.upper_bound(reinterpret_cast<std::uintptr_t>(where)));
  fail(fmt::format("race in {}: {} (this is thread {} of block {} of stream {})", buffer->second.second, race,
                   thread.index, thread.block.index, thread.block.stream));
}

// The threads' side.

std::uint32_t BlockThread::index() const { return thread_.index; }
std::uint32_t BlockThread::count() const { return thread_.block.launch->shape.threads; }
std::uint32_t BlockThread::block() const { return thread_.block.index; }
std::uint32_t BlockThread::blocks() const { return thread_.block.launch->shape.blocks; }

void BlockThread::wait_at(const BlockMachine::BarrierSite& site, bool vote) {
  m_.arrive(thread_, site, vote);
  do thread_.fiber->suspend();
  while (!m_.problem_.empty());
}
void BlockThread::sync(std::source_location where) { wait_at({true, false, where.line(), where.file_name()}, false); }
void BlockThread::sync_apart(std::source_location where) {
  wait_at({false, false, where.line(), where.file_name()}, false);
}
bool BlockThread::any(bool mine, std::source_location where) {
  wait_at({true, true, where.line(), where.file_name()}, mine);
  return thread_.block.vote;
}

/// A moment at which others may go on instead. A thread of a run that has gone wrong goes no further.
void BlockThread::step(bool changes) {
  if (changes) ++m_.changes_;
  thread_.pauses = true;
  if (!m_.problem_.empty() || m_.random_.chance(changes ? 24 : 4)) thread_.fiber->suspend();
  while (!m_.problem_.empty()) thread_.fiber->suspend();
}
void BlockThread::before(const void* where, std::size_t bytes, std::size_t alignment, bool writes) {
  if (reinterpret_cast<std::uintptr_t>(where) % alignment != 0) {
    m_.fail(fmt::format("thread {} of block {}: {} is not aligned for {} bytes", thread_.index, thread_.block.index,
                        where, bytes));
  } else {
    m_.check(thread_, where, bytes, writes);
  }
  ++m_.changes_;  // nobody waits with these
  step(writes);
}
void BlockThread::pause() {
  thread_.pauses = true;
  thread_.fiber->suspend();
  while (!m_.problem_.empty()) thread_.fiber->suspend();
}

std::uint64_t BlockThread::load_acquire(const std::uint64_t* word) {
  step(false);
  m_.history_.acquire(thread_.clock, word);
  return *word;
}
void BlockThread::store_release(std::uint64_t* word, std::uint64_t value) {
  step(true);
  m_.history_.release(thread_.clock, word);
  *word = value;
}
std::uint64_t BlockThread::load_word(const std::uint64_t* word) {
  step(false);
  return *word;
}
void BlockThread::store_word(std::uint64_t* word, std::uint64_t value) {
  step(true);
  *word = value;
}
/// In either order, with time in between.
void BlockThread::load_words(const std::uint64_t* from, std::uint64_t (&words)[2]) {
  const std::uint32_t first = m_.random_.below(2);
  if (!m_.is_in_buffer(from, 16) || reinterpret_cast<std::uintptr_t>(from) % 16 != 0) {
    m_.fail(fmt::format("thread {} of block {} looks for a line at {}", thread_.index, thread_.block.index,
                        static_cast<const void*>(from)));
  }
  const auto held = m_.held_looks_.find(from);
  while (held != m_.held_looks_.end() && !held->second()) pause();
  step(false);
  words[first] = from[first];
  step(false);
  words[1 - first] = from[1 - first];
}
void BlockThread::store_words(std::uint64_t* to, std::uint64_t low, std::uint64_t high) {
  const std::uint64_t words[2] = {low, high};
  const std::uint32_t first = m_.random_.below(2);
  if (!m_.is_in_buffer(to, 16) || reinterpret_cast<std::uintptr_t>(to) % 16 != 0) {
    m_.fail(fmt::format("thread {} of block {} writes a line at {}", thread_.index, thread_.block.index,
                        static_cast<const void*>(to)));
  }
  step(true);
  to[first] = words[first];
  step(true);
  to[1 - first] = words[1 - first];
}
std::uint32_t BlockThread::add(std::uint32_t* number, std::uint32_t by) {
  step(true);
  m_.history_.exchange(thread_.clock, number);
  return std::exchange(*number, *number + by);
}
bool BlockThread::claim(std::uint32_t* number) {
  step(true);
  return std::exchange(*number, 1) == 0;
}
bool BlockThread::is_claimed(const std::uint32_t* number) {
  step(false);
  return *number != 0;
}

}  // namespace tutti::sim
