#include "comm/own_seat.h"

#include "comm/system_file.h"

#include <fmt/format.h>

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

namespace tutti::comm {
namespace {

using planner::from_list;
using planner::kUnknownSeat;

bool lie_within(const std::vector<int>& processors, const std::vector<int>& part) {
  return !processors.empty() && std::ranges::includes(part, processors);
}

/// The first processor of the list in the file, if all of ours are in that list.
int part_around(const std::vector<int>& processors, const std::string& path) {
  const std::vector<int> part = from_list(content_of(path));
  return lie_within(processors, part) ? part.front() : kUnknownSeat;
}

int numa_around(const std::vector<int>& processors, const std::string& nodes) {
  const std::vector<int> online = from_list(content_of(nodes + "/online"));
  for (const int node : online) {
    const std::vector<int> part = from_list(content_of(fmt::format("{}/node{}/cpulist", nodes, node)));
    if (lie_within(processors, part)) return node;
  }
  // Kernels without NUMA have no such files: there is one node.
  return online.empty() ? 0 : kUnknownSeat;
}

/// The folder of the cache that the most processors share with this one; empty: the system does not tell.
std::string last_cache_of(const std::string& processor) {
  for (int index = 4; index >= 2; --index) {
    std::string path = fmt::format("{}/cache/index{}", processor, index);
    if (access((path + "/shared_cpu_list").c_str(), R_OK) == 0) return path;
  }
  return {};
}

int last_cache_around(const std::vector<int>& processors, const std::string& processor) {
  const std::string cache = last_cache_of(processor);
  return cache.empty() ? kUnknownSeat : part_around(processors, cache + "/shared_cpu_list");
}

/// "32768K"; 0: it is no size.
std::size_t size_of_text(std::string_view text) {
  std::size_t number = 0;
  const char* const stop = text.data() + text.size();
  const auto [after, failure] = std::from_chars(text.data(), stop, number);
  if (failure != std::errc() || number > std::size_t{1} << 30) return 0;
  const char unit = after == stop ? '\n' : *after;
  return number << (unit == 'K' ? 10 : unit == 'M' ? 20 : 0);
}

/// "50000 100000" of cpu.max: half a processor.
int percent_of(std::string_view text) {
  double quota = 0;
  double period = 0;
  const char* const stop = text.data() + text.size();
  const auto [after, failure] = std::from_chars(text.data(), stop, quota);
  if (failure != std::errc() || after == stop) return 0;
  if (std::from_chars(after + 1, stop, period).ec != std::errc() || !(period > 0)) return 0;
  return static_cast<int>(std::clamp(100 * quota / period, 1.0, 1e8));
}

/// The least of this process's control group and those around it, version 2.
int quota_percent(const std::string& root) {
  const std::string groups = content_of(root + "/proc/self/cgroup");
  const std::size_t at = groups.find("0::/");
  if (at == std::string::npos) return 0;
  std::string path = groups.substr(at + 3, groups.find('\n', at) - at - 3);
  int least = 0;
  for (int levels = 0; levels < 16; ++levels) {
    const int percent = percent_of(content_of(fmt::format("{}/sys/fs/cgroup{}/cpu.max", root, path)));
    if (percent > 0 && (least == 0 || percent < least)) least = percent;
    const std::size_t slash = path.find_last_of('/');
    if (slash == std::string::npos) break;
    path.erase(slash);
  }
  return least;
}

/// FNV-1a.
std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 14695981039346656037u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

}  // namespace

std::vector<int> usable_processors() {
  // Kernels with more processors than cpu_set_t has want a larger set.
  for (int room = CPU_SETSIZE; room <= planner::kProcessorsMax; room *= 4) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(room), [](cpu_set_t* s) { CPU_FREE(s); });
    const std::size_t bytes = CPU_ALLOC_SIZE(room);
    if (!set || sched_getaffinity(0, bytes, set.get()) != 0) {
      if (set && errno == EINVAL) continue;
      return {};
    }
    std::vector<int> processors;
    for (int processor = 0; processor < room; ++processor)
      if (CPU_ISSET_S(processor, bytes, set.get())) processors.push_back(processor);
    return processors;
  }
  return {};
}

planner::Seat own_seat(const std::string& root) {
  planner::Seat seat;
  seat.processors = usable_processors();
  if (!seat.processors.empty()) {
    const std::string system = root + "/sys/devices/system";
    const std::string first = fmt::format("{}/cpu/cpu{}", system, seat.processors.front());
    seat.numa = numa_around(seat.processors, system + "/node");
    // The older name of the two, which newer kernels keep.
    seat.package = part_around(seat.processors, first + "/topology/core_siblings_list");
    seat.cache = last_cache_around(seat.processors, first);
  }
  seat.quota_percent = quota_percent(root);
  return seat;
}

std::size_t last_caches_bytes(const std::string& root, const std::vector<int>& processors) {
  std::size_t bytes = 0;
  std::set<int> counted;
  for (const int processor : processors) {
    if (counted.contains(processor)) continue;
    const std::string cache = last_cache_of(fmt::format("{}/sys/devices/system/cpu/cpu{}", root, processor));
    const std::size_t size = cache.empty() ? 0 : size_of_text(content_of(cache + "/size"));
    if (size == 0) return 0;
    bytes += size;
    const std::vector<int> around = from_list(content_of(cache + "/shared_cpu_list"));
    counted.insert(around.begin(), around.end());
  }
  return bytes;
}

std::uint64_t outlook(const std::string& root) {
  const std::string system = root + "/sys/devices/system";
  std::string seen = content_of(system + "/cpu/present") + content_of(system + "/node/online");
  std::set<std::string> devices;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir((root + "/dev").c_str()), closedir);
  while (const dirent* entry = folder ? readdir(folder.get()) : nullptr) {
    const std::string_view name = entry->d_name;
    if (name.starts_with("nvidia") && name.size() > 6 && name[6] >= '0' && name[6] <= '9') devices.emplace(name);
  }
  for (const std::string& device : devices) seen += device + " ";
  return hash_of(seen);
}

std::uint64_t kernel_id(const std::string& root) {
  const std::string boot = content_of(root + "/proc/sys/kernel/random/boot_id");
  return boot.empty() ? 0 : hash_of(boot);
}

}  // namespace tutti::comm
