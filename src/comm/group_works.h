// Calls of a group that is over, of several communicators or on streams.
#pragma once

#include "comm/communicator.h"

#include <memory>
#include <span>

namespace tutti::comm {

struct QueuedCall {
  Communicator* communicator;
  CallArgs args;
};

/// `communicators`: of all the calls, which have been checked. `on_streams`: some of them name streams, or may. Out of memory:
/// communicators whose calls broke off have failed, or nothing was done at all.
Status run_works(std::span<const QueuedCall> calls, std::span<const std::shared_ptr<Communicator>> communicators,
                 bool on_streams);

}  // namespace tutti::comm
