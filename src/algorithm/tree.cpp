// Double binary tree: two trees, each for half of the data (a lane), made so that no rank passes data on in both.
//
// From: P. Sanders, J. Speck, J. L. Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan",
// Parallel Computing 35 (2009). Of M bytes a leaf passes up M/2; an inner rank takes in M (M/2 from each child) and
// passes up M/2. So over both trees a rank sends and receives at most M bytes upwards, and the same downwards, in at
// most 4 messages out and 4 in; about log2 n hops up and as many down.
//
// The first tree is the in-order tree: with positions counted from 1, a position's height is the number of its trailing
// zero bits, so odd positions are leaves. The second is its mirror image (even sizes) or the same shifted by one (odd
// sizes): either way a rank that is inner in one is a leaf in the other.
//
//   7 ranks        4               all_reduce: both trees over all n ranks.
//              2       6           broadcast, reduce: both trees over the n-1 others, numbered from the root on;
//            1   3   5   7         the root feeds (or collects from) the top of each.
//
// Rounds of broadcast and reduce follow each other through the tree. All-reduce's hardly do: a rank's next round goes
// up when this one has come down, so for large data its time grows with log2 n.
// Direct: results are pushed down. In place that is safe: a result contains the receiver's input, so it has been read.
#include "algorithm/pattern.h"

#include <array>

namespace tutti::algorithm {
namespace {

constexpr int kNone = -1;

struct Neighbours {
  int parent = kNone;
  std::array<int, 2> children = {kNone, kNone};

  bool is_leaf() const { return children[0] == kNone && children[1] == kNone; }
};

/// The in-order tree of `size` positions, counted from 1; 0 stands for none.
struct InOrder {
  int size;

  static int low_bit(int position) { return position & -position; }

  int top() const { return power_of_two_below(size); }
  int parent(int position) const {
    if (position == top()) return 0;
    do {
      const int height = low_bit(position);
      position = (position ^ height) | (2 * height);
    } while (position > size);  // there is no such position: the next one up takes its place
    return position;
  }
  int left(int position) const {
    const int reach = low_bit(position) / 2;
    return reach == 0 ? 0 : position - reach;
  }
  int right(int position) const {
    int reach = low_bit(position) / 2;
    while (reach > 0 && position + reach > size) reach /= 2;
    return reach == 0 ? 0 : position + reach;
  }
};

/// One of the two trees over members 0 to size - 1.
struct Tree {
  int lane;
  int size;

  bool mirrored() const { return lane == 1 && size % 2 == 0; }
  int shift() const { return lane == 1 && size % 2 == 1 ? 1 : 0; }
  int member_at(int position) const {
    if (position == 0) return kNone;
    return mirrored() ? size - position : around(position - 1, -shift(), size);
  }
  int position_of(int member) const { return mirrored() ? size - member : around(member, shift(), size) + 1; }

  int top() const { return member_at(InOrder{size}.top()); }
  Neighbours neighbours(int member) const {
    const InOrder tree{size};
    const int position = position_of(member);
    return {member_at(tree.parent(position)), {member_at(tree.left(position)), member_at(tree.right(position))}};
  }
};

LaneProgram all_reduce(int lane_number, const Request& request, int rank) {
  LaneProgram lane;
  const Tree tree{lane_number, request.ranks};
  const Neighbours at = tree.neighbours(rank);
  const Endpoint place = output({0});
  const auto pass_down = [&](schedule::StepBuilder& down) {
    for (const int child : at.children) {
      if (child != kNone) down.to(push(child, place));
    }
  };

  auto up = step(lane).from(input({0}));
  for (const int child : at.children) {
    if (child != kNone) up.from(sum_message(child, tree.neighbours(child).is_leaf()));
  }
  if (at.parent == kNone) {
    up.to(place).finish();
    pass_down(up);
    return lane;
  }
  up.to(sum_message(at.parent, at.is_leaf()));
  auto down = step(lane).from(push(at.parent, place)).to(place);
  pass_down(down);
  return lane;
}

/// Neighbours as ranks in a tree of all but the root, the root above its top.
Neighbours below_root(int lane_number, const Request& request, int rank) {
  const Tree others{lane_number, request.ranks - 1};
  const auto rank_of = [&](int member) {
    return member == kNone ? kNone : around(request.root, 1 + member, request.ranks);
  };
  if (rank == request.root) return {kNone, {rank_of(others.top()), kNone}};
  const Neighbours at = others.neighbours(around(rank, -request.root - 1, request.ranks));
  return {at.parent == kNone ? request.root : rank_of(at.parent), {rank_of(at.children[0]), rank_of(at.children[1])}};
}

LaneProgram broadcast(int lane_number, const Request& request, int rank) {
  LaneProgram lane;
  const Neighbours at = below_root(lane_number, request, rank);
  const Endpoint place = output({0});
  auto pass = step(lane).from(rank == request.root ? input({0}) : push(at.parent, place)).to(place);
  for (const int child : at.children) {
    if (child != kNone) pass.to(push(child, place));
  }
  return lane;
}

LaneProgram reduce(int lane_number, const Request& request, int rank) {
  LaneProgram lane;
  const Neighbours at = below_root(lane_number, request, rank);
  auto pass = step(lane).from(input({0}));
  for (const int child : at.children) {
    if (child != kNone) pass.from(sum_message(child, below_root(lane_number, request, child).is_leaf()));
  }
  if (rank == request.root) {
    pass.to(output({0})).finish();
  } else {
    pass.to(sum_message(at.parent, at.is_leaf()));
  }
  return lane;
}

}  // namespace

RankProgram tree(const Request& request, int rank) {
  if (request.ranks == 1) return alone(request);
  RankProgram program;
  for (int lane = 0; lane < 2; ++lane) {
    switch (request.collective) {
      case Collective::kAllReduce: program.lanes.push_back(all_reduce(lane, request, rank)); break;
      case Collective::kBroadcast: program.lanes.push_back(broadcast(lane, request, rank)); break;
      case Collective::kReduce: program.lanes.push_back(reduce(lane, request, rank)); break;
      default: break;
    }
  }
  return program;
}

}  // namespace tutti::algorithm
