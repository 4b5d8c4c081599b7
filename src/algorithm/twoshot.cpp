// Two-shot: the data is cut into one unit per rank; a rank is responsible for its unit. First every unit goes to its
// rank, then from there to all who want it. Two hops, whatever the number of ranks.
//
// From: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19
// (2005), its sections on broadcast (scatter and all-gather, after van de Geijn) and on all-reduce (reduce-scatter and
// all-gather); here both halves are done by direct exchange.
// With n ranks and M bytes, per rank:
//   all_reduce   2 (n-1) messages of M/n bytes out and in
//   reduce         n-1 of M/n out and in, then one to the root
//   broadcast      n-1 messages of M/n bytes in and n-2 out; the root 2 (n-1) out
// Sums are folded in rank order.
//
// Direct: the first hop is pulled, the second pushed. A broadcast's root pushes its own unit, so that all ranks move as much. In
// place, unit r of rank p's buffer is read by rank r only, in the step that then overwrites it.
#include "algorithm/pattern.h"

namespace tutti::algorithm {
namespace {

/// One unit of the only block.
Endpoint unit_of_input(int owner) { return input({0, index(owner)}); }
Endpoint unit_of_output(int owner) { return output({0, index(owner)}); }

void send_units_to_owners(LaneProgram& lane, int ranks, int rank) {
  for (int distance = 1; distance < ranks; ++distance) {
    const int owner = around(rank, distance, ranks);
    step(lane).from(unit_of_input(owner)).to(pull(owner, unit_of_input(owner)));
  }
}

/// A step that sums the own unit in rank order; the caller adds where the sum goes.
schedule::StepBuilder fold_own_unit(LaneProgram& lane, int ranks, int rank) {
  auto sum = step(lane);
  for (int peer = 0; peer < ranks; ++peer) {
    sum.from(peer == rank ? unit_of_input(rank) : pull(peer, unit_of_input(rank)));
  }
  sum.finish();
  return sum;
}

void receive_unit(LaneProgram& lane, int owner) {
  step(lane).from(push(owner, unit_of_output(owner))).to(unit_of_output(owner));
}

LaneProgram all_reduce(int ranks, int rank) {
  LaneProgram lane;
  send_units_to_owners(lane, ranks, rank);
  auto sum = fold_own_unit(lane, ranks, rank);
  sum.to(unit_of_output(rank));
  for (int distance = 1; distance < ranks; ++distance) {
    sum.to(push(around(rank, distance, ranks), unit_of_output(rank)));
  }
  for (int distance = 1; distance < ranks; ++distance) receive_unit(lane, around(rank, -distance, ranks));
  return lane;
}

LaneProgram reduce(int ranks, int rank, int root) {
  LaneProgram lane;
  send_units_to_owners(lane, ranks, rank);
  auto sum = fold_own_unit(lane, ranks, rank);
  if (rank != root) {
    sum.to(push(root, unit_of_output(rank)));
    return lane;
  }
  sum.to(unit_of_output(rank));
  for (int distance = 1; distance < ranks; ++distance) receive_unit(lane, around(rank, -distance, ranks));
  return lane;
}

/// The root keeps a copy of every unit while it sends it on; its own unit goes to everybody directly.
LaneProgram broadcast_from_root(int ranks, int root) {
  LaneProgram lane;
  for (int distance = 1; distance < ranks; ++distance) {
    const int owner = around(root, distance, ranks);
    step(lane).from(unit_of_input(owner)).to(unit_of_output(owner)).to(pull(owner, unit_of_input(owner)));
  }
  auto own = step(lane).from(unit_of_input(root)).to(unit_of_output(root));
  for (int distance = 1; distance < ranks; ++distance) {
    own.to(push(around(root, distance, ranks), unit_of_output(root)));
  }
  return lane;
}

/// Not the root: the own unit comes from the root and goes to all the others.
LaneProgram broadcast(int ranks, int rank, int root) {
  LaneProgram lane;
  auto own = step(lane).from(pull(root, unit_of_input(rank))).to(unit_of_output(rank));
  for (int distance = 1; distance < ranks; ++distance) {
    const int peer = around(rank, distance, ranks);
    if (peer != root) own.to(push(peer, unit_of_output(rank)));
  }
  for (int distance = 1; distance < ranks; ++distance) receive_unit(lane, around(rank, -distance, ranks));
  return lane;
}

}  // namespace

RankProgram twoshot(const Request& request, int rank) {
  if (request.ranks == 1) return alone(request);
  const int ranks = request.ranks;
  const int root = request.root;
  switch (request.collective) {
    case Collective::kAllReduce: return one_lane(all_reduce(ranks, rank));
    case Collective::kReduce: return one_lane(reduce(ranks, rank, root));
    case Collective::kBroadcast:
      return one_lane(rank == root ? broadcast_from_root(ranks, root) : broadcast(ranks, rank, root));
    default: return {};
  }
}

}  // namespace tutti::algorithm
