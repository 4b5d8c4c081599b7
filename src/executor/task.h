// A task: something that advances without blocking, and the loop that runs several of them to their end in one thread.
#pragma once

#include "executor/backoff.h"
#include "protocol/lane.h"

#include <span>

namespace tutti::executor {

using protocol::Progress;

class Task {
 public:
  virtual ~Task() = default;
  /// Does what can be done without waiting. After kDone or kFailed it is not called again.
  virtual Progress advance() = 0;
  /// Called now and then while nothing moves: deadlines, peers that left. Cheap.
  virtual void check_patience() = 0;
};

/// Runs all tasks, in turn, until each is done or failed; the list is used up, and no memory is needed. Waits by spinning, then yielding,
/// then sleeping; where it is crowded, hardly by spinning.
void run_tasks(std::span<Task*> tasks, const Crowding& crowding);

}  // namespace tutti::executor
