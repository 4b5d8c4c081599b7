// A rank's side of a crew: it takes orders until it is sent away. In a thread or a forked process, or in a process of a launcher's.
#pragma once

#include "session.h"

#include <nccl.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace tutti::conformance {

enum class Order : std::uint8_t { kMakeId, kJoin, kRun, kLeave };
/// Through a pipe to each rank, and back: smaller than what a pipe takes at once.
struct Command {
  Order order = Order::kLeave;
  Case c;
  int number = 0;
  ncclUniqueId id;
};
struct Reply {
  ncclUniqueId id;
  char text[1500];
};

template <class T>
bool receive(int fd, T& message) {
  auto* bytes = reinterpret_cast<char*>(&message);
  for (std::size_t done = 0; done < sizeof(T);) {
    const ssize_t got = read(fd, bytes + done, sizeof(T) - done);
    if (got <= 0) return false;
    done += static_cast<std::size_t>(got);
  }
  return true;
}
template <class T>
bool send(int fd, const T& message) {
  return write(fd, &message, sizeof message) == static_cast<ssize_t>(sizeof message);
}

/// Keeps the first problem and goes on, so that the peers do not wait for this rank.
inline void keep(std::string& problem, const std::string& wrong) {
  if (problem.empty()) problem = wrong;
}

/// A rank's life. `cases`: where this process has its own, since a case has pointers in it; else null.
void live(const SessionOptions& options, int rank, int ranks, int orders, int replies,
          const std::vector<Case>* cases = nullptr);

}  // namespace tutti::conformance
