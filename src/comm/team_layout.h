// Who works with whom where GPU data goes by kernels within hosts and through host memory between them, and how a call is cut for that.
// Arithmetic only: the same on every rank.
//
//   host 0   host 1
//   0  1     2  3      a host's ranks: their team inside
//   |        |         ranks at the same place on their hosts, 0 and 2 here: their team across
#pragma once

#include "base/dtype.h"
#include "schedule/schedule.h"

#include <cstddef>
#include <optional>
#include <vector>

namespace tutti::comm {

struct TeamLayout {
  std::vector<int> inside;  ///< this rank's host's, in order
  std::vector<int> across;  ///< by host
  int place = 0;            ///< in `inside`
  int host = 0;             ///< in `across`

  /// `hosts`: by rank. nullopt: there are not several hosts of several ranks each, the same number on all.
  static std::optional<TeamLayout> of(const schedule::Groups& hosts, int rank);
};

/// Elements that go together through the three steps of a sum: within hosts, across, and within hosts again.
struct TeamPart {
  std::size_t first = 0;
  std::size_t count = 0;
  std::size_t share = 0;     ///< of each of a host's ranks
  bool is_ragged = false;    ///< the shares together are more than the part

  friend bool operator==(const TeamPart&, const TeamPart&) = default;
};

/// `part_bytes`: most of a part, if a share has at least an element.
std::vector<TeamPart> cut_for_teams(std::size_t count, DataType type, int ranks, std::size_t part_bytes);

}  // namespace tutti::comm
