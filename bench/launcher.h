// Starts the ranks, or finds out which rank of a launcher's job this process is.
#pragma once

#include "options.h"

namespace tutti::bench {

/// The exit code of the whole run (of this rank, under a launcher).
int launch(const Options& options);

}  // namespace tutti::bench
