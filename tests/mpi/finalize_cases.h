// Cases of the client's in which MPI ends before a communicator has, or with one that was aborted.
#pragma once

#include "collective_checks.h"
#include "counted_mpi.h"
#include "mpi_rank.h"

#include <mpi.h>

#include <thread>

namespace tutti::test {

inline void case_open_at_finalize(ncclComm_t comm) {
  check_collectives(comm, world, me, 5000);
  MPI_Finalize();
  const long before = mpi_calls;
  float x = 1;
  const ncclResult_t code = ncclAllReduce(&x, &x, 1, ncclFloat, ncclSum, comm, nullptr);
  say("failed %d %s", static_cast<int>(code), ncclGetLastError(comm));
  check(ncclCommAbort(comm), "ncclCommAbort");
  say("finalized after %ld calls", static_cast<long>(mpi_calls) - before);
}

/// Rank 0 aborts between calls, which makes the others' next one fail: for these MPI is not called any more, and rank 0 need not wait for a word
/// of theirs.
inline void case_aborted_at_finalize(ncclComm_t comm) {
  check_collectives(comm, world, me, 5000);
  MPI_Barrier(MPI_COMM_WORLD);
  if (me != 0) {
    std::this_thread::sleep_for(milliseconds(300));
    float x = 1;
    expect(ncclAllReduce(&x, &x, 1, ncclFloat, ncclSum, comm, nullptr) == ncclRemoteError, "rank 0 is still there");
  }
  check(ncclCommAbort(comm), "ncclCommAbort");
  MPI_Barrier(MPI_COMM_WORLD);
  const auto start = Clock::now();
  MPI_Finalize();
  say("finalized %s", seconds_since(start) < 4 ? "soon" : "late");
}

}  // namespace tutti::test
