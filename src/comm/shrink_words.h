// What a rank in ncclCommShrink says (shrink.cpp), to ranks that have a copy of the control segment of their own. It goes by the
// connection on which ranks watch each other: that still works when the communicator has failed and its data has stopped.
#pragma once

#include "comm/connection.h"
#include "comm/control.h"

#include <vector>

namespace tutti::comm {

Bytes encode_shrink_words(const Control& control, int rank);
/// The last ones of all ranks but this one, as far as they have come to its copy. By whoever stores them.
std::vector<Bytes> known_shrink_words(const Control& control, int own_rank);
/// Into the copy of `own_rank`, in the order in which shared memory would show them. True if they are news.
bool store_shrink_words(const Control& control, int own_rank, const Bytes& words);

}  // namespace tutti::comm
