// Where a rank listens for other hosts' ranks, and what of it travels.
#pragma once

#include "base/result.h"
#include "comm/interfaces.h"
#include "comm/listen_place.h"
#include "comm/network.h"
#include "comm/tcp_socket.h"
#include "comm/wire.h"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace tutti::comm {

/// Between two ranks, for data.
inline constexpr std::uint8_t kSocketsMax = 16;

/// Where a rank listens for the others.
struct RankEndpoint : ListenPlace {
  std::uint8_t sockets = 1;  ///< that it wants for data, with each other rank
  MpiOffer mpi;
};
Bytes encode(const RankEndpoint& endpoint);
std::optional<RankEndpoint> decode_endpoint(std::span<const std::uint8_t> bytes);
/// The root's list, of so many ranks.
std::optional<std::vector<RankEndpoint>> decode_endpoints(const Bytes& bytes, int ranks);

/// Those that NCCL_SOCKET_IFNAME and NCCL_SOCKET_FAMILY leave, one at least.
Result<std::vector<Interface>> interfaces_for_others();

/// A port that is free, and told with these interfaces' addresses. Without any: whoever tells the place on must know one.
struct OpenPlace {
  TcpListener listener;
  ListenPlace place;
};
Result<OpenPlace> open_place(const std::vector<Interface>& told);

/// The same with interfaces_for_others(), the best ones for this rank first (nics.h), for all that ranks of other hosts want of it.
struct MeshListener {
  TcpListener listener;
  RankEndpoint endpoint;
};
Result<MeshListener> open_mesh_listener();

/// Those ranks of a host that have told the same addresses as equally good begin with one each, by turns: of as many ranks on each host, those at
/// the same place have the same network. `host_of` is by rank.
void take_turns(std::vector<RankEndpoint>& endpoints, const std::vector<int>& host_of);

}  // namespace tutti::comm
