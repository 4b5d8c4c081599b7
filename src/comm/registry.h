// The handles of communicators: a slot and a generation in the shape of a pointer, found without a lock.
#pragma once

#include "comm/comm.h"

#include <memory>

namespace tutti::comm {

/// Keeps the communicator until remove(). nullptr when all slots are in use.
Handle add(std::shared_ptr<Communicator> communicator);
/// Takes it out; the handle is stale afterwards. nullptr for a stale handle.
std::shared_ptr<Communicator> remove(Handle handle);
/// For whoever must keep it alive.
std::shared_ptr<Communicator> share(Handle handle);

}  // namespace tutti::comm
