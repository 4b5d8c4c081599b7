// Ring: rank r sends to r + 1 and receives from r - 1, one block or unit at a time.
//
// From: P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69 (2009).
// With n ranks and M bytes (the larger of a rank's two buffers):
//   all_reduce      2 (n-1) messages of M/n bytes per rank
//   reduce_scatter    n-1   messages of M/n bytes per rank
//   all_gather        n-1   messages of M/n bytes per rank
// which is the least number of bytes that any algorithm can send, at the price of n-1 hops. A ring broken at the root
// is a chain: broadcast and reduce are chain.cpp's.
//
// Direct: a sum under way lives in slots only; finished values are pushed. In place that is safe: a value that is
// finished contains the receiver's own input, so the receiver has read the place that the value overwrites.
#include "algorithm/pattern.h"

namespace tutti::algorithm {
namespace {

/// Reduce-scatter of units, then all-gather of units. Unit u's sum starts at rank u and is complete at rank u - 1.
LaneProgram all_reduce(int ranks, int rank) {
  LaneProgram lane;
  const int next = around(rank, 1, ranks);
  const int previous = around(rank, -1, ranks);
  const auto unit_at = [&](int distance) { return index(around(rank, distance, ranks)); };

  step(lane).from(input({0, unit_at(0)})).to(message(next));
  for (int hop = 1; hop < ranks - 1; ++hop) {
    step(lane).from(sum_message(previous, hop == 1)).from(input({0, unit_at(-hop)})).to(partial(next));
  }
  const Endpoint mine = output({0, unit_at(1)});
  const Endpoint last = sum_message(previous, ranks == 2);
  step(lane).from(last).from(input({0, unit_at(1)})).to(mine).to(push(next, mine)).finish();

  for (int hop = 0; hop < ranks - 1; ++hop) {
    const Endpoint place = output({0, unit_at(-hop)});
    auto receive = step(lane).from(push(previous, place)).to(place);
    if (hop < ranks - 2) receive.to(push(next, place));
  }
  return lane;
}

/// Block b's sum starts at rank b + 1 and is complete at rank b.
LaneProgram reduce_scatter(int ranks, int rank) {
  LaneProgram lane;
  const int next = around(rank, 1, ranks);
  const int previous = around(rank, -1, ranks);

  step(lane).from(input({index(previous)})).to(message(next));
  for (int hop = 1; hop < ranks - 1; ++hop) {
    const auto block = index(around(rank, -1 - hop, ranks));
    step(lane).from(sum_message(previous, hop == 1)).from(input({block})).to(partial(next));
  }
  step(lane).from(sum_message(previous, ranks == 2)).from(input({index(rank)})).to(output({0})).finish();
  return lane;
}

LaneProgram all_gather(int ranks, int rank) {
  LaneProgram lane;
  const int next = around(rank, 1, ranks);
  const int previous = around(rank, -1, ranks);

  const Endpoint mine = output({index(rank)});
  step(lane).from(input({0})).to(mine).to(push(next, mine));
  for (int hop = 1; hop < ranks; ++hop) {
    const Endpoint place = output({index(around(rank, -hop, ranks))});
    auto receive = step(lane).from(push(previous, place)).to(place);
    if (hop < ranks - 1) receive.to(push(next, place));
  }
  return lane;
}

}  // namespace

RankProgram ring(const Request& request, int rank) {
  if (request.ranks == 1) return alone(request);
  switch (request.collective) {
    case Collective::kAllReduce: return one_lane(all_reduce(request.ranks, rank));
    case Collective::kReduceScatter: return one_lane(reduce_scatter(request.ranks, rank));
    case Collective::kAllGather: return one_lane(all_gather(request.ranks, rank));
    default: return {};
  }
}

}  // namespace tutti::algorithm
