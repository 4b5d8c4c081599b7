// Initialisations and splits that a group collects, and what else the files of this folder share about groups.
#pragma once

#include "comm/communicator.h"
#include "comm/split_exchange.h"

#include <functional>
#include <memory>
#include <vector>

#include <unistd.h>

namespace tutti::comm {

/// `work` ends in the communicator's initialise() or fail_initialisation(), and may block.
struct InitJob {
  std::shared_ptr<Communicator> communicator;
  std::function<void()> work;
  bool blocking;  ///< of what it is made from, or itself: the caller waits
  std::shared_ptr<Communicator>
      parent{};  ///< of what it is made from, if anything: a group's calls may end it until the jobs start
  std::shared_ptr<ParentTurn> turn{};  ///< the same one's: begun before any job of the group starts
  int process = getpid();              ///< where it was asked for: a group may be open while its process forks
};

/// To be run at the group's end.
void queue_job(InitJob job);

/// Starts all at once, each in a thread of its own; waits for those that block. kInProgress's error (no text) if any goes on in the
/// background.
Status run_jobs(std::vector<InitJob> jobs);

/// The job of a communicator that is to be: now, at the group's end, or in the background. `handle`: where its handle goes, nullptr: it gets
/// none. What fails here takes it back.
Status schedule(InitJob job, Handle* handle);

/// Of a communicator made from another. nullptr: the parent's.
Options child_options(Communicator& parent, const Options* wanted);

/// Why nothing is taken after ncclCommFinalize.
Error finalized();

/// What the planner expects the call to take.
Result<double> predict_us(Communicator& communicator, const CallArgs& args);

}  // namespace tutti::comm
