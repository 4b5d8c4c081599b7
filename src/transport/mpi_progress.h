// MpiProgress: the plug-in's thread, which goes on with what links have under way while nobody is in a call that would, and carries
// links to their end that nobody uses any more. It starts when it is first wanted and sleeps while nothing is under way.
#pragma once

#include "transport/mpi_link.h"

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

namespace tutti::transport {

class MpiProgress {
 public:
  /// Until link->advance() says that it is done. Called with the link's lock held.
  void want(std::shared_ptr<MpiLink> link);
  /// Waits until nothing is under way, at most so long.
  void drain(std::chrono::milliseconds patience);

 private:
  using Clock = std::chrono::steady_clock;

  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable idle_;
  std::vector<std::shared_ptr<MpiLink>> added_;  ///< guarded by mutex_, as are all below
  bool running_ = false;
  bool busy_ = false;  ///< the thread has links
  bool hurry_ = false;
};

/// The process's, never destroyed.
MpiProgress& mpi_progress();

}  // namespace tutti::transport
