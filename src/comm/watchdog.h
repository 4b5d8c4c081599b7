// One thread per process that notices when a peer process ends (its pidfd fires) and tells whoever watches it.
#pragma once

#include "base/result.h"

#include <cstdint>
#include <functional>
#include <memory>

namespace tutti::comm {

/// Unwatches when destroyed; after that the callback neither runs nor is running.
class ProcessWatch {
 public:
  virtual ~ProcessWatch() = default;
};

/// Calls `on_exit` once, from the watchdog's thread, as soon as process `pid` no longer lives (at once if it already
/// does not). The callback must not block and must not unwatch. Several watches of one process share one descriptor.
/// Falls back to polling kill(pid, 0) where pidfd_open is missing or descriptors have run out.
Result<std::unique_ptr<ProcessWatch>> watch_process(std::int32_t pid, std::function<void()> on_exit);

}  // namespace tutti::comm
