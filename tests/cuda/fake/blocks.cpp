#include "blocks.h"

#include <algorithm>

namespace fake_driver {
namespace {

using tutti::sim::Fiber;

/// Fibers of launches that are over: their stacks are large. Under the world's lock, as all work is.
std::vector<std::unique_ptr<Fiber>>& free_fibers() {
  static auto* made = new std::vector<std::unique_ptr<Fiber>>;
  return *made;
}
std::unique_ptr<Fiber> take_fiber() {
  if (free_fibers().empty()) return std::make_unique<Fiber>();
  std::unique_ptr<Fiber> fiber = std::move(free_fibers().back());
  free_fibers().pop_back();
  return fiber;
}

}  // namespace

struct FakeBlock {
  struct Runner {
    Runner(FakeBlock& its_block, std::uint32_t index) : block(its_block), thread(its_block, index) {}
    ~Runner() {
      fiber->abandon();
      free_fibers().push_back(std::move(fiber));
    }
    FakeBlock& block;
    FakeThread thread;
    std::unique_ptr<Fiber> fiber = take_fiber();
    bool at_barrier = false;
    bool vote = false;
  };

  std::uint32_t index = 0;
  std::uint32_t blocks = 0;
  const FakeGrid::Body body;
  std::unique_ptr<std::byte[]> shared;
  std::vector<std::unique_ptr<Runner>> runners;
  bool vote = false;  ///< of the last barrier

  FakeBlock(std::uint32_t number, std::uint32_t of, std::size_t shared_bytes, FakeGrid::Body what)
      : index(number), blocks(of), body(std::move(what)), shared(std::make_unique<std::byte[]>(shared_bytes + 1)) {
    for (std::uint32_t t = 0; t < kFakeThreads; ++t) {
      runners.push_back(std::make_unique<Runner>(*this, t));
      runners.back()->fiber->start(
          [](void* argument) {
            auto& self = *static_cast<Runner*>(argument);
            self.block.body(self.thread, self.block.shared.get());
          },
          runners.back().get());
    }
  }
  bool is_over() const {
    return std::ranges::all_of(runners, [](const auto& runner) { return runner->fiber->ended(); });
  }
  /// True if anybody did more than look.
  bool run() {
    bool moved = false;
    for (const auto& runner : runners) {
      if (runner->fiber->ended() || runner->at_barrier) continue;
      runner->fiber->resume();
      moved |= runner->fiber->ended() || runner->at_barrier;
    }
    const auto waits = [](const auto& runner) { return runner->fiber->ended() || runner->at_barrier; };
    if (is_over() || !std::ranges::all_of(runners, waits)) return moved;
    vote = std::ranges::any_of(runners, [](const auto& runner) { return runner->at_barrier && runner->vote; });
    for (const auto& runner : runners) runner->at_barrier = false;
    return true;
  }
};

std::uint32_t FakeThread::block() const { return block_.index; }
std::uint32_t FakeThread::blocks() const { return block_.blocks; }
bool FakeThread::any(bool mine) {
  FakeBlock::Runner& self = *block_.runners[index_];
  self.vote = mine;
  self.at_barrier = true;
  self.fiber->suspend();
  return block_.vote;
}
void FakeThread::pause() { block_.runners[index_]->fiber->suspend(); }

FakeGrid::FakeGrid(std::uint32_t blocks, std::size_t shared_bytes, Body body) {
  for (std::uint32_t b = 0; b < blocks; ++b) {
    blocks_.push_back(std::make_unique<FakeBlock>(b, blocks, shared_bytes, body));
  }
}

FakeGrid::~FakeGrid() = default;

bool FakeGrid::advance() {
  // Who waits looks so often at least: a GPU's threads do while those who call this sleep, and one look in hundreds is for an abort.
  constexpr int kLooks = 8;
  for (int looks = 0; looks < kLooks; ++looks) {
    for (const auto& block : blocks_) {
      if (block->run()) looks = 0;
    }
  }
  return std::ranges::all_of(blocks_, [](const auto& block) { return block->is_over(); });
}

}  // namespace fake_driver
