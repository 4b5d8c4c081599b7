// What ranks were last seen to do, for error messages, warnings and whoever asks why nothing moves.
#pragma once

#include "comm/communicator.h"
#include "comm/control.h"

#include <cstdint>
#include <string>

namespace tutti::comm {

/// The last call of all ranks that a rank has announced; it may be through with it.
struct LastCall {
  std::uint32_t number = 0;  ///< 0: none yet
  std::string text;          ///< empty where it could not be read, as calls go on

  std::string describe() const;
};
LastCall last_call(const Control& control, int rank);
/// Who is farther behind in collectives than `rank`, which may be stuck for its sake; -1: nobody.
int behind(const Control& control, int rank);

/// "; rank 1 sends to rank 2 ..." of a rank that may be stuck in a send, of those that this rank can see, first of all one to `preferred`; else "".
std::string open_send(const Control& control, int rank, int preferred);

/// A line per rank, then a line for each send and receive that waits for the other, then the failure if there is one.
std::string report(Communicator& communicator);

}  // namespace tutti::comm
