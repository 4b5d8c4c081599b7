// Memory that other processes can map: allocations backed by a memfd, and the table that finds them by address.
//
// Nothing has a name in the file system, so that nothing is left behind however the processes end. Descriptors are
// closed on exec. After fork, the memory is shared with the child (it is one memory, not a copy), the child may use it
// and give it to its own communicators, and a free in one process takes nothing from the other.
#pragma once

#include "base/result.h"
#include "transport/freed_list.h"

#include <cstddef>
#include <cstdint>
#include <optional>

struct stat;

namespace tutti::transport {

/// Where an address lies in a shared allocation of this process.
struct SharedReference {
  std::uint32_t segment = 0;  ///< number of the allocation in its process, never 0, never reused
  std::int32_t fd = -1;       ///< of the memfd in the owning process
  std::uint64_t file = 0;     ///< its file_identity(), to recognise it
  std::uint64_t offset = 0;   ///< of the address within it
  std::uint64_t bytes = 0;    ///< of the whole allocation
};

/// Which file that is of all on this host: not the inode alone, of which each file system has its own.
std::uint64_t file_identity(const struct stat& facts);

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

/// How many allocations this process has freed. Of a file that has grown, what was imported before counts as freed.
std::uint64_t shared_freed_count();
/// From now on the file of each such allocation goes into `list`, and behind it `news` is counted up, until shared_untell(). Of a forked
/// child nobody is told what its parent's peers were to hear.
void shared_tell(FreedList& list, std::uint64_t& news);
/// Afterwards nobody writes there. Nothing to end is no error.
void shared_untell(const FreedList& list);
/// Changes whenever an allocation is made or freed; odd while one is. What shared_find() said between two equal even numbers holds.
std::uint64_t shared_version();

}  // namespace tutti::transport
