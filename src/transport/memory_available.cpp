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

/// Of the control group that a container sees as its root; page cache that can be dropped counts as free.
std::uint64_t group_available_bytes() {
  const auto limit = read_number("/sys/fs/cgroup/memory.max", "");
  const auto used = read_number("/sys/fs/cgroup/memory.current", "");
  if (!limit || !used) return kUnknown;
  const std::uint64_t cache = read_number("/sys/fs/cgroup/memory.stat", "inactive_file ").value_or(0);
  const std::uint64_t needed = *used - std::min(*used, cache);
  return *limit - std::min(*limit, needed);
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
