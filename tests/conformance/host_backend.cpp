// The lane interpreter on the Host machine: all ranks in one thread, advanced in seeded random order.
#include "executor/host_machine.h"
#include "interpreter.h"
#include "sim/heap_memory.h"

#include <fmt/format.h>

#include <cstring>
#include <random>

namespace tutti::conformance {
namespace {

using executor::HostMachine;
using protocol::Progress;

/// Memory that only a copy reaches: addresses are those of this process.
struct CopiedMemory : executor::RemoteMemory {
  bool read(std::uint32_t, std::uint64_t address, std::byte* local, std::size_t bytes) override {
    std::memcpy(local, reinterpret_cast<void*>(address), bytes);
    return true;
  }
  bool write(std::uint32_t, std::uint64_t address, const std::byte* local, std::size_t bytes) override {
    std::memcpy(reinterpret_cast<void*>(address), local, bytes);
    return true;
  }
};

/// Ranks of a run, one call after the other on the same channels.
class Run {
 public:
  Run(const sim::RunShape& shape, const std::vector<sim::PlannedCall>& calls, unsigned seed)
      : random_(seed), done_(static_cast<std::size_t>(shape.ranks)) {
    for (int r = 0; r < shape.ranks; ++r) {
      machines_.push_back(std::make_unique<HostMachine>(&abort_word_, &copied_));
      machines_.back()->set_reduce(reduce_function(DataType::kUint32, ReduceOp::kSum));
      pointers_.push_back(machines_.back().get());
    }
    world_ = std::make_unique<sim::World<HostMachine>>(shape, calls, memory_, pointers_);
  }

  std::string to_the_end() {
    for (std::uint64_t turns = 0; running() > 0; ++turns) {
      if (turns == 2000000) return "the ranks wait for ever";
      const std::size_t r = random_() % done_.size();
      if (done_[r]) continue;
      const Progress progress = world_->rank(static_cast<int>(r)).advance();
      if (progress == Progress::kFailed) return world_->rank(static_cast<int>(r)).problem() + " (the rank gave up)";
      done_[r] = progress == Progress::kDone;
    }
    return "";
  }

  /// All but the last call; then the abort word is set.
  std::string aborted() {
    const std::size_t callers = done_.size() - 1;
    std::vector<bool> over(callers);
    for (int turns = 0; turns < 4000; ++turns) {
      if (turns == 2000) abort_word_ = 1;
      for (std::size_t r = 0; r < callers; ++r) {
        if (over[r]) continue;
        sim::RankRun<HostMachine>& rank = world_->rank(static_cast<int>(r));
        const Progress progress = rank.advance();
        over[r] = progress == Progress::kDone || progress == Progress::kFailed;
        if (!rank.problem().empty()) return rank.problem();
        if (progress == Progress::kFailed && abort_word_ == 0)
          return fmt::format("rank {} gives up before the abort", r);
      }
    }
    for (std::size_t r = 0; r < callers; ++r) {
      if (!over[r]) return fmt::format("rank {} goes on after the abort", r);
    }
    return "";
  }

 private:
  int running() const { return static_cast<int>(std::count(done_.begin(), done_.end(), false)); }

  std::mt19937 random_;
  std::uint64_t abort_word_ = 0;
  CopiedMemory copied_;
  sim::HeapMemory memory_;
  std::vector<std::unique_ptr<HostMachine>> machines_;
  std::vector<HostMachine*> pointers_;
  std::unique_ptr<sim::World<HostMachine>> world_;
  std::vector<bool> done_;
};

class HostBackend final : public InterpreterBackend {
 public:
  using InterpreterBackend::InterpreterBackend;
  std::string name() const override { return fmt::format("host-{}", sim::name_of(protocol_)); }
  std::string summary() const override {
    return fmt::format("interpreter on the Host machine over {}, in random order", sim::name_of(protocol_));
  }
  Capabilities capabilities() const override { return interpreter_capabilities(); }

  std::string run(const Case& c) override {
    sim::RunShape shape;
    shape.ranks = c.request.ranks;
    shape.slots = {2, 1024};
    shape.lines = {2, 64};
    auto planned = plan(shape, c);
    if (!planned.ok()) return planned.error().message;
    const std::vector<sim::PlannedCall> calls(c.kind == Kind::kRow ? kRowCalls : 3, planned.value());
    Run run(shape, calls, 1 + c.request.ranks + static_cast<unsigned>(c.request.root) * 8);
    return c.kind == Kind::kAbort ? run.aborted() : run.to_the_end();
  }

 private:
  std::uint64_t rounds_count() const override { return protocol_ == sim::Protocol::kLines ? 1009 : 4099; }
};

}  // namespace

void add_host_backends(Backends& all) {
  for (int p = 0; p < sim::kProtocols; ++p) all.push_back(std::make_unique<HostBackend>(static_cast<sim::Protocol>(p)));
}

}  // namespace tutti::conformance
