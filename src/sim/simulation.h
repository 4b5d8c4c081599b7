// A simulated run in progress: memory, scheduler, clocks of operations, faults, and how it ended. Machines (machine.h) perform their
// operations through it; a runner (runner.h) resumes its ranks.
#pragma once

#include "sim/fault.h"
#include "sim/memory.h"
#include "sim/scheduler.h"
#include "sim/world.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tutti::sim {

/// A rank ends for good at its `operation`th operation.
struct Death {
  int rank = 0;
  std::uint64_t operation = 0;
};

struct SimulationOptions {
  int ranks = 2;
  Memory::Options memory;
  Scheduler::Options schedule;
  Fault fault = Fault::kNone;
  std::optional<std::uint64_t> abort_at;  ///< the watchdog sets the abort word at this operation of the run
  std::optional<Death> death;             ///< and, some operations later, the watchdog sets the abort word
  std::uint32_t notice_after = 50;        ///< so many
  bool nobody_notices = false;            ///< the watchdog sleeps through a death
  bool strict_buffers = false;            ///< a rank whose call has failed has its buffers back at once
  bool trace = false;
};

class Simulation {
 public:
  /// Far more than any run takes whose sizes a seed has chosen.
  static constexpr std::uint64_t kOperationsMax = 1000000;
  /// Operations of one rank after the abort word was set: it may go on with what its peers have sent already, word by word.
  static constexpr std::uint64_t kOperationsAfterAbortMax = 3000;

  /// Begins a run. The locators are set before the first operation.
  void reset(const SimulationOptions& options);
  void set_locator(int rank, const Locator* locator) { locators_[static_cast<std::size_t>(rank)] = locator; }

  Memory& memory() { return memory_; }
  Scheduler& scheduler() { return scheduler_; }
  const SimulationOptions& options() const { return options_; }
  const std::uint64_t* abort_word() const { return abort_word_; }

  /// Before each operation of a rank: counts it, lets things happen, and chooses who goes on.
  void turn(int rank);
  /// The rank looked at its words in vain: it waits until one changes, or, `again`, looks again some time.
  void wait(int rank, bool again);
  /// The rank's part is over.
  void end(int rank);
  /// Who performs the next operation; -1: nobody can.
  int current() const { return current_; }
  /// Where nobody can go on, the watchdog may have something to do: false if not.
  bool watchdog_acts();
  /// A rank found that a peer is dead; what its own watchdog would find a moment later.
  void set_abort();
  bool abort_is_set() const { return aborted_; }
  bool has_ended(int rank) const { return scheduler_.has_ended(rank); }
  bool all_ended() const {
    for (int r = 0; r < options_.ranks; ++r) {
      if (!has_ended(r)) return false;
    }
    return true;
  }
  bool is_dead(int rank) const { return (dead_ >> rank & 1) != 0; }

  /// Ends the run if the memory found a conflict. True if the run is over.
  bool conflicted();
  const Locator& locator(int rank) const { return *locators_[static_cast<std::size_t>(rank)]; }
  Position position(int rank) const { return locator(rank).position(); }

  /// Ends the run; the first reason stays.
  void fail(std::string reason);
  /// Ends the run, with or without failure: no operation does anything from here on.
  void finish() { over_ = true; }
  bool over() const { return over_; }
  const std::string& failure() const { return failure_; }
  std::uint64_t operations() const { return operations_; }

  /// One line of the trace; nothing unless tracing.
  bool tracing() const { return options_.trace; }
  void note(int rank, const std::string& what);
  const std::string& trace() const { return trace_; }
  /// "call 0, lane 0, round 2, step 1 (recv 0 + in[0.2] -> send 1)"
  std::string text_of(int rank, const Position& position) const;
  void set_calls(const std::vector<PlannedCall>* calls) { calls_ = calls; }

 private:
  std::string describe(const Conflict& conflict) const;
  void die(int rank);

  SimulationOptions options_;
  Memory memory_;
  Scheduler scheduler_;
  std::uint64_t* abort_word_ = nullptr;
  std::vector<const Locator*> locators_;
  std::uint64_t operations_ = 0;
  std::vector<std::uint64_t> operations_of_;
  std::vector<std::uint64_t> after_abort_;
  std::optional<std::uint64_t> abort_due_;
  bool aborted_ = false;
  std::uint32_t dead_ = 0;
  bool over_ = false;
  int current_ = -1;
  std::string failure_;
  std::string trace_;
  std::vector<std::optional<Position>> last_traced_;
  const std::vector<PlannedCall>* calls_ = nullptr;
};

}  // namespace tutti::sim
