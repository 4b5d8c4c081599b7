// The mesh: TCP connections between the ranks of a communicator over several hosts (meetings.h has how one is made).
//
// By the tables of all ranks, at most two per pair, which the higher rank makes: one
// for data (none where MPI carries it, nor between ranks of one host; more where both ranks ask for more: striped_stream.h), and one on which
// the ranks watch each other (watch_graph.h): a rank watches O(log n) others. Of the connections for data only those are made here that
// the communicator needs to come to be (carriers.h); all others are made when the first byte is to go (late_ties.h).
#pragma once

#include "base/result.h"
#include "comm/meetings.h"
#include "comm/messages.h"
#include "comm/patience.h"
#include "comm/rank_endpoint.h"
#include "comm/root_client.h"

#include <chrono>
#include <memory>
#include <vector>

namespace tutti::comm {

/// A connection with another rank that is to be.
struct Meeting {
  int peer = 0;
  Purpose purpose = Purpose::kData;
  const RankEndpoint* there = nullptr;  ///< where this rank finds the other; nullptr: the other one comes
};

class Mesh {
 public:
  /// Of rank `rank` of `ranks`, which listens at `listener` for as long as the mesh lives. `reach_time`: for all that a call is to meet.
  Mesh(int rank, int ranks, const Secret& secret, const TcpListener& listener,
       std::chrono::duration<double> reach_time = Meetings::kReachTime);
  ~Mesh();
  Mesh(Mesh&&) = default;

  /// Connects this rank with others; [wanted]. Those that come for what is not wanted yet wait for a later call. Ends early when the root
  /// tells of a failure. What the other side has sent already is in the connection. kRemote: a rank was not reached; the message has each of its addresses with what went wrong there.
  Result<std::vector<Connection>> meet(const std::vector<Meeting>& wanted, const Patience& patience, RootClient& root);

  /// For what comes after all that, which others may have come for already.
  std::unique_ptr<Meetings> take_meetings() { return std::move(meetings_); }

 private:
  int rank_;
  std::chrono::duration<double> reach_time_;
  std::unique_ptr<Meetings> meetings_;
};

/// What two ranks have between them from the start: both find the same.
struct Ties {
  bool data = false;
  bool watch = false;
};

/// Of each rank with this one.
std::vector<Ties> ties_of(int rank, const std::vector<Peer>& peers, bool over_mpi);

/// Makes the connections of `ties`; [ranks], own entry empty.
Result<std::vector<PeerSockets>> connect_ties(Mesh& mesh, int rank, const std::vector<RankEndpoint>& endpoints,
                                              const std::vector<Ties>& ties, const Patience& patience,
                                              RootClient& root);

}  // namespace tutti::comm
