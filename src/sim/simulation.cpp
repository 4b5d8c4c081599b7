#include "sim/simulation.h"

#include "schedule/text.h"

#include <fmt/format.h>

namespace tutti::sim {

void Simulation::reset(const SimulationOptions& options) {
  options_ = options;
  const auto ranks = static_cast<std::size_t>(options.ranks);
  memory_.reset(options.ranks + 1, options.memory);
  scheduler_.reset(options.ranks, options.schedule);
  abort_word_ =
      reinterpret_cast<std::uint64_t*>(memory_.take(sizeof(std::uint64_t), {AreaKind::kAbort, options.ranks}));
  locators_.assign(ranks, nullptr);
  operations_ = 0;
  operations_of_.assign(ranks, 0);
  after_abort_.assign(ranks, 0);
  abort_due_ = options.abort_at;
  aborted_ = false;
  dead_ = 0;
  over_ = false;
  failure_.clear();
  trace_.clear();
  last_traced_.assign(ranks, std::nullopt);
  calls_ = nullptr;
  current_ = scheduler_.next(-1);
}

void Simulation::turn(int rank) {
  const auto r = static_cast<std::size_t>(rank);
  ++operations_;
  ++operations_of_[r];
  if (abort_due_ && operations_ > *abort_due_) set_abort();
  if (options_.death && options_.death->rank == rank && operations_of_[r] > options_.death->operation) die(rank);
  if (aborted_ && !is_dead(rank) && ++after_abort_[r] > kOperationsAfterAbortMax) {
    fail(fmt::format("rank {} still runs {} operations after the abort word was set\n  now:     {}", rank,
                     kOperationsAfterAbortMax, text_of(rank, position(rank))));
  }
  if (operations_ > kOperationsMax) {
    fail(fmt::format("no end after {} operations; the sizes that seeds choose take far fewer\n  now:     {}",
                     kOperationsMax, text_of(rank, position(rank))));
  }
  current_ = over_ ? rank : scheduler_.next(rank);
}

void Simulation::wait(int rank, bool again) {
  if (!again) scheduler_.park(rank);
  current_ = scheduler_.next(rank);
}

void Simulation::end(int rank) {
  scheduler_.end(rank);
  current_ = scheduler_.next(-1);
}

void Simulation::die(int rank) {
  dead_ |= 1u << rank;
  scheduler_.end(rank);
  if (!options_.nobody_notices) abort_due_ = operations_ + options_.notice_after;
  if (tracing()) note(rank, "dies");
}

bool Simulation::watchdog_acts() {
  if (!abort_due_ || aborted_) return false;
  set_abort();
  current_ = scheduler_.next(-1);
  return current_ >= 0;
}

void Simulation::set_abort() {
  abort_due_.reset();
  if (aborted_) return;
  aborted_ = true;
  if (tracing()) trace_ += fmt::format("{:6}  the watchdog sets the abort word\n", operations_);
  scheduler_.wake(memory_.store(options_.ranks, {}, abort_word_, 1, true));
}

void Simulation::fail(std::string reason) {
  if (over_) return;
  over_ = true;
  failure_ = std::move(reason);
}

bool Simulation::conflicted() {
  if (memory_.conflict() && !over_) fail(describe(*memory_.conflict()));
  return over_;
}

std::string Simulation::text_of(int rank, const Position& p) const {
  if (rank >= options_.ranks) return "the watchdog";
  const std::string call = fmt::format("call {}", p.call);
  switch (p.phase) {
    case Phase::kFill: return call + ", before it: the user fills its buffers";
    case Phase::kRoom: return call + ", waiting for room to announce it";
    case Phase::kOpen: return call + ", announcing";
    case Phase::kCheck: return call + ", after it: the user reads its output";
    case Phase::kOver: return "after the last call";
    case Phase::kDrain:
      return fmt::format("{}, lane {}, at its end: waits until its pulled data is read", call, p.lane);
    case Phase::kLanes: break;
  }
  std::string text = fmt::format("{}, lane {}, round {}, step {}", call, p.lane, p.round, p.step);
  if (!calls_) return text;
  const planner::Plan& plan = (*calls_)[p.call].plans[static_cast<std::size_t>(rank)];
  const schedule::LaneProgram& lane = plan.program->lanes[static_cast<std::size_t>(p.lane)];
  return text + fmt::format(" ({})", schedule::to_text(lane, lane.steps[p.step]));
}

std::string Simulation::describe(const Conflict& c) const {
  const int now = c.now.thread;
  const std::string now_text = fmt::format("\n  now:     rank {}, {}", now, text_of(now, c.now.position));
  const std::string_view verb = c.now.write ? "writes" : "reads";
  if (c.kind == Conflict::Kind::kOutside) {
    if (!c.area) return fmt::format("rank {} {} memory that nobody has", now, verb) + now_text;
    return fmt::format("rank {} {} outside of {}: bytes {}..{} of it", now, verb,
                       sim::describe(*c.area, 0, std::max<std::size_t>(1, c.area->bytes)), c.begin, c.end - 1) +
           now_text;
  }
  if (c.kind == Conflict::Kind::kGone) {
    return fmt::format("rank {} {} {}, but that rank's call has failed, and its user has its buffers back", now, verb,
                       sim::describe(*c.area, c.begin, c.end)) +
           now_text;
  }
  const int before = c.before.thread;
  const std::string what = sim::describe(*c.area, c.begin, c.end);
  std::string text;
  if (!c.now.write) {
    text =
        fmt::format("data race: rank {} reads {}, without having acquired what rank {} wrote there", now, what, before);
  } else if (c.before.write) {
    text = fmt::format("data race: rank {} and rank {} both write {}, in no order", now, before, what);
  } else {
    text = fmt::format("data race: rank {} overwrites {}, which rank {} may still be reading", now, what, before);
  }
  return text + now_text + fmt::format("\n  before:  rank {}, {}", before, text_of(before, c.before.position)) +
         "\n  missing: " + memory_.missing(c);
}

void Simulation::note(int rank, const std::string& what) {
  const Position p = position(rank);
  std::optional<Position>& last = last_traced_[static_cast<std::size_t>(rank)];
  if (!last || !(*last == p)) trace_ += fmt::format("{:6}  rank {}: {}\n", operations_, rank, text_of(rank, p));
  last = p;
  trace_ += fmt::format("{:6}  rank {}    {}\n", operations_, rank, what);
}

}  // namespace tutti::sim
