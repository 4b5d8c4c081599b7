// Memory that other processes can map: allocations backed by a memfd, and the table that finds them by address.
//
// Nothing has a name in the file system, so that nothing is left behind however the processes end. Descriptors are
// closed on exec. After fork, the memory is shared with the child (it is one memory, not a copy), the child may use it
// and give it to its own communicators, and a free in one process takes nothing from the other.
#pragma once

#include "base/result.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace tutti::transport {

/// Where an address lies in a shared allocation of this process.
struct SharedReference {
  std::uint32_t segment = 0;  ///< number of the allocation in its process, never 0, never reused
  std::int32_t fd = -1;       ///< of the memfd in the owning process
  std::uint64_t inode = 0;    ///< of the memfd, to recognise it
  std::uint64_t offset = 0;   ///< of the address within it
  std::uint64_t bytes = 0;    ///< of the whole allocation
};

/// Zero-filled, page-aligned, mappable by peers. bytes 0 gives a valid pointer too. All pages are there when it returns.
/// kInvalidArgument: more than an address space holds. kSystem: not enough memory, with needed and free bytes.
Result<void*> shared_allocate(std::size_t bytes);
/// Maps an existing memfd (from a peer, or from shared_fd); it counts as a shared allocation of this process. The caller keeps its fd.
Result<void*> shared_import(int fd);
/// A duplicate of the allocation's descriptor, which the caller owns. Any address within the allocation will do.
Result<int> shared_fd(const void* address);
/// Error unless `address` is the start of an allocation or import of this process.
Status shared_free(void* address);
/// Whether [address, address + bytes) lies in a shared allocation. Lock-free unless an allocation is being made or freed
/// at the same moment.
std::optional<SharedReference> shared_find(const void* address, std::size_t bytes);

/// How many allocations this process has freed. A peer that sees the number change drops what it mapped of them.
std::uint64_t shared_freed_count();
/// Changes whenever an allocation is made or freed; odd while one is. What shared_find() said between two equal even numbers holds.
std::uint64_t shared_version();
/// Inodes of the allocations freed since the count was `since`, oldest first; nullopt if too many to be remembered:
/// whoever asks drops everything.
std::optional<std::vector<std::uint64_t>> shared_freed_since(std::uint64_t since);

}  // namespace tutti::transport
