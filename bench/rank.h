// One rank's life: join the communicator, go through collectives, types, operations, roots and sizes, report, leave.
#pragma once

#include "options.h"

#include <string>

namespace tutti::bench {

/// How the ranks were started, in words: "processes", "threads", "mpirun".
struct Place {
  int rank = 0;
  int ranks = 1;
  ncclUniqueId id{};
  std::string how;
  int local_rank = 0;           ///< among the ranks of this host: chooses the GPU
  KeptBuffers* kept = nullptr;  ///< of ranks that are threads
};

/// The exit code. Rank 0 prints the table and writes the files; every rank says on standard error what went wrong with
/// it.
int run_rank(const Options& options, const Place& place);

}  // namespace tutti::bench
