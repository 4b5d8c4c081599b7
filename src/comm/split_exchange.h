// What a communicator's ranks tell each other while another one is made of them: an all-gather that no user call may meet.
#pragma once

#include "comm/communicator.h"

#include <cstddef>

namespace tutti::comm {

/// `own`, `bytes` long, of every rank of `parent`, in order. It cannot be taken back: if `child`, for which it is made, is aborted before all have
/// come, the parent fails.
Status exchange(Communicator& parent, const Communicator& child, const void* own, std::size_t bytes, void* all);

}  // namespace tutti::comm
