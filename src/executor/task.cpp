#include "executor/task.h"

#include <algorithm>

namespace tutti::executor {
namespace {

/// One task alone, the common case: no list to keep.
void run_one(Task& task, const Crowding& crowding) {
  Backoff backoff(crowding);
  for (;;) {
    const Progress progress = task.advance();
    if (progress == Progress::kDone || progress == Progress::kFailed) return;
    if (progress == Progress::kAdvanced) {
      backoff.reset();
      continue;
    }
    if (backoff.is_slow()) task.check_patience();
    backoff.wait();
  }
}

}  // namespace

[[gnu::hot]] void run_tasks(std::span<Task*> tasks, const Crowding& crowding) {
  if (tasks.size() == 1) return run_one(*tasks[0], crowding);
  Backoff backoff(crowding);
  while (!tasks.empty()) {
    bool moved = false;
    const auto over = std::ranges::remove_if(tasks, [&](Task* task) {
      const Progress progress = task->advance();
      moved |= progress != Progress::kBlocked;
      return progress == Progress::kDone || progress == Progress::kFailed;
    });
    tasks = tasks.first(tasks.size() - over.size());
    if (moved) {
      backoff.reset();
      continue;
    }
    if (backoff.is_slow()) {
      for (Task* task : tasks) task->check_patience();
    }
    backoff.wait();
  }
}

}  // namespace tutti::executor
