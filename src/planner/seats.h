// Where the ranks of a host sit: the processors each of them may use, and what these have in common. Groups for schedules
// and advice on pinning follow from it, by pure functions: every rank that knows the seats comes to the same answers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::planner {

inline constexpr int kUnknownSeat = -1;

/// Of one rank. What its processors do not lie within, or the system does not tell, is kUnknownSeat.
struct Seat {
  int numa = kUnknownSeat;     ///< the system's number of the only NUMA node
  int package = kUnknownSeat;  ///< the first processor of the only socket
  int cache = kUnknownSeat;    ///< the first processor of the only last-level cache
  int quota_percent = 0;       ///< of a processor, that a container's cgroup allows its processes together; 0: no limit
  std::vector<int> processors;  ///< ascending; empty: not known

  friend bool operator==(const Seat&, const Seat&) = default;
};

/// "0-3,8"; and back: nothing of a text that is no such list, or names a processor above kProcessorsMax.
inline constexpr int kProcessorsMax = 1 << 16;
std::string to_list(const std::vector<int>& processors);
std::vector<int> from_list(std::string_view list);

/// What a communicator's ranks are grouped by: the outermost level whose parts hold ranks of two parts or more, of one part
/// at least two.
enum class SeatLevel : std::uint8_t { kNone, kPackage, kNuma, kCache };
std::string_view name_of(SeatLevel level);  ///< "socket"

struct SeatGroups {
  SeatLevel level = SeatLevel::kNone;
  std::vector<int> of_rank;  ///< by rank: its group, numbered by their lowest ranks; empty: no level
  int count = 0;

  friend bool operator==(const SeatGroups&, const SeatGroups&) = default;
};

/// By rank of one host. A level of which some rank's part is not known does not count.
SeatGroups groups_of(const std::vector<Seat>& seats);

/// Ranks per processor, where they are the most: on all processors that ranks may use, or on those of one rank that others may use no
/// others than. 0: some rank's processors are not known.
double crowding_of(const std::vector<Seat>& seats);
/// Who shares a processor with the fewest others, the first of several, if those that may use the same processors go round them in order, as
/// launchers place ranks and kernels spread them. 0: some rank's processors are not known.
int least_crowded(const std::vector<Seat>& seats);

/// What stands in the way of speed of one host's ranks, a sentence each, with what to do; empty where nothing does. `ranks`: whose seats these
/// are, ascending; none: 0 and so on.
std::vector<std::string> pinning_advice(const std::vector<Seat>& seats, std::vector<int> ranks = {});

/// "2", "0-3 8": ranks for people.
std::string ranks_text(const std::vector<int>& ranks);

}  // namespace tutti::planner
