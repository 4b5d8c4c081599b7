// --tune: times every candidate of the planner at every size, and writes the fastest ones as a tuning file.
#pragma once

#include "rank.h"

namespace tutti::bench {

/// One rank's life, as run_rank: the exit code. Rank 0 decides what is measured next, prints the table and writes the file.
int tune_rank(const Options& options, const Place& place);

}  // namespace tutti::bench
