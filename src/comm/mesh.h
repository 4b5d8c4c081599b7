// The mesh: TCP connections between the ranks of a communicator over several hosts, each proved by the unique id's secret.
//
//   higher rank                              lower rank
//    | -- greeting (nonce) ------------------> |   the handshake of bootstrap_root.h, so that strangers cost a place for
//    | <-- challenge (nonce, proof) ---------- |   a few seconds and nothing else
//    | -- attach (proof, ranks, purpose) ----> |
//    | <-- attached ------------------------- |    the socket is now the two ranks' own
//
// At most two connections per pair: one for data, which only calls use (none where MPI carries it, nor between ranks of one host), and one
// on which the ranks watch each other (peer_watch.h). A rank watches O(log n) others.
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

/// What two ranks have between them: both find the same.
struct Ties {
  bool data = false;
  bool watch = false;
};

/// Of each rank with this one. By MPI all watch each other: whoever hears of a death must stop MPI, and no stream shows it.
std::vector<Ties> ties_of(int rank, const std::vector<Peer>& peers, bool over_mpi);

struct MeshArgs {
  int rank = 0;
  Secret secret = {};
  std::vector<RankEndpoint> endpoints;  ///< [ranks]
  std::vector<Ties> ties;               ///< [ranks]
};

/// Connects this rank with the others; [ranks], own entry empty. Ends early when the root tells of a failure. kRemote: a rank was not
/// reached; the message has each of its addresses with what went wrong there.
Result<std::vector<PeerSockets>> connect_mesh(const MeshArgs& args, const TcpListener& listener,
                                              const Patience& patience, RootClient& root);

}  // namespace tutti::comm
