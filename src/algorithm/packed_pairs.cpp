// Where links differ in their two directions, the best way to a root and the best way back are different trees: Edmonds'
// branchings once in the network and once in the reversed one. With n ranks and a share of M bytes each tree moves M bytes
// over each of its n - 1 edges.
//
// A rank that is d_up hops below the root in one tree and d_down in the other runs d_up + d_down units ahead: as many as are
// on their way between its sending a unit and getting the result, one for each hop. If a sends to b in both trees, up as
// b's child and down as b's parent, both are equally far ahead (d_up is one more at a, d_down one more at b), so that both
// have the same order for what goes through that channel.
//
// Direct: results are pushed down. In place that is safe: a result contains the receiver's input, so it has been read.
#include "algorithm/packed_pairs.h"

#include "algorithm/pattern.h"
#include "base/assert.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace tutti::algorithm {

namespace {

/// A rank's place in one tree.
struct Place {
  int parent = kNoParent;
  int depth = 0;
  std::vector<int> children;
};

std::vector<Place> places_in(const Parents& parents) {
  const std::vector<int> depths = depths_of(parents);
  std::vector<Place> places(parents.size());
  for (std::size_t rank = 0; rank < parents.size(); ++rank) {
    places[rank].parent = parents[rank];
    places[rank].depth = depths[rank];
    if (parents[rank] != kNoParent)
      places[static_cast<std::size_t>(parents[rank])].children.push_back(static_cast<int>(rank));
  }
  return places;
}

class Pair {
 public:
  explicit Pair(const TreePair& trees) : up_(places_in(trees.up)), down_(places_in(trees.down)) {
    for (std::size_t rank = 0; rank < up_.size(); ++rank)
      TUTTI_ASSERT((up_[rank].parent == kNoParent) == (down_[rank].parent == kNoParent));  // one root
  }

  LaneProgram program(std::size_t rank, int units) const {
    LaneProgram lane;
    const bool is_root = up_[rank].parent == kNoParent;
    const int ahead = is_root ? 0 : std::min(up_[rank].depth + down_[rank].depth, units);
    for (int unit = 0; unit < units + ahead; ++unit) {
      if (unit < units) send_up(lane, rank, index(unit));
      if (unit >= ahead && !is_root) pass_down(lane, rank, index(unit - ahead));
    }
    return lane;
  }

 private:
  void send_up(LaneProgram& lane, std::size_t rank, std::uint32_t unit) const {
    auto sum = step(lane).from(input({0, unit}));
    for (const int child : up_[rank].children)
      sum.from(sum_message(child, up_[static_cast<std::size_t>(child)].children.empty()));
    if (up_[rank].parent != kNoParent) {
      sum.to(sum_message(up_[rank].parent, up_[rank].children.empty()));
      return;
    }
    const Endpoint place = output({0, unit});
    sum.to(place).finish();
    for (const int child : down_[rank].children) sum.to(push(child, place));
  }

  void pass_down(LaneProgram& lane, std::size_t rank, std::uint32_t unit) const {
    const Endpoint place = output({0, unit});
    auto result = step(lane).from(push(down_[rank].parent, place)).to(place);
    for (const int child : down_[rank].children) result.to(push(child, place));
  }

  std::vector<Place> up_, down_;
};

}  // namespace

int units_for(const std::vector<TreePair>& lanes) {
  int deepest = 0;
  for (const TreePair& pair : lanes)
    deepest = std::max(deepest, std::ranges::max(depths_of(pair.up)) + std::ranges::max(depths_of(pair.down)));
  return std::max(1, kUnitsPerHop * deepest / 2);
}

schedule::Schedule packed_pairs(const std::vector<TreePair>& lanes, int units) {
  TUTTI_ASSERT(!lanes.empty() && units > 0);
  schedule::Schedule made;
  made.algorithm = "packed_pairs";
  made.request = {Collective::kAllReduce, static_cast<int>(lanes.front().up.size()), 0, 0};
  made.shape.lanes = static_cast<std::uint32_t>(lanes.size());
  made.shape.units = index(units);
  made.ranks.resize(lanes.front().up.size());
  for (const TreePair& trees : lanes) {
    TUTTI_ASSERT(trees.up.size() == made.ranks.size() && trees.down.size() == made.ranks.size());
    const Pair pair(trees);
    for (std::size_t rank = 0; rank < made.ranks.size(); ++rank)
      made.ranks[rank].lanes.push_back(pair.program(rank, units));
  }
  return made;
}

}  // namespace tutti::algorithm
