// How many ranks the hosts of a test have whose calls may go by teams.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <vector>

namespace tutti::test {

/// The hosts have so many ranks, until the end of the scope.
struct Placed {
  explicit Placed(const char* ranks_per_host) { setenv("TEST_RANKS_PER_HOST", ranks_per_host, 1); }
  ~Placed() { unsetenv("TEST_RANKS_PER_HOST"); }
};

struct Hosts {
  const char* ranks;  ///< of each, as TEST_RANKS_PER_HOST has them
  int all;
  std::size_t count;
  std::size_t longest;       ///< ranks that a host has at most
  std::vector<int> senders;  ///< ranks with a share of what crosses

  std::size_t shares() const { return senders.size() / count; }
  bool sends(int rank) const { return std::ranges::count(senders, rank) != 0; }
};

inline const Hosts kTwoEach{"2", 4, 2, 2, {0, 1, 2, 3}};
inline const Hosts kThreeEach{"3", 6, 2, 3, {0, 1, 2, 3, 4, 5}};
inline const Hosts kOneAndTwo{"1,2", 3, 2, 2, {0, 1}};
inline const Hosts kOneAndThree{"1,3", 4, 2, 3, {0, 1}};
inline const Hosts kTwoAndThree{"2,3", 5, 2, 3, {0, 1, 2, 3}};
inline const Hosts kThreeOneTwo{"3,1,2", 6, 3, 3, {0, 3, 4}};

}  // namespace tutti::test
