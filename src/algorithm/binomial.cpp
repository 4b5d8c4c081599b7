// Binomial tree: with ranks counted from the root, the parent of v is v without its lowest set bit.
//
// From: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19
// (2005), its sections on broadcast and on reduce. With n ranks and blocks of B bytes, ceil(log2 n) hops, and
//   broadcast, reduce   one message of B bytes per edge of the tree, ceil(log2 n) of them at the root
//   gather, scatter     a message per block of the subtree: up to n/2 at the root's largest child, n-1 at the root
// Ranks on the way pass blocks on as they come, so gather and scatter need no scratch.
//
//   8 ranks        0           the children of 0 are 4, 2, 1; of 4 they are 6, 5; of 6 it is 7; of 2 it is 3.
//
// Direct: broadcast pushes into the outputs, each written once. The others go through slots.
#include "algorithm/pattern.h"

#include <algorithm>

namespace tutti::algorithm {
namespace {

/// A rank's seat in the tree. Seats are ranks counted from the root.
struct Seat {
  int ranks;
  int root;
  int seat;

  int rank_of(int other) const { return around(root, other, ranks); }
  bool at_root() const { return seat == 0; }
  int parent() const { return rank_of(seat & (seat - 1)); }
  /// Seats `seat` to `seat + subtree_size() - 1` are this one's subtree; children are at distance 1, 2, 4, ... below.
  int reach() const { return at_root() ? ranks : seat & -seat; }
  int subtree_size() const { return std::min(reach(), ranks - seat); }
  /// The rank of the child whose subtree has the seat at this distance (1 or more).
  int child_towards(int distance) const { return rank_of(seat + power_of_two_below(distance)); }
};

LaneProgram broadcast(const Seat& at) {
  LaneProgram lane;
  const Endpoint place = output({0});
  auto pass = step(lane).from(at.at_root() ? input({0}) : push(at.parent(), place)).to(place);
  for (int distance = power_of_two_below(at.subtree_size()); distance > 0; distance /= 2) {
    if (distance < at.subtree_size()) pass.to(push(at.child_towards(distance), place));  // deepest subtree first
  }
  return lane;
}

LaneProgram reduce(const Seat& at) {
  LaneProgram lane;
  auto pass = step(lane).from(input({0}));
  for (int distance = 1; distance < at.subtree_size(); distance *= 2) {
    const Seat child{at.ranks, at.root, at.seat + distance};
    pass.from(sum_message(at.child_towards(distance), child.subtree_size() == 1));
  }
  if (at.at_root()) {
    pass.to(output({0})).finish();
  } else {
    pass.to(sum_message(at.parent(), at.subtree_size() == 1));
  }
  return lane;
}

/// Every rank passes its subtree's blocks up, nearest seat first.
LaneProgram gather(const Seat& at) {
  LaneProgram lane;
  for (int distance = 0; distance < at.subtree_size(); ++distance) {
    const Endpoint block = distance == 0 ? input({0}) : message(at.child_towards(distance));
    step(lane).from(block).to(at.at_root() ? output({index(at.rank_of(at.seat + distance))}) : message(at.parent()));
  }
  return lane;
}

/// Every rank keeps the first block that comes from above and passes on the others.
LaneProgram scatter(const Seat& at) {
  LaneProgram lane;
  for (int distance = 0; distance < at.subtree_size(); ++distance) {
    const Endpoint block = at.at_root() ? input({index(at.rank_of(at.seat + distance))}) : message(at.parent());
    step(lane).from(block).to(distance == 0 ? output({0}) : message(at.child_towards(distance)));
  }
  return lane;
}

}  // namespace

RankProgram binomial(const Request& request, int rank) {
  if (request.ranks == 1) return alone(request);
  const Seat at{request.ranks, request.root, around(rank, -request.root, request.ranks)};
  switch (request.collective) {
    case Collective::kBroadcast: return one_lane(broadcast(at));
    case Collective::kReduce: return one_lane(reduce(at));
    case Collective::kGather: return one_lane(gather(at));
    case Collective::kScatter: return one_lane(scatter(at));
    default: return {};
  }
}

}  // namespace tutti::algorithm
