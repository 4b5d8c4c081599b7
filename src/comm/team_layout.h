// Who works with whom where GPU data goes by kernels within hosts and through host memory between them. Arithmetic only: the same on every
// rank.
//
//   host 0   host 1
//   0  1     2  3  4   a host's ranks: their team inside
//   |        |         ranks at the same place on their hosts, 0 and 2 here: their team across
//
// There are as many teams across as the host with the fewest ranks has. A longer host's other ranks, one of 2, 3 and 4 here, are in none.
#pragma once

#include "comm/carriers.h"
#include "schedule/schedule.h"

#include <cstddef>
#include <optional>
#include <vector>

namespace tutti::comm {

struct TeamLayout {
  HostRanks
      hosts;  ///< first those in teams across, which are spread over a longer host's ranks, then the others; both in order
  std::size_t longest = 0;  ///< ranks that a host has at most
  std::size_t shares = 0;   ///< teams across: ranks that each host has at least
  std::vector<int> inside;  ///< this rank's host's
  std::vector<int> across;  ///< by host; empty: this rank is in no team across
  int place = 0;            ///< in `inside`
  int host = 0;             ///< in `across`

  /// `of_rank`: hosts by rank. nullopt: there are not several hosts, or none has several ranks.
  static std::optional<TeamLayout> of(const schedule::Groups& of_rank, int rank);

  bool is_even() const { return longest == shares; }
  std::size_t ranks() const;
  int place_of(int rank) const;
  int host_of(int rank) const;
};

}  // namespace tutti::comm
