// ncclConfig_t and tuttiConfig_t: structs that say their own size and version, read into comm::Options.
#pragma once

#include "base/result.h"
#include "comm/comm.h"

#include <tutti/tutti.h>

namespace tutti::api {

/// NULL gives the defaults. At most min(size, sizeof) bytes are read, and fields newer than `version` keep their
/// default. The environment (NCCL_COMM_BLOCKING, TUTTI_REPRODUCIBLE) wins.
/// InvalidArgument: not made by the initialiser, or a field out of range.
Result<comm::Options> read_config(const ncclConfig_t* config);
Result<comm::Options> read_config(const tuttiConfig_t* config);

/// Without any struct.
comm::Options default_options();

}  // namespace tutti::api
