// One-shot: every rank talks to every rank it has something for, at once; sums are folded in rank order where they
// are wanted. One hop, the least latency; the most messages.
//
// From: folklore ("flat", "linear"). With n ranks and blocks of B bytes, per rank:
//   all_reduce, all_gather        n-1 messages of B bytes out and in
//   reduce_scatter, all_to_all    n-1 messages of B bytes out and in (one block to each)
//   broadcast, reduce, gather, scatter   n-1 messages of B bytes at the root, one elsewhere
//
// Direct: receivers pull from the sender's input. In place that is safe wherever a rank's output aliases a block of its
// input that only the rank itself reads; not in all_reduce and all_to_all, where the peers read what the output
// overwrites. Through slots every block is sent before anything is received, so in place is always right.
#include "algorithm/pattern.h"

namespace tutti::algorithm {
namespace {

/// One step: everybody's block `block` of the input, in rank order, to `sink`.
void fold(LaneProgram& lane, int ranks, int rank, std::uint32_t block, Endpoint sink) {
  auto sum = step(lane);
  for (int peer = 0; peer < ranks; ++peer) {
    sum.from(peer == rank ? input({block}) : pull(peer, input({block})));
  }
  sum.to(sink).finish();
}

/// One step: the input's only block to all others, and to the own output if it is kept there.
void send_to_all(LaneProgram& lane, int ranks, int rank, const Endpoint* keep) {
  auto send = step(lane).from(input({0}));
  if (keep != nullptr) send.to(*keep);
  for (int distance = 1; distance < ranks; ++distance) {
    send.to(pull(around(rank, distance, ranks), input({0})));
  }
}

/// A step per peer: its own block of the input to each.
void send_to_each(LaneProgram& lane, int ranks, int rank) {
  for (int distance = 1; distance < ranks; ++distance) {
    const int peer = around(rank, distance, ranks);
    step(lane).from(input({index(peer)})).to(pull(peer, input({index(peer)})));
  }
}

/// A step per peer: its block `block` of the input to the block of the output that is the peer's.
void receive_from_each(LaneProgram& lane, int ranks, int rank, std::uint32_t block) {
  for (int distance = 1; distance < ranks; ++distance) {
    const int peer = around(rank, -distance, ranks);
    step(lane).from(pull(peer, input({block}))).to(output({index(peer)}));
  }
}

LaneProgram all_reduce(int ranks, int rank) {
  LaneProgram lane;
  send_to_all(lane, ranks, rank, nullptr);
  fold(lane, ranks, rank, 0, output({0}));
  return lane;
}

LaneProgram reduce_scatter(int ranks, int rank) {
  LaneProgram lane;
  send_to_each(lane, ranks, rank);
  fold(lane, ranks, rank, index(rank), output({0}));
  return lane;
}

LaneProgram all_gather(int ranks, int rank) {
  LaneProgram lane;
  const Endpoint mine = output({index(rank)});
  send_to_all(lane, ranks, rank, &mine);
  receive_from_each(lane, ranks, rank, 0);
  return lane;
}

LaneProgram all_to_all(int ranks, int rank) {
  LaneProgram lane;
  send_to_each(lane, ranks, rank);
  step(lane).from(input({index(rank)})).to(output({index(rank)}));
  receive_from_each(lane, ranks, rank, index(rank));
  return lane;
}

LaneProgram broadcast(int ranks, int rank, int root) {
  LaneProgram lane;
  const Endpoint mine = output({0});
  if (rank == root) {
    send_to_all(lane, ranks, rank, &mine);
  } else {
    step(lane).from(pull(root, input({0}))).to(mine);
  }
  return lane;
}

LaneProgram reduce(int ranks, int rank, int root) {
  LaneProgram lane;
  if (rank == root) {
    fold(lane, ranks, rank, 0, output({0}));
  } else {
    step(lane).from(input({0})).to(pull(root, input({0})));
  }
  return lane;
}

LaneProgram gather(int ranks, int rank, int root) {
  LaneProgram lane;
  if (rank == root) {
    step(lane).from(input({0})).to(output({index(root)}));
    receive_from_each(lane, ranks, rank, 0);
  } else {
    step(lane).from(input({0})).to(pull(root, input({0})));
  }
  return lane;
}

LaneProgram scatter(int ranks, int rank, int root) {
  LaneProgram lane;
  if (rank == root) {
    send_to_each(lane, ranks, rank);
    step(lane).from(input({index(root)})).to(output({0}));
  } else {
    step(lane).from(pull(root, input({index(rank)}))).to(output({0}));
  }
  return lane;
}

}  // namespace

RankProgram oneshot(const Request& request, int rank) {
  if (request.ranks == 1) return alone(request);
  switch (request.collective) {
    case Collective::kAllReduce: return one_lane(all_reduce(request.ranks, rank));
    case Collective::kReduceScatter: return one_lane(reduce_scatter(request.ranks, rank));
    case Collective::kAllGather: return one_lane(all_gather(request.ranks, rank));
    case Collective::kAllToAll: return one_lane(all_to_all(request.ranks, rank));
    case Collective::kBroadcast: return one_lane(broadcast(request.ranks, rank, request.root));
    case Collective::kReduce: return one_lane(reduce(request.ranks, rank, request.root));
    case Collective::kGather: return one_lane(gather(request.ranks, rank, request.root));
    case Collective::kScatter: return one_lane(scatter(request.ranks, rank, request.root));
    default: return {};
  }
}

}  // namespace tutti::algorithm
