// Descriptors of device memory among the processes of one host: each rank listens at a Unix socket of its own, which its card names, and
// whoever has memory of cuMemMap in a window sends its pieces to all of them. Nobody waits: what is sent lies at the receiver's socket until
// it looks, and a window's number is published on the card behind it.
#pragma once

#include "comm/device_card.h"
#include "comm/private_descriptor.h"
#include "cuda/mapped_memory.h"

#include <cstdint>
#include <functional>
#include <list>

namespace tutti::comm {

class DeviceMail {
 public:
  /// Of a window; CUDA's own pieces have 2 MiB and more each.
  static constexpr std::size_t kPiecesMax = 64;

  /// Before the cards are shown: `card` is this rank's.
  static Result<DeviceMail> open(DeviceCard& card);

  /// Sends what window `number` of rank `from` lies in to the rank that has this card.
  static Status send(const DeviceCard& to, int from, std::uint64_t number, const cuda::SharedPieces& pieces);
  /// What has come of that window; kInternal if nothing has. Call it when the number is published.
  Result<cuda::SharedPieces> take(int from, std::uint64_t number);
  /// Lets go of what has come of windows that are not wanted.
  void sift(const std::function<bool(std::uint64_t number)>& is_wanted);

 private:
  /// Its descriptors stay in the socket until it is taken: this process may not open all of them at once.
  struct Letter {
    int from = 0;
    std::uint64_t number = 0;
    PrivateDescriptor socket;
  };
  /// Who has connected and may still send. Strangers may connect too; the oldest make room.
  static constexpr std::size_t kCallersMax = 64;
  void collect();
  /// Whether nothing more will come; makes a letter of what has.
  bool look_at(PrivateDescriptor& caller);

  PrivateDescriptor listener_;
  std::uint64_t token_[2] = {};
  std::list<PrivateDescriptor> callers_;
  std::list<Letter> letters_;
};

}  // namespace tutti::comm
