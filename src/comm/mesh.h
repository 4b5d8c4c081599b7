// The mesh: TCP connections between all ranks of a communicator over several hosts, each proved by the unique id's secret.
//
//   higher rank                              lower rank
//    | -- greeting (nonce) ------------------> |   the handshake of bootstrap_root.h, so that strangers cost a place for
//    | <-- challenge (nonce, proof) ---------- |   a few seconds and nothing else
//    | -- attach (proof, ranks, purpose) ----> |
//    | <-- attached ------------------------- |    the socket is now the two ranks' own
//
// Two connections per pair: one for data, which only calls use (none where MPI carries it), and one on which the ranks watch each other (peer_watch.h).
#pragma once

#include "base/result.h"
#include "comm/interfaces.h"
#include "comm/messages.h"
#include "comm/network.h"
#include "comm/patience.h"
#include "comm/root_client.h"
#include "comm/tcp_socket.h"

#include <vector>

namespace tutti::comm {

/// Where a rank listens for the others.
struct RankEndpoint {
  std::uint16_t port = 0;
  std::vector<IpAddress> addresses;  ///< to be tried in this order
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

struct MeshArgs {
  int rank = 0;
  Secret secret = {};
  std::vector<RankEndpoint> endpoints;  ///< [ranks]
  bool data = true;                     ///< false: only connections for watching, as data goes by MPI
};

/// Connects this rank with all others; [ranks], own entry empty. Ends early when the root tells of a failure. kRemote: a rank was not
/// reached; the message has each of its addresses with what went wrong there.
Result<std::vector<PeerSockets>> connect_mesh(const MeshArgs& args, const TcpListener& listener,
                                              const Patience& patience, RootClient& root);

}  // namespace tutti::comm
