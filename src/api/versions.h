// What the log says of the library's version.
#pragma once

namespace tutti::api {

/// By rank 0 of a communicator, as NCCL does: a line from NCCL_DEBUG=VERSION on, once for the process.
void log_version();

}  // namespace tutti::api
