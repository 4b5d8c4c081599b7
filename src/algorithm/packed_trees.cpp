// All-reduce moves M bytes up and M bytes down every edge of a lane's tree, M the lane's share. With n ranks an
// all-gather's out-trees move each block n - 1 times in all, the least that is possible; so do a reduce-scatter's.
//
// From: trees packed into a network of given capacities: L. Wang et al., ForestColl (arXiv 2402.06787), section 5;
// pipelining through a tree: P. Sanders, J. Speck, J. L. Traeff, "Two-tree algorithms for full bandwidth broadcast,
// reduction and scan", Parallel Computing 35 (2009).
//
// One lane, two ranks, rank 0 the root, three units: rank 1 is two hops (up and down) ahead.
//
//   rank 1    up 0   up 1   up 2   down 0   down 1   down 2
//   rank 0           0      1      2
//
// Direct: results are pushed down. In place that is safe: a result contains the receiver's input, so it has been read.
#include "algorithm/packed_trees.h"

#include "algorithm/pattern.h"
#include "algorithm/tree_turns.h"
#include "base/assert.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tutti::algorithm {

namespace {

using Children = std::vector<std::vector<int>>;

Children children_of(const Parents& parents) {
  Children children(parents.size());
  for (std::size_t rank = 0; rank < parents.size(); ++rank) {
    if (parents[rank] != kNoParent) children[static_cast<std::size_t>(parents[rank])].push_back(static_cast<int>(rank));
  }
  return children;
}

/// A rank's place in one tree.
struct Seat {
  int parent = kNoParent;
  int depth = 0;
  std::vector<int> children;
  std::vector<bool> child_is_leaf;

  bool is_root() const { return parent == kNoParent; }
  bool is_leaf() const { return children.empty(); }
};

std::vector<Seat> seats_of(const Parents& parents) {
  const Children children = children_of(parents);
  const std::vector<int> depths = depths_of(parents);
  std::vector<Seat> seats(parents.size());
  for (std::size_t rank = 0; rank < parents.size(); ++rank) {
    seats[rank] = {parents[rank], depths[rank], children[rank], {}};
    for (const int child : children[rank])
      seats[rank].child_is_leaf.push_back(children[static_cast<std::size_t>(child)].empty());
  }
  return seats;
}

/// The step that adds the children's sums of `at` and its own input up; the caller adds where the sum goes.
schedule::StepBuilder sum_up(LaneProgram& lane, const Seat& seat, schedule::Span own) {
  auto up = step(lane).from(input(own));
  for (std::size_t i = 0; i < seat.children.size(); ++i) up.from(sum_message(seat.children[i], seat.child_is_leaf[i]));
  return up;
}

void pass_down(schedule::StepBuilder& down, const Seat& seat, Endpoint place) {
  for (const int child : seat.children) down.to(push(child, place));
}

LaneProgram all_reduce(const Seat& seat, int units, int ahead_per_hop) {
  LaneProgram lane;
  const auto up = [&](int unit) {
    const Endpoint place = output({0, index(unit)});
    auto sum = sum_up(lane, seat, {0, index(unit)});
    if (!seat.is_root()) {
      sum.to(sum_message(seat.parent, seat.is_leaf()));
      return;
    }
    sum.to(place).finish();
    pass_down(sum, seat, place);
  };
  const auto down = [&](int unit) {
    const Endpoint place = output({0, index(unit)});
    auto result = step(lane).from(push(seat.parent, place)).to(place);
    pass_down(result, seat, place);
  };
  const int ahead = seat.is_root() ? 0 : std::min(ahead_per_hop * seat.depth, units);
  for (int unit = 0; unit < units + ahead; ++unit) {
    if (unit < units) up(unit);
    if (unit >= ahead && !seat.is_root()) down(unit - ahead);
  }
  return lane;
}

using Seats = std::vector<std::vector<Seat>>;  ///< by root and rank

LaneProgram all_gather(const Seats& trees, std::size_t rank, const std::vector<Turn>& turns) {
  LaneProgram lane;
  for (const Turn& turn : turns) {
    const Seat& seat = trees[index(turn.root)][rank];
    const std::uint32_t unit = index(turn.unit);
    const Endpoint place = output({index(turn.root), unit});
    auto pass = step(lane).from(seat.is_root() ? input({0, unit}) : push(seat.parent, place)).to(place);
    pass_down(pass, seat, place);
  }
  return lane;
}

/// An all-gather backwards, so that its last unit is the first.
LaneProgram reduce_scatter(const Seats& trees, std::size_t rank, const std::vector<Turn>& turns, int units) {
  LaneProgram lane;
  for (auto turn = turns.rbegin(); turn != turns.rend(); ++turn) {
    const Seat& seat = trees[index(turn->root)][rank];
    const std::uint32_t unit = index(units - 1 - turn->unit);
    auto sum = sum_up(lane, seat, {index(turn->root), unit});
    if (seat.is_root()) {
      sum.to(output({0, unit})).finish();
    } else {
      sum.to(sum_message(seat.parent, seat.is_leaf()));
    }
  }
  return lane;
}

schedule::Schedule empty_schedule(Collective collective, std::size_t ranks, std::size_t lanes) {
  schedule::Schedule made;
  made.algorithm = "packed_trees";
  made.request = {collective, static_cast<int>(ranks), 0, 0};
  made.shape.lanes = static_cast<std::uint32_t>(lanes);
  if (collective == Collective::kAllGather) made.shape.output_blocks = static_cast<std::uint32_t>(ranks);
  if (collective == Collective::kReduceScatter) made.shape.input_blocks = static_cast<std::uint32_t>(ranks);
  made.ranks.resize(ranks);
  return made;
}

schedule::Schedule rooted(Collective collective, const std::vector<RootedTrees>& lanes, int units, int slots) {
  TUTTI_ASSERT(!lanes.empty() && units > 0 && slots > 0);
  schedule::Schedule made = empty_schedule(collective, lanes.front().size(), lanes.size());
  made.shape.units = index(units);
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    const RootedTrees& lane = lanes[i];
    TUTTI_ASSERT(lane.size() == made.ranks.size());
    if (i > 0 && lane == lanes[i - 1]) {  // the lanes of a tree with a large share lie side by side
      for (schedule::RankProgram& program : made.ranks) program.lanes.push_back(program.lanes.back());
      continue;
    }
    Seats trees;
    for (const Parents& parents : lane) trees.push_back(seats_of(parents));
    const std::vector<std::vector<Turn>> turns = tree_turns(lane, units, slots);
    for (std::size_t rank = 0; rank < made.ranks.size(); ++rank)
      made.ranks[rank].lanes.push_back(collective == Collective::kAllGather
                                           ? all_gather(trees, rank, turns[rank])
                                           : reduce_scatter(trees, rank, turns[rank], units));
  }
  return made;
}

}  // namespace

std::vector<int> depths_of(const Parents& parents) {
  const Children children = children_of(parents);
  std::vector<int> depths(parents.size(), 0);
  std::vector<int> queue;
  for (std::size_t rank = 0; rank < parents.size(); ++rank) {
    if (parents[rank] == kNoParent) queue.push_back(static_cast<int>(rank));
  }
  TUTTI_ASSERT(queue.size() == 1);  // one root
  for (std::size_t i = 0; i < queue.size(); ++i) {
    for (const int child : children[static_cast<std::size_t>(queue[i])]) {
      depths[static_cast<std::size_t>(child)] = depths[static_cast<std::size_t>(queue[i])] + 1;
      queue.push_back(child);
    }
  }
  TUTTI_ASSERT(queue.size() == parents.size());  // no circle
  return depths;
}

int units_for(const std::vector<Parents>& lanes) {
  int deepest = 0;
  for (const Parents& parents : lanes) deepest = std::max(deepest, std::ranges::max(depths_of(parents)));
  return std::max(1, kUnitsPerHop * deepest);
}

int units_for(const std::vector<RootedTrees>& lanes) {
  int deepest = 1;
  for (const RootedTrees& trees : lanes) {
    for (const Parents& parents : trees) deepest = std::max(deepest, std::ranges::max(depths_of(parents)));
  }
  const std::size_t trees = lanes.size() * lanes.front().size() * lanes.front().size();
  return std::clamp(static_cast<int>(kTurnsMost / trees), 1, kRootedUnitsPerHop * deepest);
}

int slots_for(const std::vector<RootedTrees>& lanes) {
  int most = 1;
  for (const RootedTrees& trees : lanes) most = std::max(most, messages_in_turn(trees));
  // What comes early in a turn waits: for the next turn's sums some channels have no room otherwise.
  return std::clamp(2 * most, kTreeSlots, kTreeSlotsMost);
}

schedule::Schedule packed_trees(const std::vector<Parents>& lanes, int units, int ahead_per_hop) {
  TUTTI_ASSERT(!lanes.empty() && units > 0 && ahead_per_hop > 0);
  schedule::Schedule made = empty_schedule(Collective::kAllReduce, lanes.front().size(), lanes.size());
  made.shape.units = index(units);
  for (const Parents& parents : lanes) {
    TUTTI_ASSERT(parents.size() == made.ranks.size());
    const std::vector<Seat> seats = seats_of(parents);
    for (std::size_t rank = 0; rank < seats.size(); ++rank)
      made.ranks[rank].lanes.push_back(all_reduce(seats[rank], units, ahead_per_hop));
  }
  return made;
}

schedule::Schedule packed_out_trees(const std::vector<RootedTrees>& lanes, int units, int slots) {
  return rooted(Collective::kAllGather, lanes, units, slots);
}

schedule::Schedule packed_in_trees(const std::vector<RootedTrees>& lanes, int units, int slots) {
  return rooted(Collective::kReduceScatter, lanes, units, slots);
}

}  // namespace tutti::algorithm
