// Where a test's ranks run: spread over hosts that this machine imitates. TEST_RANKS_PER_HOST=2 puts ranks 0 and 1 on one host, the
// next two on another and so on; 7,8 puts 7 on the first and 8 on every other. TEST_NAMESPACES=a,b,c names network namespaces
// (ip netns) for the hosts, else all share the machine's network.
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace hosts {

inline std::vector<std::string> listed_in(const char* variable) {
  std::vector<std::string> words;
  const char* text = std::getenv(variable);
  for (std::string rest = text == nullptr ? "" : text; !rest.empty();) {
    const std::size_t end = std::min(rest.find(','), rest.size());
    words.push_back(rest.substr(0, end));
    rest.erase(0, std::min(end + 1, rest.size()));
  }
  return words;
}

/// How many ranks the first host has, the second and so on; the last number goes on. Empty: all ranks are on this host.
using Places = std::vector<int>;

/// As the environment says; else `by_default` (0: all on this host).
inline Places ranks_per_host(int by_default = 0) {
  Places places;
  for (const std::string& word : listed_in("TEST_RANKS_PER_HOST"))
    places.push_back(std::max(1, std::atoi(word.c_str())));
  if (places.empty() && by_default > 0) places.push_back(by_default);
  return places;
}

inline int host_of(int rank, const Places& places) {
  int host = 0;
  for (int first = 0;; ++host) {
    first += places[std::min(static_cast<std::size_t>(host), places.size() - 1)];
    if (rank < first) return host;
  }
}

/// In the process that becomes `rank`, before it uses the library and before it has threads. Ends the process if it cannot.
inline void enter_host(int rank, const Places& places = ranks_per_host()) {
  if (places.empty()) return;
  const int host = host_of(rank, places);
  setenv("NCCL_HOSTID", ("host-" + std::to_string(host)).c_str(), 1);
  const std::vector<std::string> names = listed_in("TEST_NAMESPACES");
  if (names.empty()) return;
  const std::string path = "/run/netns/" + names[static_cast<std::size_t>(host) % names.size()];
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0 || setns(file, CLONE_NEWNET) != 0) {
    std::perror(path.c_str());
    _exit(99);
  }
  close(file);
}

}  // namespace hosts
