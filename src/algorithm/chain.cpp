// Chain: the ranks in a line that starts (broadcast) or ends (reduce) at the root; rounds follow each other down it.
//
// From: the linear pipeline that P. Sanders, J. Speck, J. L. Traeff, "Two-tree algorithms for full bandwidth broadcast,
// reduction and scan", Parallel Computing 35 (2009), start from. Per rank M bytes in and M bytes out, one message of
// each per round; n-1 hops until the last rank has the first round.
//
// Reduce is not marked reproducible though its sum has one order: that order depends on the root, and every hop rounds
// to the data type where the wire is not float32.
#include "algorithm/pattern.h"

namespace tutti::algorithm {
namespace {

/// The line is root, root + 1, ..., root - 1.
LaneProgram broadcast(const Request& request, int rank) {
  LaneProgram lane;
  const int next = around(rank, 1, request.ranks);
  auto pass = step(lane);
  pass.from(rank == request.root ? input({0}) : push(around(rank, -1, request.ranks), output({0})));
  pass.to(output({0}));
  if (next != request.root) pass.to(push(next, output({0})));
  return lane;
}

/// The line is root + 1, ..., root - 1, root.
LaneProgram reduce(const Request& request, int rank) {
  LaneProgram lane;
  const int previous = around(rank, -1, request.ranks);
  const bool first = previous == request.root;
  auto pass = step(lane);
  if (!first) pass.from(sum_message(previous, around(previous, -1, request.ranks) == request.root));
  pass.from(input({0}));
  if (rank == request.root) {
    pass.to(output({0})).finish();
  } else {
    pass.to(sum_message(around(rank, 1, request.ranks), first));
  }
  return lane;
}

}  // namespace

RankProgram chain(const Request& request, int rank) {
  if (request.ranks == 1) return alone(request);
  switch (request.collective) {
    case Collective::kBroadcast: return one_lane(broadcast(request, rank));
    case Collective::kReduce: return one_lane(reduce(request, rank));
    default: return {};
  }
}

}  // namespace tutti::algorithm
