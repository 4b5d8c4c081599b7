// Cases of the client's in which something is in the way of a communicator that is being made.
#pragma once

#include "collective_checks.h"
#include "counted_mpi.h"
#include "mpi_rank.h"

#include <mpi.h>

#include <csignal>
#include <string>
#include <thread>
#include <vector>

namespace tutti::test {

/// While the program waits for messages with each tag that all MPIs have: nothing of the library's comes there.
inline void case_posted() {
  const ncclUniqueId id = share_id(true);
  std::vector<MPI_Request> posted(32768, MPI_REQUEST_NULL);
  for (std::size_t tag = 0; tag < posted.size(); ++tag)
    MPI_Irecv(nullptr, 0, MPI_BYTE, MPI_ANY_SOURCE, static_cast<int>(tag), MPI_COMM_WORLD, &posted[tag]);
  MPI_Barrier(MPI_COMM_WORLD);
  ncclComm_t comm = join(world, me, id, true);
  check_collectives(comm, world, me, 5000);
  int first = 0;
  int come = 0;
  MPI_Testany(static_cast<int>(posted.size()), posted.data(), &first, &come, MPI_STATUS_IGNORE);
  expect(come == 0, "a message of the library's, with tag " + std::to_string(first));
  for (MPI_Request& request : posted) MPI_Cancel(&request);
  MPI_Waitall(static_cast<int>(posted.size()), posted.data(), MPI_STATUSES_IGNORE);
  check(ncclCommDestroy(comm), "ncclCommDestroy");
}

/// MPI_Comm_create_group is an error at rank 0, soon before rank 1 dies in it: the death is the reason.
inline void case_killed_early() {
  const ncclUniqueId id = share_id(true);
  creation = [] {
    if (me == 1) {
      std::this_thread::sleep_for(milliseconds(300));
      raise(SIGKILL);
    }
    return me == 0 ? MPI_ERR_OTHER : MPI_SUCCESS;
  };
  join(world, me, id, false);
}

}  // namespace tutti::test
