// Pairwise: all_to_all in exchange rounds; at distance k a rank sends to r + k and receives from r - k.
//
// From: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19
// (2005), its section on all-to-all (long messages). n-1 messages of a block each way per rank, at most two under way.
//
// Distances k and n-k go together: the block for r + k and the block for r - k are both sent before either is
// overwritten by what comes from there, which makes the call right in place (through slots).
// Direct: receivers pull from the sender's input; not in place, where the output overwrites it.
#include "algorithm/pattern.h"

#include <utility>

namespace tutti::algorithm {

RankProgram pairwise(const Request& request, int rank) {
  if (request.ranks == 1) return alone(request);
  LaneProgram lane;
  const auto send = [&](int peer) { step(lane).from(input({index(peer)})).to(pull(peer, input({index(peer)}))); };
  const auto receive = [&](int peer) { step(lane).from(pull(peer, input({index(rank)}))).to(output({index(peer)})); };

  step(lane).from(input({index(rank)})).to(output({index(rank)}));
  for (int distance = 1; distance <= request.ranks / 2; ++distance) {
    const int ahead = around(rank, distance, request.ranks);
    const int behind = around(rank, -distance, request.ranks);
    send(ahead);
    if (ahead != behind) send(behind);
    receive(behind);
    if (ahead != behind) receive(ahead);
  }
  return one_lane(std::move(lane));
}

}  // namespace tutti::algorithm
