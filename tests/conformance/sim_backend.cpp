// The lane interpreter on the Sim machine: fibers, simulated memory, races reported. One seed a case; several where loads are stale.
#include "interpreter.h"
#include "sim/runner.h"

#include <fmt/format.h>

namespace tutti::conformance {
namespace {

class SimBackend final : public InterpreterBackend {
 public:
  using InterpreterBackend::InterpreterBackend;
  std::string name() const override { return fmt::format("sim-{}", sim::name_of(protocol_)); }
  std::string summary() const override {
    return fmt::format("interpreter on the Sim machine over {}, with races reported", sim::name_of(protocol_));
  }
  Capabilities capabilities() const override { return interpreter_capabilities() | bit(Capability::kStaleMemory); }

  std::string run(const Case& c) override {
    constexpr std::uint64_t kSeeds = 6;
    sim::Scenario scenario;
    scenario.shape.ranks = c.request.ranks;
    scenario.shape.slots = {2, 64};
    scenario.shape.lines = {2, 16};
    auto planned = plan(scenario.shape, c);
    if (!planned.ok()) return planned.error().message;
    const int calls = c.kind == Kind::kAbort ? 1 : c.kind == Kind::kRow ? kRowCalls : 2;
    scenario.calls.assign(static_cast<std::size_t>(calls), planned.value());
    ++number_;
    for (std::uint64_t s = 0; s < (c.kind == Kind::kStale || c.kind == Kind::kAbort ? kSeeds : 1); ++s) {
      const std::uint64_t seed = number_ * kSeeds + s;
      scenario.seed = seed;
      scenario.simulation = {};
      scenario.simulation.ranks = c.request.ranks;
      scenario.simulation.memory.seed = seed;
      scenario.simulation.memory.stale_chance = c.kind == Kind::kStale ? 224 : 32;
      scenario.simulation.schedule.seed = seed;
      scenario.simulation.schedule.manner = static_cast<sim::Manner>(seed % sim::kManners);
      if (c.kind == Kind::kAbort) scenario.simulation.abort_at = 1 + 13 * s;
      if (!runner_) runner_ = std::make_unique<sim::Runner>();
      const sim::Outcome outcome = runner_->run(scenario);
      if (!outcome.ok) return fmt::format("seed {}: {}", seed, outcome.failure);
      if (c.kind != Kind::kAbort && outcome.finished != c.request.ranks) return "not all ranks have made their calls";
    }
    return "";
  }

 private:
  std::uint64_t rounds_count() const override { return protocol_ == sim::Protocol::kLines ? 67 : 149; }

  std::uint64_t number_ = 0;
  std::unique_ptr<sim::Runner> runner_;
};

}  // namespace

void add_sim_backends(Backends& all) {
  for (int p = 0; p < sim::kProtocols; ++p) all.push_back(std::make_unique<SimBackend>(static_cast<sim::Protocol>(p)));
}

}  // namespace tutti::conformance
