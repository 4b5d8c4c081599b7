// Descriptors of device memory among the processes of one host: each rank listens at a Unix socket of its own, which its card names, and
// whoever shares memory of cuMemMap (in a window, or by itself: device_exports.h) sends its pieces there. Nobody waits: what is sent lies at
// the receiver's socket until it looks, and its number is published behind it.
#pragma once

#include "comm/device_card.h"
#include "comm/private_descriptor.h"
#include "cuda/mapped_memory.h"

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>

namespace tutti::comm {

enum class MailOf : std::uint32_t { kWindow, kExport };

/// What a letter is about: a window, or what a rank has exported.
struct MailKey {
  MailOf of = MailOf::kWindow;
  std::int32_t from = 0;  ///< rank
  std::uint64_t number = 0;
  friend bool operator==(const MailKey&, const MailKey&) = default;
};

/// Says that calls copy what lies in such memory; at WARN where there was none of the system's resources.
void log_unshared(const std::string& what, const std::string& why_no_handle, const Error& why_no_pieces);

/// Any thread may call.
class DeviceMail {
 public:
  /// Of a letter; CUDA's own pieces have 2 MiB and more each.
  static constexpr std::size_t kPiecesMax = 64;

  /// Before the cards are shown: `card` is this rank's.
  static Result<std::unique_ptr<DeviceMail>> open(DeviceCard& card);

  /// Sends pieces to the rank that has this card.
  static Status send(const DeviceCard& to, const MailKey& key, const cuda::SharedPieces& pieces);
  /// Sends what the range lies in to all of these. Failure: it is no memory of cuMemMap, or cannot be shared.
  static Result<cuda::SharedPieces> share(const cuda::Device& device, const void* begin, std::size_t bytes,
                                          cuda::Sharing sharing, std::span<const DeviceCard* const> to,
                                          const MailKey& key);
  /// What has come, once; kInternal if nothing has. Call it when the number is published. What could not be opened can be taken again.
  Result<cuda::SharedPieces> take(const MailKey& key);
  /// Lets go of what has come and is not wanted.
  void sift(MailOf of, const std::function<bool(const MailKey&)>& is_wanted);

 private:
  /// Its descriptors stay in the socket until it is taken: this process may not open all of them at once.
  struct Letter {
    MailKey key;
    PrivateDescriptor socket;
  };
  /// Who has connected and may still send. Strangers may connect too; the oldest make room.
  static constexpr std::size_t kCallersMax = 64;
  void collect();
  /// Whether nothing more will come; makes a letter of what has.
  bool look_at(PrivateDescriptor& caller);

  PrivateDescriptor listener_;
  std::uint64_t token_[2] = {};
  std::mutex mutex_;
  std::list<PrivateDescriptor> callers_;
  std::list<Letter> letters_;
};

}  // namespace tutti::comm
