// Where calls among ranks in several processes find the ranks' buffers: in windows of all ranks, by the program's promise (device_windows.h); in
// memory that each rank shares by itself, if all agree (device_exports.h, device_agreement.h); else nowhere, and they go through staging.
//
//   arrive()   looks for the call's buffers, and counts this rank in if they are not in windows
//   settle()   the places that the call works on, when all ranks have come to it
#pragma once

#include "comm/communicator.h"
#include "comm/device_agreement.h"
#include "comm/device_exports.h"
#include "comm/device_mail.h"
#include "comm/device_path.h"
#include "comm/device_windows.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

namespace tutti::comm {

class DevicePlaces {
 public:
  /// A rank's buffers as its kernel and the others' see them.
  struct Places {
    const void* input = nullptr;
    void* output = nullptr;
    protocol::BufferReferences announced{};
  };
  /// A call between arrive() and settle().
  struct Arrival {
    std::optional<Places> windows;
    std::optional<Places> shared;
    std::optional<DeviceAgreement::Place> agreement;  ///< nullopt: there is none
    std::chrono::nanoseconds patience{};
  };
  /// Calls of fewer bytes (of the longest buffer) are not worth an agreement.
  static constexpr std::uint64_t kAgreedFrom = std::uint64_t{1} << 20;

  /// All but the device outlive close(). `works`: by rank, whether its kernels work on others' buffers.
  DevicePlaces(Communicator& communicator, const DeviceSegment& segment, std::shared_ptr<cuda::Device> device,
               DeviceMail& mail, const DeviceOrder& order, DeviceCrew crew, std::vector<bool> works);
  void close() { exports_->close(); }

  DeviceWindows& windows() { return windows_; }
  DeviceExports& exports() { return *exports_; }

  /// The bytes of a call's longest buffer.
  static std::uint64_t longest_bytes(const CallArgs& args, int ranks);
  /// Nothing if the call's buffers are not in windows.
  Result<std::optional<Places>> in_windows(const CallArgs& args);
  /// By all ranks or by none. `is_captured`: into a graph.
  Result<Arrival> arrive(const CallArgs& args, bool is_captured);
  /// Nothing: through staging. The same on all ranks, if all or none use windows.
  Result<std::optional<Places>> settle(const Arrival& arrival);

 private:
  template <class Find>
  Result<std::optional<Places>> find(const CallArgs& args, Find find) const;
  std::chrono::nanoseconds patience_for(std::uint64_t bytes) const;

  Communicator& comm_;
  const DeviceCrew crew_;
  DeviceWindows windows_;
  const std::shared_ptr<DeviceExports> exports_;
  DeviceAgreement agreement_;
  std::uint32_t refusals_ = 0;  ///< in a row, of calls for which this rank's buffers were there
};

}  // namespace tutti::comm
