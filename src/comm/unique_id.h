// The unique id that ranks of a communicator share: where the bootstrap root listens, and a secret.
#pragma once

#include "base/result.h"
#include "comm/ip_address.h"
#include "comm/private_descriptor.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tutti::comm {

class Patience;

inline constexpr std::uint64_t kUniqueIdMagic = 0x3144492d49545554;  // "TUTI-ID1" in memory
/// Of the bootstrap protocol. The frames of the handshake stay as they are in every version, so that skew can be told.
inline constexpr std::uint32_t kProtocolVersion = 28;

/// Exactly ncclUniqueId's 128 bytes, copied by value between processes of one job; treat as a secret.
struct UniqueId {
  std::uint64_t magic = 0;           ///< kUniqueIdMagic; anything else is not an id
  std::uint32_t version = 0;         ///< kProtocolVersion
  std::uint16_t port = 0;            ///< where the root listens for other hosts; 0: it does not
  std::uint8_t candidate_bytes = 0;  ///< of `candidates`
  std::uint8_t named = 0;            ///< 1: by NCCL_COMM_ID, and rank 0 starts the root
  std::uint8_t secret[32] = {};      ///< key of the handshake, never sent
  char address[40] = {};             ///< where it listens for ranks of its host: "unix:@tutti-..."; "": it does not
  std::uint8_t candidates[40] = {};  ///< its host's addresses, as write_address has them: each is tried
};
static_assert(sizeof(UniqueId) == 128);

/// If there is room, else false: there is for eight IPv4 addresses, or two IPv6 ones.
bool add_candidate(UniqueId& id, const IpAddress& address);
/// The addresses of other hosts' way to the root.
std::vector<IpAddress> candidates_of(const UniqueId& id);
/// "unix:@tutti-1-2 or 10.0.0.1:4711", for messages.
std::string describe(const UniqueId& id);

/// An id whose bootstrap root listens already, and answers nobody until it is started: for who forks ranks, as a process should have no thread then.
struct UnstartedRoot {
  UniqueId id;
  std::vector<PrivateDescriptor> listeners;

  /// `unwanted`, which may be null: once true, it ends if no rank has come.
  Status start(std::shared_ptr<const std::atomic<bool>> unwanted = nullptr) &&;
};
Result<UnstartedRoot> prepare_root();

/// Starts the bootstrap root in this process, which need not be a rank but must live until all ranks are initialised.
/// The root is a thread and a listening socket; both end when the one communicator of this id is initialised or has
/// failed. Children forked later do not keep the socket.
Result<UniqueId> make_unique_id();

/// The same for a program that passes the id on itself. With NCCL_COMM_ID the id names that address, whoever makes it, and nothing is started:
/// rank 0 does that. What the library makes by itself (a split's ids, say) has first ranks of its own, on any host.
Result<UniqueId> make_programs_id();

/// Of an id with `named`, by rank 0: starts the root. Waits while an earlier communicator's root still holds the port. Where rank 0 then cannot
/// reach it, it stores true: the root ends, and the port is free, if no other rank has come.
Result<std::shared_ptr<std::atomic<bool>>> start_named_root(const UniqueId& id, const Patience& patience);

}  // namespace tutti::comm
