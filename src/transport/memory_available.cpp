#include "transport/memory_available.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

namespace tutti::transport {
namespace {

constexpr std::uint64_t kUnknown = std::numeric_limits<std::uint64_t>::max();

/// The number after `key` in a file of "key number" lines; the file's first word for an empty key.
std::optional<std::uint64_t> read_number(const char* path, const std::string& key) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  if (key.empty()) {
    if (file >> number) return number;  // "max" is no number: no limit
    return std::nullopt;
  }
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, key.size(), key) != 0) continue;
    const std::size_t digit = line.find_first_of("0123456789", key.size());
    if (digit == std::string::npos) return std::nullopt;
    return std::stoull(line.substr(digit));
  }
  return std::nullopt;
}

/// What one control group leaves; what can be dropped of the page cache and of the kernel's own memory counts as free. `prefix`: of the names of what
/// groups below have as well.
std::uint64_t left_in(const std::string& group, const char* limit_name, const char* used_name, const char* prefix) {
  const auto limit = read_number((group + limit_name).c_str(), "");
  const auto used = read_number((group + used_name).c_str(), "");
  if (!limit || !used) return kUnknown;
  std::uint64_t needed = *used;
  for (const char* const key : {"inactive_file ", "active_file ", "slab_reclaimable "})
    needed -= std::min(needed, read_number((group + "/memory.stat").c_str(), std::string(prefix) + key).value_or(0));
  return *limit - std::min(*limit, needed);
}

/// This process's control group of memory and those around it, of version 2 ("0::/path") or 1 ("9:memory:/path"). In a
/// container without a namespace of control groups the paths are the host's, and the container's own is at the root.
std::uint64_t group_available_bytes() {
  std::uint64_t least =
      std::min(left_in("/sys/fs/cgroup", "/memory.max", "/memory.current", ""),
               left_in("/sys/fs/cgroup/memory", "/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_"));
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool v2 = controllers == ",,";
    if (!v2 && controllers.find(",memory,") == std::string::npos) continue;
    std::string path = line.substr(second + 1);
    for (int levels = 0; levels < 16 && path.size() > 1; ++levels) {
      least = std::min(least, v2 ? left_in("/sys/fs/cgroup" + path, "/memory.max", "/memory.current", "")
                                 : left_in("/sys/fs/cgroup/memory" + path, "/memory.limit_in_bytes",
                                           "/memory.usage_in_bytes", "total_"));
      path.erase(path.find_last_of('/'));
    }
  }
  return least;
}

}  // namespace

std::uint64_t memory_available_bytes() {
  std::uint64_t machine = kUnknown;
  if (const auto kilobytes = read_number("/proc/meminfo", "MemAvailable:")) {
    // Shared memory can go to swap.
    machine = (*kilobytes + read_number("/proc/meminfo", "SwapFree:").value_or(0)) * 1024;
  }
  return std::min(machine, group_available_bytes());
}

}  // namespace tutti::transport
