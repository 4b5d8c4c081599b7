// The handles of communicators: a slot and a generation in the shape of a pointer, found without a lock.
#pragma once

#include "comm/comm.h"

#include <memory>
#include <mutex>

namespace tutti::comm {

/// Keeps the communicator until remove(). nullptr when all slots are in use.
Handle add(std::shared_ptr<Communicator> communicator);
/// Takes it out; the handle is stale afterwards. nullptr for a stale handle.
std::shared_ptr<Communicator> remove(Handle handle);

/// Under the lock, as often as needed: for whoever must keep communicators alive. nullptr for a stale handle.
class Registry {
 public:
  Registry();
  std::shared_ptr<Communicator> share(Handle handle) const;

 private:
  const std::unique_lock<std::mutex> lock_;
};

}  // namespace tutti::comm
