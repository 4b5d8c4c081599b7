#include "sim/runner.h"

#include "base/reduce.h"

#include <fmt/format.h>

namespace tutti::sim {

Runner::Runner() {
  for (int r = 0; r < kRanksMax; ++r) {
    ranks_.push_back(std::make_unique<Rank>());
    ranks_.back()->runner = this;
    ranks_.back()->number = r;
  }
}

/// What a rank's fiber runs: everything, as a thread would that waits by looking again.
void Runner::run_rank(void* argument) {
  Rank& rank = *static_cast<Rank*>(argument);
  Simulation& simulation = rank.runner->simulation_;
  protocol::Progress progress = protocol::Progress::kAdvanced;
  const auto goes_on = [&] { return progress != protocol::Progress::kDone && progress != protocol::Progress::kFailed; };
  while (goes_on() && !simulation.over()) {
    progress = rank.run->advance();
    if (progress == protocol::Progress::kBlocked) rank.machine->pause();
  }
  rank.finished = progress == protocol::Progress::kDone;
  if (!rank.finished && !simulation.over()) {
    if (!rank.run->problem().empty()) {
      simulation.fail(rank.run->problem());
    } else if (!simulation.abort_is_set()) {
      simulation.fail(fmt::format("rank {} gives up, and nobody has aborted", rank.number));
    }
  }
  if (!rank.finished && simulation.options().strict_buffers) simulation.memory().give_back(rank.number);
  simulation.end(rank.number);
}

Outcome Runner::run(const Scenario& scenario, bool trace) {
  SimulationOptions options = scenario.simulation;
  options.trace = trace;
  simulation_.reset(options);
  simulation_.set_calls(&scenario.calls);
  rank_count_ = scenario.shape.ranks;
  std::vector<Machine*> machines;
  for (int r = 0; r < rank_count_; ++r) {
    Rank& rank = *ranks_[static_cast<std::size_t>(r)];
    rank.machine = std::make_unique<Machine>(simulation_, rank.fiber, r);
    rank.machine->set_reduce(reduce_function(DataType::kUint32, ReduceOp::kSum), sizeof(Value));
    rank.finished = false;
    machines.push_back(rank.machine.get());
  }
  World<Machine> world(scenario.shape, scenario.calls, simulation_.memory(), machines);
  for (int r = 0; r < rank_count_; ++r) {
    Rank& rank = *ranks_[static_cast<std::size_t>(r)];
    rank.run = &world.rank(r);
    simulation_.set_locator(r, rank.run);
    rank.fiber.start(&Runner::run_rank, &rank);
  }
  resume_all();
  Outcome outcome;
  outcome.ok = simulation_.failure().empty();
  outcome.failure = simulation_.failure();
  outcome.trace = simulation_.trace();
  outcome.operations = simulation_.operations();
  for (int r = 0; r < rank_count_; ++r) outcome.finished += ranks_[static_cast<std::size_t>(r)]->finished ? 1 : 0;
  return outcome;
}

void Runner::resume_all() {
  int running = rank_count_;
  while (!simulation_.over() && running > 0) {
    const int next = simulation_.current();
    if (next < 0) {
      if (simulation_.all_ended()) break;
      if (!simulation_.watchdog_acts()) simulation_.fail(deadlock());
      continue;
    }
    Fiber& fiber = ranks_[static_cast<std::size_t>(next)]->fiber;
    fiber.resume();
    running -= fiber.ended() ? 1 : 0;
  }
  // No operation does anything any more: whoever is still inside comes out.
  simulation_.finish();
  for (int r = 0; r < rank_count_; ++r) {
    Fiber& fiber = ranks_[static_cast<std::size_t>(r)]->fiber;
    if (!fiber.ended()) fiber.resume();
    if (!fiber.ended()) fiber.abandon();
  }
}

std::string Runner::deadlock() const {
  std::string text = "deadlock: no rank can go on";
  std::string ranks;
  for (int r = 0; r < rank_count_; ++r) {
    const Rank& rank = *ranks_[static_cast<std::size_t>(r)];
    if (simulation_.has_ended(r)) {
      ranks += fmt::format("\n  rank {}:  {}", r, simulation_.is_dead(r) ? "dead" : "has made all its calls");
      continue;
    }
    const Position position = rank.run->position();
    rank.machine->set_quiet();
    const int peer = rank.run->waiting_for();
    text += fmt::format("{} rank {} waits for rank {}", ranks.find("waits") == std::string::npos ? ":" : ",", r, peer);
    ranks += fmt::format("\n  rank {}:  waits for rank {}, {}", r, peer, simulation_.text_of(r, position));
  }
  return text + ranks;
}

}  // namespace tutti::sim
