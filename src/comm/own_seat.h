// Where this thread sits, by a few reads of /sys and /proc: no library, no more than some tens of microseconds.
#pragma once

#include "planner/seats.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tutti::comm {

/// Those that this thread may use, in order; none: the system does not tell.
std::vector<int> usable_processors();

/// `root` comes before /sys and /proc (HWLOC_FSROOT): "" for this machine. The processors are those that this thread may
/// really use, whatever the root.
planner::Seat own_seat(const std::string& root);

/// Bytes of the last-level caches around these processors, each cache once; 0: the system does not tell of all.
std::size_t last_caches_bytes(const std::string& root, const std::vector<int>& processors);

/// A hash of what this process sees of the machine: processors, NUMA nodes, NVIDIA's devices. Ranks of one host that see different things
/// (containers) have different ones.
std::uint64_t outlook(const std::string& root);

/// A hash of the running kernel's boot id; 0: it does not tell.
std::uint64_t kernel_id(const std::string& root);

}  // namespace tutti::comm
