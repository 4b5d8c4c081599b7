// Point to point: send and receive, one message between the rank that calls and its peer.
//
// From: nothing to cite. One message of the call's bytes.
//
// A send's program is the caller's; built for the peer, the function gives the receive that meets it (and the other way
// round), so that the pair can be verified. A rank that sends to itself makes two calls, each with its own half.
//
// Direct: the receiver pulls from the sender's input.
#include "algorithm/pattern.h"

#include <utility>

namespace tutti::algorithm {

RankProgram p2p(const Request& request, int rank) {
  LaneProgram lane;
  const bool calls = rank == request.rank;
  if (!calls && rank != request.root) return one_lane(std::move(lane));
  const bool sends = (request.collective == Collective::kSend) == calls;
  const int peer = calls ? request.root : request.rank;
  if (sends) {
    step(lane).from(input({0})).to(pull(peer, input({0})));
  } else {
    step(lane).from(pull(peer, input({0}))).to(output({0}));
  }
  return one_lane(std::move(lane));
}

}  // namespace tutti::algorithm
