// How a rank gets at the process that made its unique id.
#pragma once

#include "base/result.h"
#include "comm/patience.h"
#include "comm/private_descriptor.h"
#include "comm/unique_id.h"

namespace tutti::comm {

/// By the Unix socket where that is this host's, else by TCP. Tries again while the root is too busy to take connections. `is_own`: a named one,
/// which listens in this process.
Result<PrivateDescriptor> connect_with_root(const UniqueId& id, const Patience& patience, bool is_own = false);

/// Why it was not, by what has ended the wait.
Error root_not_reached(const UniqueId& id, Patience::Outcome outcome, double timeout_s);
Error initialisation_aborted();

}  // namespace tutti::comm
