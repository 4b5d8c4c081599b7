// Users' buffers that ranks in several processes work on where they lie: windows of all ranks (ncclCommWindowRegister with
// NCCL_WIN_COLL_SYMMETRIC). Every rank registers its window, the n-th of each belong together.
//
//   add()                          exports the window's allocation, and says so on the rank's card; memory of cuMemMap goes to all other
//                                  processes at once (device_mail.h); waits for nobody
//   a call finds its buffers in    waits until all ranks have added theirs of that number, and maps them: once
//   windows (find())
//
//  W1. Whether a window can be used follows from all ranks' cards, so all ranks find it alike.
//  W2. That a call's buffers are in windows on all ranks, or on none, is the program's promise (NCCL's for such windows). It goes into the
//      call's fingerprint, so that a promise that is broken is found like any call that differs.
//  W3. A window is known by the numbers of the allocations it lies in: another one at their address is none.
#pragma once

#include "comm/communicator.h"
#include "comm/device_allocation.h"
#include "comm/device_mail.h"
#include "comm/device_segment.h"
#include "cuda/pointers.h"

#include <mutex>
#include <optional>
#include <vector>

namespace tutti::comm {

class DeviceWindows {
 public:
  /// All outlive it.
  DeviceWindows(Communicator& communicator, const DeviceSegment& segment, const cuda::Device& device, DeviceMail& mail)
      : comm_(communicator), segment_(segment), device_(device), mail_(mail) {}

  /// Memory that cannot be exported, or of a window too many, is one that calls do not find. Failure: there is no window.
  Status add(const void* begin, std::size_t bytes);
  /// Calls find it no more. To be called before remove().
  void end(const void* begin, std::size_t bytes);
  /// The streams are done with it. The memory may be freed when every rank has removed its own.
  void remove(const void* begin, std::size_t bytes);

  /// What is announced for `bytes` at this address, if they are in a window that all ranks can use. kRemote: a rank has not added its own.
  Result<std::optional<protocol::BufferReference>> find(const void* address, std::size_t bytes);

 private:
  struct Window {
    std::uint64_t number = 0;  ///< of this communicator's, from 1
    std::uint64_t begin = 0;
    std::size_t bytes = 0;
    DeviceExtent extent;  ///< none: calls do not find it
    bool is_ended = false;
    bool is_linked = false;
    bool is_usable = false;
    std::vector<cuda::ImportedMemory> imports;
    std::vector<cuda::ImportedPieces> imported_pieces;
  };
  static std::size_t place_of(std::uint64_t number) { return (number - 1) % DeviceCard::kWindows; }
  static std::uint64_t mapping_of(const Window& window) {
    return DeviceSegment::window_mapping(place_of(window.number), window.number);
  }
  Status share(Window& window, DeviceWindow& place) const;
  /// Where CUDA has no handle for the memory.
  Status share_pieces(Window& window, DeviceWindow& place, cuda::Sharing sharing,
                      const std::string& why_no_handle) const;
  Status link(Window& window);
  /// Where a peer's window begins in this process, from now on.
  Result<std::uint64_t> map(int peer, Window& window);
  Status wait_for(int peer, const Window& window) const;
  /// Keeps the mail of windows that have yet to be linked, here and at ranks that are ahead.
  void sift_mail();

  Communicator& comm_;
  const DeviceSegment& segment_;
  const cuda::Device& device_;
  DeviceMail& mail_;
  std::mutex mutex_;
  std::uint64_t added_ = 0;
  std::vector<Window> windows_;
};

}  // namespace tutti::comm
