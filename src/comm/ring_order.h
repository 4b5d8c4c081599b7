// Rings that visit GPUs in the order of their links. The row "ring" of the table goes from rank to rank; here ranks have other places in it.
#pragma once

#include "base/dtype.h"
#include "comm/device_fifos.h"
#include "schedule/schedule.h"

#include <span>
#include <vector>

namespace tutti::comm {

/// By place, ranks: each is joined to the next, and the last to the first. `suggested`, where it is such an order; else that of the numbers;
/// else any. Empty: there is none.
std::vector<int> ring_order(const DeviceLinks& links, std::span<const int> suggested);

/// What a ring among places is asked for to do the request: where the root's place is.
schedule::Request in_places(schedule::Request request, std::span<const int> order);
/// What was made for places, as what their ranks do: one rank's program, or all.
schedule::RankProgram in_order(schedule::RankProgram program, Collective collective, std::span<const int> order);
schedule::Schedule in_order(schedule::Schedule schedule, std::span<const int> order);

}  // namespace tutti::comm
