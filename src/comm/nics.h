// Which of a host's interfaces a rank is reached by: the fastest, and of those the nearest to where the rank sits. Those that are equally good are
// told as such; take_turns() and Meetings::seek() spread ranks and sockets over them.
#pragma once

#include "comm/interfaces.h"

#include <cstddef>
#include <limits>
#include <string>
#include <vector>

namespace tutti::comm {

/// What the system says of an interface.
struct Nic {
  static constexpr int kUnknownDistance = std::numeric_limits<int>::max();

  bool hardware = false;            ///< a device, or something above one: a bond, a VLAN, a bridge with a device in it
  int megabits = 0;                 ///< 0: not known
  int distance = kUnknownDistance;  ///< of its NUMA node from this thread's, as the kernel counts: 10 for the same one

  friend bool operator==(const Nic&, const Nic&) = default;
};

/// Of each of these interfaces. `root` comes before /sys (HWLOC_FSROOT): "" for this machine.
std::vector<Nic> look_at_nics(const std::string& root, const std::vector<Interface>& interfaces);

/// The first `abreast` are those that take turns: one address of each interface that is as good as the best one, in the order of their addresses, so
/// that on each host the same network comes first. The others follow for where these do not answer, IPv4 first, then the better ones.
///
/// An interface is better if it runs, if there is hardware, if it has more than twice the speed (a speed that is not known is less than any), if it is
/// nearer: what comes first here counts more. Only those of the better address family take turns.
struct ToldInterfaces {
  std::vector<Interface> interfaces;
  std::size_t abreast = 0;
};
ToldInterfaces in_order(const std::vector<Interface>& chosen, const std::vector<Nic>& nics);

}  // namespace tutti::comm
