// Making a communicator from checked and unchecked user arguments; shared by nccl.h's functions and tutti.h's.
#pragma once

#include "base/result.h"
#include "comm/comm.h"

#include <nccl.h>

namespace tutti::api {

/// Checks what users pass to join a communicator, and joins. *comm is NULL where that fails.
Status create_rank(ncclComm_t* comm, int ranks, const ncclUniqueId* ids, int id_count, int rank,
                   const Result<comm::Options>& options);

}  // namespace tutti::api
