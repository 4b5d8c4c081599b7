// Who works with whom where GPU data goes by kernels within hosts and through host memory between them. Arithmetic only: the same on every
// rank.
//
//   host 0   host 1
//   0  1     2  3      a host's ranks: their team inside
//   |        |         ranks at the same place on their hosts, 0 and 2 here: their team across
#pragma once

#include "comm/carriers.h"
#include "schedule/schedule.h"

#include <optional>
#include <vector>

namespace tutti::comm {

struct TeamLayout {
  HostRanks hosts;          ///< as many ranks on each
  std::vector<int> inside;  ///< this rank's host's, in order
  std::vector<int> across;  ///< by host
  int place = 0;            ///< in `inside`
  int host = 0;             ///< in `across`

  /// `of_rank`: hosts by rank. nullopt: there are not several hosts of several ranks each, the same number on all.
  static std::optional<TeamLayout> of(const schedule::Groups& of_rank, int rank);

  int place_of(int rank) const;
  int host_of(int rank) const;
};

}  // namespace tutti::comm
