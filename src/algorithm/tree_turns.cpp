// A rank that served one unit of all trees, then the next one, would wait in each for what comes the longest way, and links
// would idle meanwhile. So units overlap: unit u of a tree is a rank's business in turn u + d, d its hops from the root. What it
// sends in a turn its children need in their next one, so that there is a turn's time for it to come, in whatever order it does.
//
// A turn's messages of a channel must fit its slots. Where more trees share a channel than that, roots are in groups that begin
// their units in turn: unit u of group g of G is served in turn G u + g + d. The order is found by letting units flow: each rank
// passes on, one unit at a time, that of the earliest turn among those at the heads of its channels whose way on has a free slot.
// What has ended once ends always: ranks are sequential and channels are FIFOs.
#include "algorithm/tree_turns.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <tuple>
#include <utility>

namespace tutti::algorithm {

namespace {

std::size_t at(int number) { return static_cast<std::size_t>(number); }

/// A rank's place in a tree.
struct Stand {
  int parent = kNoParent;
  int depth = 0;
  std::vector<int> children;
};
using Stands = std::vector<std::vector<Stand>>;  ///< by root and rank

Stands stands_in(const std::vector<Parents>& trees) {
  Stands stands(trees.size());
  for (std::size_t root = 0; root < trees.size(); ++root) {
    const Parents& parents = trees[root];
    const std::vector<int> depths = depths_of(parents);
    stands[root].resize(parents.size());
    for (std::size_t rank = 0; rank < parents.size(); ++rank) {
      stands[root][rank].parent = parents[rank];
      stands[root][rank].depth = depths[rank];
      if (parents[rank] != kNoParent) stands[root][at(parents[rank])].children.push_back(static_cast<int>(rank));
    }
  }
  return stands;
}

struct RootGroups {
  int count = 1;
  std::vector<int> of_root;
  int most = 0;  ///< messages of a channel in a turn
};

/// Each root goes where its messages meet the fewest.
RootGroups grouped(const Stands& stands, int count) {
  const std::size_t ranks = stands.size();
  RootGroups groups{count, std::vector<int>(ranks, 0)};
  std::vector<int> messages(ranks * ranks * at(count), 0);  // by channel and turn
  const auto place = [&](std::size_t root, std::size_t rank, int group) -> int& {
    const Stand& stand = stands[root][rank];
    return messages[(at(stand.parent) * ranks + rank) * at(count) + at((group + stand.depth) % count)];
  };
  for (std::size_t root = 0; root < ranks; ++root) {
    std::optional<std::pair<int, int>> least;  // the most messages of a channel, and in all
    for (int group = 0; group < count; ++group) {
      std::pair met{0, 0};
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        if (rank == root) continue;
        const int already = place(root, rank, group);
        met = {std::max(met.first, already), met.second + already};
      }
      if (least && met >= *least) continue;
      least = met;
      groups.of_root[root] = group;
    }
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      if (rank != root) groups.most = std::max(groups.most, ++place(root, rank, groups.of_root[root]));
    }
  }
  return groups;
}

class Flow {
 public:
  Flow(const Stands& stands, const RootGroups& groups, int units, int slots)
      : stands_(stands),
        groups_(groups),
        ranks_(stands.size()),
        units_(units),
        slots_(at(slots)),
        held_(ranks_ * ranks_ * slots_),
        channels_(ranks_ * ranks_),
        own_(ranks_, 0),
        senders_(ranks_) {
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      for (const std::vector<Stand>& tree : stands) {
        const int parent = tree[rank].parent;
        if (parent != kNoParent && std::ranges::find(senders_[rank], parent) == senders_[rank].end())
          senders_[rank].push_back(parent);
      }
    }
  }

  /// Nothing where it gets stuck.
  std::optional<std::vector<std::vector<Turn>>> orders() {
    std::vector<std::vector<Turn>> orders(ranks_);
    for (std::size_t left = ranks_ * ranks_ * at(units_); left > 0;) {
      std::vector<std::pair<std::size_t, Turn>> passed;
      for (std::size_t rank = 0; rank < ranks_; ++rank) {
        if (const std::optional<Turn> turn = next(rank)) passed.emplace_back(rank, *turn);
      }
      if (passed.empty()) return std::nullopt;
      // What is passed on can be taken from the next time on.
      for (const auto& [rank, turn] : passed) {
        orders[rank].push_back(turn);
        pass(rank, turn);
      }
      left -= passed.size();
    }
    return orders;
  }

 private:
  /// Counts of what was sent and what was taken; the difference is in held_.
  struct Channel {
    std::size_t sent = 0;
    std::size_t taken = 0;
  };
  Channel& channel(std::size_t from, std::size_t to) { return channels_[from * ranks_ + to]; }
  Turn& slot(std::size_t from, std::size_t to, std::size_t number) {
    return held_[(from * ranks_ + to) * slots_ + number % slots_];
  }
  const Stand& stand(std::size_t rank, const Turn& turn) const { return stands_[at(turn.root)][rank]; }

  bool can_pass(std::size_t rank, const Turn& turn) {
    return std::ranges::all_of(stand(rank, turn).children, [&](int child) {
      const Channel& onward = channel(rank, at(child));
      return onward.sent - onward.taken < slots_;
    });
  }

  std::optional<Turn> next(std::size_t rank) {
    std::optional<Turn> best;
    const auto key = [&](const Turn& turn) {
      const int depth = stand(rank, turn).depth;
      return std::tuple(turn.unit * groups_.count + groups_.of_root[at(turn.root)] + depth, depth, turn.root);
    };
    const auto consider = [&](const Turn& turn) {
      if (can_pass(rank, turn) && (!best || key(turn) < key(*best))) best = turn;
    };
    if (own_[rank] < units_) consider({own_[rank], static_cast<int>(rank)});
    for (const int sender : senders_[rank]) {
      const Channel& came = channel(at(sender), rank);
      if (came.sent != came.taken) consider(slot(at(sender), rank, came.taken));
    }
    return best;
  }

  void pass(std::size_t rank, const Turn& turn) {
    const Stand& here = stand(rank, turn);
    if (here.parent == kNoParent) {
      ++own_[rank];
    } else {
      ++channel(at(here.parent), rank).taken;
    }
    for (const int child : here.children) slot(rank, at(child), channel(rank, at(child)).sent++) = turn;
  }

  const Stands& stands_;
  const RootGroups& groups_;
  std::size_t ranks_;
  int units_;
  std::size_t slots_;
  std::vector<Turn> held_;                 ///< by sender, receiver and slot
  std::vector<Channel> channels_;          ///< by sender and receiver
  std::vector<int> own_;                   ///< by rank: units that it has begun
  std::vector<std::vector<int>> senders_;  ///< by rank
};

/// One unit of one tree after another: one slot is enough.
std::vector<std::vector<Turn>> one_by_one(std::size_t ranks, int units) {
  std::vector<Turn> all;
  for (int unit = 0; unit < units; ++unit) {
    for (int root = 0; root < static_cast<int>(ranks); ++root) all.push_back({unit, root});
  }
  return std::vector(ranks, all);
}

}  // namespace

int messages_in_turn(const std::vector<Parents>& trees) { return grouped(stands_in(trees), 1).most; }

std::vector<std::vector<Turn>> tree_turns(const std::vector<Parents>& trees, int units, int slots) {
  const Stands stands = stands_in(trees);
  const int ranks = static_cast<int>(trees.size());
  for (int count = 1; count <= ranks; ++count) {
    const RootGroups groups = grouped(stands, count);
    if (groups.most > slots) continue;
    if (auto orders = Flow(stands, groups, units, slots).orders()) return *std::move(orders);
  }
  return one_by_one(trees.size(), units);
}

}  // namespace tutti::algorithm
