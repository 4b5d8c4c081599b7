// The unique id that ranks of a communicator share: where the bootstrap root listens, and a secret.
#pragma once

#include "base/result.h"

#include <cstdint>

namespace tutti::comm {

inline constexpr std::uint64_t kUniqueIdMagic = 0x3144492d49545554;  // "TUTI-ID1" in memory
/// Of the bootstrap protocol. The frames of the handshake stay as they are in every version, so that skew can be told.
inline constexpr std::uint32_t kProtocolVersion = 1;

/// Exactly ncclUniqueId's 128 bytes, copied by value between processes of one job; treat as a secret.
struct UniqueId {
  std::uint64_t magic = 0;    ///< kUniqueIdMagic; anything else is not an id
  std::uint32_t version = 0;  ///< kProtocolVersion
  std::uint32_t reserved = 0;
  std::uint8_t secret[32] = {};  ///< key of the handshake, never sent
  char address[80] = {};         ///< where the root listens: "unix:@tutti-...", later also "tcp:host:port"
};
static_assert(sizeof(UniqueId) == 128);

/// Starts the bootstrap root in this process, which need not be a rank but must live until all ranks are initialised.
/// The root is a thread and a listening socket; both end when the one communicator of this id is initialised or has
/// failed. Children forked later do not keep the socket.
Result<UniqueId> make_unique_id();

}  // namespace tutti::comm
