// Where a test's ranks run: spread over hosts that this machine imitates. TEST_RANKS_PER_HOST=2 puts ranks 0 and 1 on one host, the
// next two on another and so on; TEST_NAMESPACES=a,b,c names network namespaces (ip netns) for the hosts, else all share the
// machine's network.
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace hosts {

/// 0: all on this host.
inline int ranks_per_host() {
  const char* text = std::getenv("TEST_RANKS_PER_HOST");
  return text == nullptr ? 0 : std::atoi(text);
}

inline std::vector<std::string> namespaces() {
  std::vector<std::string> names;
  const char* text = std::getenv("TEST_NAMESPACES");
  for (std::string rest = text == nullptr ? "" : text; !rest.empty();) {
    const std::size_t end = std::min(rest.find(','), rest.size());
    names.push_back(rest.substr(0, end));
    rest.erase(0, std::min(end + 1, rest.size()));
  }
  return names;
}

/// In the process that becomes `rank`, before it uses the library and before it has threads. Ends the process if it cannot.
inline void enter_host(int rank, int per_host = ranks_per_host()) {
  if (per_host <= 0) return;
  const int host = rank / per_host;
  setenv("NCCL_HOSTID", ("host-" + std::to_string(host)).c_str(), 1);
  const std::vector<std::string> names = namespaces();
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
