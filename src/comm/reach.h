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
  /// Keeps parts of `control`: where it says why a transfer failed, and where ranks say what they have freed.
  Reach(int rank, std::span<const Peer> peers, const Control& control);
  /// Lets go of the peers' memory; other communicators keep what they hold.
  ~Reach() override;

  int rank() const { return rank_; }
  bool one_process() const { return one_process_; }
  bool same_process(int peer) const { return members_[peer].same_process; }
  std::int32_t pid(int peer) const { return members_[peer].pid; }

  /// Whether processes map each other's shared memory. Where they do not, it counts as private. All ranks say the same, before the
  /// first call; from then on they say what they free.
  bool maps() const { return maps_; }
  void set_maps(bool maps);

  /// What this rank tells the others of its buffers; a null or unused buffer is mappable.
  protocol::BufferReferences describe(const void* input, std::size_t input_bytes, void* output,
                                      std::size_t output_bytes) const;

  /// Completes `buffers` by the peer's input or output, of so many bytes, as this rank reaches it. To be asked only for what a plan
  /// reads or writes there: a peer whose buffer nobody needs may have freed it by now. Memory that is mapped stays so until its
  /// own peer frees it.
  Status resolve(int peer, const protocol::BufferReferences& announced, bool input, std::uint64_t bytes,
                 protocol::PeerBuffers& buffers);

  /// How often mapped memory was found to be freed: addresses that resolve() gave before may not be used any more.
  std::uint64_t drops() const { return drops_; }

  /// To be called while no transfer is under way: lets go of memory that peers have freed.
  void settle() {
    if (executor::load_acquire(frees_) != settled_frees_) [[unlikely]]
      let_go();
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
    std::uint64_t file = 0;
    transport::Import import;
  };
  struct Member {
    std::int32_t pid = 0;
    bool same_process = false;
    std::uint64_t probe_address = 0;
    std::uint64_t probe_value = 0;
    std::uint32_t announced = 0;   ///< how much its process had freed by its last announcement that was looked at
    std::uint64_t freed_seen = 0;  ///< of `freed`
    const transport::FreedList* freed = nullptr;
    std::vector<Held> held;
  };
  static constexpr std::uint64_t kUnsettled = ~std::uint64_t{0};

  Result<std::uint64_t> mapped_address(Member& member, const protocol::BufferReference& buffer, std::uint64_t bytes,
                                       std::int32_t fd);
  void let_go();
  void retire_freed(Member& member);
  bool failed(std::uint32_t peer, const Error& failure);

  int rank_;
  bool one_process_ = true;
  bool maps_ = true;
  std::vector<Member> members_;
  std::vector<Held> retired_;  ///< freed, but transfers may be under way
  std::uint64_t drops_ = 0;
  std::uint64_t* const frees_;        ///< Control::frees()
  std::uint64_t settled_frees_ = 0;   ///< when settle() last looked; kUnsettled: it has to
  transport::FreedList* const own_;   ///< where this process says what it frees
  std::vector<std::uint64_t> found_;  ///< retire_freed()'s
  FailureRecord& failure_;
};

}  // namespace tutti::comm
