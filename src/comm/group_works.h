// Calls of a group that is over, of several communicators or on streams: those of a communicator are a batch, which takes its turn among that
// communicator's calls by a ticket, and batches that start on one stream advance together.
// A ticket that nobody gives back keeps all later calls waiting: from where tickets are taken nothing may need memory, or its failure gives them
// back. Nothing may wait while calls are put on streams, as other threads' calls wait for that.
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
