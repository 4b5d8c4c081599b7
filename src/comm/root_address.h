// How a rank gets at the process that made its unique id.
#pragma once

#include "base/result.h"
#include "comm/patience.h"
#include "comm/private_descriptor.h"
#include "comm/unique_id.h"

#include <cstddef>

namespace tutti::comm {

/// By the Unix socket where that is this host's, else by TCP. Tries again while the root is too busy to take connections. `is_own`: a named one,
/// which listens in this process. `first`: the number of the address to begin with; behind the last the first one comes again.
Result<PrivateDescriptor> connect_with_root(const UniqueId& id, const Patience& patience, bool is_own = false,
                                            std::size_t first = 0);

/// Why it was not, by what has ended the wait.
Error root_not_reached(const UniqueId& id, Patience::Outcome outcome, const Patience& patience);
Error initialisation_aborted();
/// Of a wait that was cancelled: what its caller says, or that somebody aborted it.
Error why_cancelled(const Patience& patience);

}  // namespace tutti::comm
