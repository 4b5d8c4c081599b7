// A pattern of one lane, run once in each of several lanes with the ranks in other places: rings that go round a machine in
// several ways at once.
#pragma once

#include "algorithm/algorithm.h"

#include <vector>

namespace tutti::algorithm {

/// In lane l the rank orders[l][p] does what rank p does in the row's own schedule. The row serves the request, which has no
/// root, and has one lane; each order has every rank once.
schedule::Schedule in_orders(const Algorithm& row, const schedule::Request& request,
                             const std::vector<std::vector<int>>& orders);

}  // namespace tutti::algorithm
