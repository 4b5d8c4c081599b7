// Buffers that ranks in several processes work on where they lie, though they are in no window: memory of ncclMemAlloc, and what is registered
// (ncclCommRegister, windows without NCCL_WIN_COLL_SYMMETRIC); with TUTTI_EXPORT_BUFFERS=1 all memory of cudaMalloc and cuMemMap. One rank may
// call with such a buffer and another with one of its own, so the ranks agree for each call (device_agreement.h).
//
//   find()     a call's buffer: exports the allocation that it lies in, at the first call, and writes where others can read it how to open it;
//              pieces of cuMemMap it sends to those who work on others' buffers (device_mail.h)
//   link()     opens what the others have exported, at a call of which all have agreed that it goes in place, on ranks that work on it
//   let_go()   of what others have taken back, at each call; tidy() in all communicators
//
//  E1. An allocation is known by its numbers: another one at its address is another one. What was freed is taken back when its address is met
//      again and nothing is left of it (of pieces some may be in use still), when nothing of it is registered any more, and by ncclMemFree.
//  E2. Who opens an allocation says so before it looks whether it is still there; who takes one back does so before it looks whether anybody has
//      it open. So ncclMemFree frees memory only when nobody has: CUDA leaves undefined what else would become of it. Until then somebody
//      keeps it (free_memory(), tidy()).
//  E3. A place is another allocation's only when nobody has the one before open. Graphs may announce that still: the name that they have for it has
//      bits of its number, so that kernels do not take the other one for it.
//  E4. All calls that use it are through when memory is taken back: ncclMemFree waits for them; who ends a registration has done so. Registered
//      memory of cudaMalloc may be freed when all ranks have ended their registrations and each has made a collective since: it has let go then.
//      Pieces of cuMemMap live as long as anybody has them mapped.
#pragma once

#include "comm/control.h"
#include "comm/device_allocation.h"
#include "comm/device_mail.h"
#include "comm/device_order.h"
#include "comm/device_segment.h"
#include "comm/unshared_memory.h"
#include "cuda/pointers.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tutti::comm {

class DeviceExports {
 public:
  static std::size_t bytes_for(std::size_t ranks) { return ranks * sizeof(Board); }

  /// `segment`, `mail` and `order`, of the calls that use them, outlive close(). `works`: by rank, whether its kernels work on others' buffers.
  static std::shared_ptr<DeviceExports> make(const Control& control, const Reach& reach, const DeviceSegment& segment,
                                             std::shared_ptr<cuda::Device> device, DeviceMail& mail,
                                             const DeviceOrder& order, int rank, std::vector<bool> works);
  /// Takes everything back, and lets go of the others'.
  void close();

  /// Of this communicator: may be exported as long as it is registered.
  void add(const void* begin, std::size_t bytes);
  /// It is registered no more: nothing is exported for its sake. To be called before remove().
  void end(const void* begin, std::size_t bytes);
  /// Its calls are through: what was exported is taken back.
  void remove(const void* begin, std::size_t bytes);

  /// What is announced for `bytes` at this address, if others can come to them.
  Result<std::optional<protocol::BufferReference>> find(const void* address, std::size_t bytes);
  /// The others' buffers, as far as their calls have come. What cannot be opened is none that a call uses, mostly; else its kernel fails.
  Status link();
  /// Of what others have taken back, at each of this rank's calls.
  void let_go();
  /// Why what a peer announces with this number could not be opened; "": it could, or it is none of these.
  std::string why_not(int peer, std::uint64_t mapping);

  /// Takes back and frees what cuda::allocate_for_user() made: at once, or when nobody has it open any more.
  static Status free_memory(void* memory);
  /// Lets go of what others have taken back, and frees what nobody has open any more, as far as a thread that works on this device may_free()
  /// it. By whoever allocates, frees or ends something: the processes of a job mostly do so at the same time.
  static void tidy(int device);
  /// Whether memory of the device was freed by its user that others have open still, or another thread may be freeing some.
  static bool keeps_memory(int device);

 private:
  static constexpr std::size_t kPlaces = DeviceSegment::kExports;  ///< allocations beyond are not exported
  struct Place {
    std::uint64_t number = 0;      ///< of the rank's exports, from 1; written last. 0: none, or taken back
    std::uint64_t allocation = 0;  ///< where it begins at that rank
    std::uint64_t mailed = 0;      ///< bytes of pieces that have been sent; 0: `handle` is what opens it
    std::uint8_t handle[64] = {};
    std::uint32_t holders = 0;  ///< a bit for each rank that has it open, or is about to
  };
  /// What a rank has exported, in memory of all ranks.
  struct Board {
    std::uint64_t changes = 0;   ///< counts what is exported and taken back
    std::uint64_t exported = 0;  ///< the last number
    Place places[kPlaces];
  };
  static constexpr std::size_t kNoPlace = kPlaces;
  using Range = DeviceRange;
  struct Own {
    DeviceExtent extent;  ///< never empty
    std::size_t place = 0;
  };
  struct Import {
    std::uint64_t number = 0;  ///< 0: none
    cuda::ImportedMemory memory;
    cuda::ImportedPieces pieces;
    std::string why_not;  ///< not empty: it could not be opened
  };
  struct Loan;
  struct Shared;

  DeviceExports(const Control& control, const Reach& reach, const DeviceSegment& segment,
                std::shared_ptr<cuda::Device> device, DeviceMail& mail, const DeviceOrder& order, int rank,
                std::vector<bool> works);
  int device() const { return device_->facts().ordinal; }
  bool works() const { return works_[static_cast<std::size_t>(rank_)]; }
  Board& board(int rank) const { return boards_[static_cast<std::size_t>(rank)]; }
  /// The registered bytes around this range, whoever registered which; nullopt: some of it are not.
  std::optional<Range> registered_around(const Range& range) const;
  /// What may be exported for this range; nullopt: nothing.
  Result<std::optional<Range>> may_export(const Range& range) const;
  // With the lock:
  /// nullopt: not yet, or not any more.
  Result<std::optional<Own>> find_own(const Range& wanted);
  /// nullopt: no memory of devices, or it cannot be shared, or no place is free. `wanted`: what is to be in it.
  Result<std::optional<Own>> export_allocation(const Range& wanted, const Range& allowed);
  /// Writes at the place how others open it. nullopt: it cannot be shared, and the log says why.
  Result<std::optional<Own>> share(const Range& wanted, const Range& allowed, std::size_t place);
  /// Under the next number.
  Result<cuda::SharedPieces> send(const Range& range, cuda::Sharing sharing);
  /// Of which nothing is left.
  Status take_back_freed();
  std::size_t free_place() const;
  void take_back(const Own& own);
  Status look_at(int peer, std::size_t place, bool opens);
  /// Where a peer's memory is in this process.
  Result<std::uint64_t> open(int peer, const Place& place, Import& import);
  void sift_mail();

  bool have_changed(const std::vector<std::uint64_t>& since);
  /// Waits for this rank's calls, which may use the memory.
  Status finish(const void* memory);
  void take_back(std::uint64_t allocation);
  /// `opens`: also what is new.
  Status look(bool opens);

  const Control control_;
  const std::span<Board> boards_;
  const DeviceSegment& segment_;
  const std::shared_ptr<cuda::Device> device_;
  DeviceMail& mail_;
  const DeviceOrder& order_;
  const int rank_;
  const std::vector<bool> works_;   ///< by rank
  std::vector<std::int32_t> pids_;  ///< by rank
  std::vector<bool> same_process_;  ///< by rank

  std::mutex mutex_;
  bool is_closed_ = false;
  std::uint64_t exported_ = 0;
  std::vector<Own> own_;
  UnsharedMemory unshared_;
  std::vector<Range> registered_;                                    ///< by where they begin
  std::vector<std::uint64_t> opened_at_;                             ///< by rank: Board::changes, when all was open
  std::vector<std::uint64_t> looked_at_;                             ///< ... and when nothing else was
  std::vector<std::array<Import, DeviceExports::kPlaces>> imports_;  ///< by rank
};

}  // namespace tutti::comm
