// A machine that tells what it does: all ranks of an all-reduce in one thread, in turn, over the library's own lane
// interpreter and channel protocol. Element 5 of rank r's 64 floats is 100 r + 5; all else is zero, so that only one
// number per rank is to be seen.
#pragma once

#include "schedule/schedule.h"

namespace tutti::docs {

enum class Narrate { kNumbers, kChannel };

/// Prints one line per addition (kNumbers), or per event between ranks 1 and 2 (kChannel). 0, or 1 if a rank's element 5
/// is not the sum in the end or the schedule got stuck.
int run(const schedule::Schedule& schedule, Narrate what);

}  // namespace tutti::docs
