// MpiProgress: the links that something is under way for while nobody is in a call that would go on with it. The plug-in's thread does
// that for those that send; it starts when it is first wanted, and makes no MPI call while none sends. Links that only wait for the
// other side to end are looked at when the next communicator is made, and in MPI_Finalize.
#pragma once

#include "transport/mpi_link.h"

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace tutti::transport {

class MpiProgress {
 public:
  /// A link that sends: the thread looks at it until it does not. Called with the link's lock held.
  void want(std::shared_ptr<MpiLink> link);
  /// A link that waits for the other side to end. Called with the link's lock held.
  void keep(std::shared_ptr<MpiLink> link);
  /// A link whose communicator has failed: MPI is asked nothing of it until it ends. Called with the link's lock held.
  void abandon(std::shared_ptr<MpiLink> link);
  /// The thread calls this before each look.
  void prepare_by(std::function<void()> prepare);
  /// One look at all links.
  void sweep();
  /// Nobody else looks at anything from here on; the caller does until nothing is under way, at most so long, and not for what this
  /// rank has aborted. A call of another thread that is inside MPICH 4.0.2 when MPI_Finalize begins leaves MPICH's mutex locked, and
  /// the process is ended for that; locks seem to be neither taken nor given back from then on. So the fewer calls the thread makes,
  /// the better.
  void drain(std::chrono::milliseconds patience);

 private:
  using Links = std::vector<std::shared_ptr<MpiLink>>;
  struct Looked {
    bool moved = false;
    bool sending = false;  ///< some of the links that are left
    bool waits = false;    ///< the same
  };

  /// With `lock`, which it gives up while it looks.
  Looked look(std::unique_lock<std::mutex>& lock);
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable looked_;
  Links links_;  ///< guarded by mutex_, as are all below
  Links abandoned_;
  std::function<void()> prepare_;
  bool running_ = false;
  bool looking_ = false;  ///< somebody has taken the links out
  bool sending_ = false;  ///< a link wants the thread
  bool over_ = false;     ///< but for drain()
};

/// The process's, never destroyed.
MpiProgress& mpi_progress();

}  // namespace tutti::transport
