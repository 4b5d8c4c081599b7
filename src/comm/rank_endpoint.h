// Where a rank listens for other hosts' ranks, and what of it travels.
#pragma once

#include "base/result.h"
#include "comm/ip_address.h"
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
struct RankEndpoint {
  std::uint16_t port = 0;
  std::vector<IpAddress> addresses;  ///< to be tried in this order
  std::uint8_t sockets = 1;          ///< that it wants for data, with each other rank
  MpiOffer mpi;
};
Bytes encode(const RankEndpoint& endpoint);
std::optional<RankEndpoint> decode_endpoint(std::span<const std::uint8_t> bytes);
/// The root's list, of so many ranks.
std::optional<std::vector<RankEndpoint>> decode_endpoints(const Bytes& bytes, int ranks);

/// Listens at the addresses that NCCL_SOCKET_IFNAME leaves.
struct MeshListener {
  TcpListener listener;
  RankEndpoint endpoint;
};
Result<MeshListener> open_mesh_listener();

}  // namespace tutti::comm
