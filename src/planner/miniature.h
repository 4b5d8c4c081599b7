// Among many ranks no rank builds the whole schedule to price it: what it costs is priced among fewer ranks, three times, and
// continued. What must be exact is asked of a few ranks.
#pragma once

#include "schedule/schedule.h"

#include <array>
#include <vector>

namespace tutti::planner {

/// Up to so many ranks whole schedules are priced.
inline constexpr int kWholeRanksMax = 64;

/// The same call with fewer hosts of the same kind; where hosts are few, with fewer ranks on each; without groups, with fewer ranks.
struct Miniature {
  schedule::Request request;  ///< without its groups
  schedule::Groups groups;
  double size = 1;  ///< hosts, ranks of a host, or ranks: what it has fewer of
};

struct Miniatures {
  std::array<Miniature, 3> each;  ///< each of twice the size of the one before
  double size = 1;                ///< of the call itself
};

/// Of a request with more than kWholeRanksMax ranks.
Miniatures miniatures_of(const schedule::Request& request);

/// What grows as a + b log(size) + c size, by its values in the three.
double continued(const Miniatures& miniatures, const std::array<double, 3>& values);

/// Ranks that, in every row of the table, have one that sends the widest message through slots among them.
std::vector<int> ranks_with_widest(const schedule::Request& request);

}  // namespace tutti::planner
