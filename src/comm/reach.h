// How one rank reaches the buffers of the others: pointers within a process, mapped segments, or single copies.
#pragma once

#include "comm/bootstrap.h"
#include "comm/control.h"
#include "executor/host_machine.h"
#include "protocol/lane.h"
#include "transport/peer_memory.h"

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace tutti::comm {

class Reach : public executor::RemoteMemory {
 public:
  /// Keeps the failure record: where it says why a transfer failed.
  Reach(int rank, std::span<const Peer> peers, FailureRecord& failure);
  /// Lets go of the peers' memory; other communicators keep what they hold.
  ~Reach() override;

  int rank() const { return rank_; }
  bool one_process() const { return one_process_; }
  bool same_process(int peer) const { return members_[peer].same_process; }
  std::int32_t pid(int peer) const { return members_[peer].pid; }

  /// Whether processes map each other's shared memory. Where they do not, it counts as private. All ranks say the same.
  bool maps() const { return maps_; }
  void set_maps(bool maps) { maps_ = maps; }

  /// What this rank tells the others of its buffers; a null or unused buffer is mappable.
  protocol::BufferReferences describe(const void* input, std::size_t input_bytes, void* output,
                                      std::size_t output_bytes) const;

  /// Completes `buffers` by the peer's input or output, as this rank reaches it. To be asked only for what a plan reads or
  /// writes there: a peer whose buffer nobody needs may have freed it by now. Memory that is mapped stays so until the
  /// peer frees it.
  Status resolve(int peer, const protocol::BufferReferences& announced, bool input, protocol::PeerBuffers& buffers);

  /// How often resolve() has found that a peer had freed memory: addresses that it gave before may not be used any more.
  std::uint64_t drops() const { return drops_; }

  /// To be called while no transfer is under way: lets go of memory that peers have freed.
  void settle() {
    if (!retired_.empty()) [[unlikely]]
      retired_.clear();
  }

  /// Tries a single copy from every other process; false: not everywhere.
  bool probe_single_copy() const;
  /// Tries to map a file of every rank, its `probes`; says why it could not. Of processes that single copies reach (`copied`) nothing
  /// is in the way but what is in the way of this rank's own.
  Status probe_mapping(std::span<const transport::SharedReference> probes, bool copied) const;

  bool read(std::uint32_t peer, std::uint64_t address, std::byte* local, std::size_t bytes) override;
  bool write(std::uint32_t peer, std::uint64_t address, const std::byte* local, std::size_t bytes) override;

 private:
  struct Held {
    std::uint64_t inode = 0;
    std::shared_ptr<std::byte> memory;
  };
  struct Member {
    std::int32_t pid = 0;
    bool same_process = false;
    std::uint64_t probe_address = 0;
    std::uint64_t probe_value = 0;
    std::uint32_t freed = 0;  ///< the peer's count of freed allocations when last looked at
    std::vector<Held> held;
  };

  Result<std::uint64_t> mapped_address(Member& member, const protocol::BufferReference& buffer, std::int32_t fd);
  bool failed(std::uint32_t peer, const Error& failure);

  int rank_;
  bool one_process_ = true;
  bool maps_ = true;
  std::vector<Member> members_;
  std::vector<Held> retired_;
  std::uint64_t drops_ = 0;
  FailureRecord& failure_;
};

}  // namespace tutti::comm
