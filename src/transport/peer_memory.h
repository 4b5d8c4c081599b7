// Memory of peer processes on this host: their shared segments mapped here, and single copies from and to their private
// memory.
#pragma once

#include "base/result.h"
#include "transport/shared_memory.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace tutti::transport {

/// A peer's file, mapped whole; unmapped when nobody holds it any more.
struct Import {
  std::shared_ptr<std::byte> memory;
  std::uint64_t bytes = 0;
};

/// Segments of peer processes, mapped whole on first use and kept. Any thread may call any function.
///
/// A segment is recognised by its file (file_identity()), whose number is no other's while a mapping of it exists: a peer's
/// process id or descriptor that was used again never leads to the wrong memory.
class ImportCache {
 public:
  /// Of this process; all communicators share it.
  static ImportCache& process();

  /// The start of the segment here; the address that `segment` refers to is `segment.offset` bytes further. Stays mapped
  /// at least until it is dropped: for callers that know that nobody drops it while they use it.
  /// kRemote when the peer has ended or has freed the segment; kInvalidUsage when the file is shorter than `segment.bytes`, so that who used
  /// it would be killed (SIGBUS); kSystem when this process may not map it.
  Result<std::byte*> map(int pid, const SharedReference& segment);
  /// The same, mapped as long as the pointer is held, whatever is dropped meanwhile.
  Result<Import> hold(int pid, const SharedReference& segment);

  /// Forgets all segments of a peer, or one. Unmaps what nobody holds. Nothing to forget is no error.
  void drop(int pid);
  void drop(int pid, std::uint64_t file);
  /// How many segments are remembered.
  std::size_t size() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<int, std::uint64_t>, Import> imports_;  ///< by process and file
};

/// Copies `bytes` bytes at `remote_address` of process `pid` to `local`, with one copy and no help of the peer.
/// kRemote when the process has ended; kSystem when this process may not, or the address is not mapped there. The message
/// names the process and the reason. After an error, any part may have been copied.
Status read_process(int pid, std::uint64_t remote_address, void* local, std::size_t bytes);
/// The other way: `local` to `remote_address` of process `pid`.
Status write_process(int pid, std::uint64_t remote_address, const void* local, std::size_t bytes);

/// Whether reading and writing work: error unless the 8 bytes at `address` of process `pid` can be read, are `expected_value`
/// (a different value: the id names another process here, as across pid namespaces), and can be written again.
Status probe_single_copy(int pid, std::uint64_t address, std::uint64_t expected_value);

/// Whether segments of process `pid` can be mapped: error unless `segment`, a file that it holds open, can be.
Status probe_mapping(int pid, const SharedReference& segment);

}  // namespace tutti::transport
