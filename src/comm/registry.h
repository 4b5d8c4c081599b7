// The handles of communicators: a slot and a generation in the shape of a pointer, found without a lock. A forked child finds none of those
// that it has inherited, as it is no rank of theirs (comm.h: is_inherited).
#pragma once

#include "comm/comm.h"

#include <memory>
#include <mutex>

namespace tutti::comm {

/// Keeps the communicator until remove(). nullptr when all slots are in use.
Handle add(std::shared_ptr<Communicator> communicator);
/// Takes it out; the handle is stale afterwards. nullptr for a stale handle.
std::shared_ptr<Communicator> remove(Handle handle);
/// The end of a handle that a forked child has inherited; what is behind it stays in memory. False: it is none.
bool forget_inherited(Handle handle);

/// An abort may come from another thread just as a call enters: that call has found the communicator, and has yet to see
/// that it is over. So what was aborted stays in memory for a while; the next to make or end one cleans up. nullptr: only that.
void bury(std::shared_ptr<Communicator> communicator);

/// Programs end without destroying their communicators. Others would take their ranks for dead.
void leave_all();

/// Under the lock, as often as needed: for whoever must keep communicators alive. nullptr for a stale handle.
class Registry {
 public:
  Registry();
  std::shared_ptr<Communicator> share(Handle handle) const;

 private:
  const std::unique_lock<std::mutex> lock_;
};

}  // namespace tutti::comm
