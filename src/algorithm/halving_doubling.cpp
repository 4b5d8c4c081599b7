// Recursive halving and doubling: ranks in pairs exchange half of what they are still responsible for, then half of
// that, until two are left with the same part; and the same way back to gather. An all-reduce's last pairs exchange all that they have and
// both add it up: as many bytes as two halves there and back, in one message in place of two.
//
// From: R. Rabenseifner, "Optimization of collective reduction operations", ICCS 2004 (all_reduce); R. Thakur,
// R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19 (2005), its
// sections on all-gather and reduce-scatter. With n a power of two and M bytes per rank:
//   all_reduce                  2 log2 n - 1 messages, 2 M (n-1)/n bytes
//   reduce_scatter, all_gather  log2 n hops, M (n-1)/n bytes; a message per block, as blocks are apart in memory
// Other rank counts: let P be the power of two below n. Of the first 2 (n-P) ranks the even ones are *guests*: they
// give their data to the odd one after them, their *host*, and get the result from it. That costs two more hops and up
// to M bytes each. The ranks that are left are the *players*, numbered 0 to P-1.
//
// Direct: all_gather pushes; every place is written once. The sums are exchanged through slots.
#include "algorithm/pattern.h"

#include <algorithm>

namespace tutti::algorithm {
namespace {

/// Who plays and for whom.
struct Players {
  int ranks;
  int count = power_of_two_below(ranks);
  int guests = ranks - count;

  bool is_guest(int rank) const { return rank < 2 * guests && rank % 2 == 0; }
  bool is_host(int rank) const { return rank < 2 * guests && rank % 2 == 1; }
  int player_of(int rank) const { return rank < 2 * guests ? rank / 2 : rank - guests; }
  int rank_of(int player) const { return player < guests ? 2 * player + 1 : player + guests; }
  /// The blocks of players `first` to `last` - 1 (their own and their guests') are adjacent: this is the first.
  int first_block(int player) const { return player < guests ? 2 * player : player + guests; }
};

/// Adjacent numbers first to last - 1.
struct Range {
  int first;
  int last;
  int size() const { return last - first; }
};

/// What a player keeps and what its partner keeps, when a group of `group` adjacent players is cut in two.
struct Cut {
  int partner;
  Range mine;
  Range theirs;
};
Cut cut(int player, int group) {
  const int half = group / 2;
  const int mine = player / half * half;
  const int theirs = (player ^ half) / half * half;
  return {player ^ half, {mine, mine + half}, {theirs, theirs + half}};
}

/// Of both units of a pair. The lower player's sum is the first operand at both, so that they have the same bits.
void exchange_in_pairs(LaneProgram& lane, const Players& players, int player, bool in_output) {
  const auto [partner, mine, theirs] = cut(player, 2);
  const int peer = players.rank_of(partner);
  const Span both{0, index(std::min(mine.first, theirs.first)), 2};
  auto sent = step(lane).from(in_output ? output(both) : input(both));
  if (!in_output) sent.to(output(both));
  sent.to(message(peer, 2));
  const bool lower = player < partner;
  step(lane)
      .from(lower ? output(both) : message(peer, 2))
      .from(lower ? message(peer, 2) : output(both))
      .to(output(both))
      .finish();
}

/// Units are players': unit p is player p's part of the sum. Sums under way are kept in the output. The last pairs' too, though two ranks
/// could do without: where each stands for a host (hierarchical.h), what is sent is what is added up.
LaneProgram all_reduce(const Players& players, int rank) {
  LaneProgram lane;
  const auto units = index(players.count);
  if (players.is_guest(rank)) {
    step(lane).from(input({0, 0, units})).to(message(rank + 1, units));
    step(lane).from(message(rank + 1, units)).to(output({0, 0, units}));
    return lane;
  }
  const bool host = players.is_host(rank);
  if (host) step(lane).from(message(rank - 1, units)).from(input({0, 0, units})).to(output({0, 0, units}));

  const int player = players.player_of(rank);
  bool in_output = host;  // where the sum so far is
  for (int group = players.count; group > 2; group /= 2) {
    const auto [partner, mine, theirs] = cut(player, group);
    const int peer = players.rank_of(partner);
    const auto width = index(group / 2);
    const auto sum_so_far = [&](int unit) {
      return in_output ? output({0, index(unit), width}) : input({0, index(unit), width});
    };
    step(lane).from(sum_so_far(theirs.first)).to(message(peer, width));
    step(lane).from(message(peer, width)).from(sum_so_far(mine.first)).to(output({0, index(mine.first), width}));
    in_output = true;
  }
  exchange_in_pairs(lane, players, player, in_output);
  for (int group = 4; group <= players.count; group *= 2) {
    const auto [partner, mine, theirs] = cut(player, group);
    const int peer = players.rank_of(partner);
    const auto width = index(group / 2);
    step(lane).from(output({0, index(mine.first), width})).to(message(peer, width));
    step(lane).from(message(peer, width)).to(output({0, index(theirs.first), width}));
  }
  if (host) step(lane).from(output({0, 0, units})).to(message(rank - 1, units));
  return lane;
}

/// Sums under way are kept in scratch, a block for each. Sends and receives take turns, so that two slots are enough.
LaneProgram reduce_scatter(const Players& players, int rank) {
  LaneProgram lane;
  if (players.is_guest(rank)) {
    for (int block = 0; block < players.ranks; ++block) step(lane).from(input({index(block)})).to(message(rank + 1));
    step(lane).from(message(rank + 1)).to(output({0}));
    return lane;
  }
  const bool host = players.is_host(rank);
  for (int block = 0; host && block < players.ranks; ++block) {
    step(lane).from(message(rank - 1)).from(input({index(block)})).to(scratch({index(block)}));
  }
  const int player = players.player_of(rank);
  bool in_scratch = host;
  for (int group = players.count; group > 1; group /= 2) {
    const auto [partner, mine, theirs] = cut(player, group);
    const int peer = players.rank_of(partner);
    const Range keep = {players.first_block(mine.first), players.first_block(mine.last)};
    const Range give = {players.first_block(theirs.first), players.first_block(theirs.last)};
    const auto sum_so_far = [&](int block) { return in_scratch ? scratch({index(block)}) : input({index(block)}); };
    for (int i = 0; i < std::max(keep.size(), give.size()); ++i) {
      if (i < give.size()) step(lane).from(sum_so_far(give.first + i)).to(message(peer));
      if (i >= keep.size()) continue;
      const int block = keep.first + i;
      auto sum = step(lane).from(message(peer)).from(sum_so_far(block));
      if (group > 2) {
        sum.to(scratch({index(block)}));
      } else {
        sum.to(block == rank ? output({0}) : message(rank - 1)).finish();
      }
    }
    in_scratch = true;
  }
  return lane;
}

/// Sends and receives take turns, as above.
LaneProgram all_gather(const Players& players, int rank) {
  LaneProgram lane;
  const auto place = [](int block) { return output({index(block)}); };
  auto own = step(lane).from(input({0})).to(place(rank));
  if (players.is_guest(rank)) {
    own.to(push(rank + 1, place(rank)));
    for (int block = 0; block < players.ranks; ++block) {
      if (block != rank) step(lane).from(push(rank + 1, place(block))).to(place(block));
    }
    return lane;
  }
  const bool host = players.is_host(rank);
  if (host) step(lane).from(push(rank - 1, place(rank - 1))).to(place(rank - 1));

  const int player = players.player_of(rank);
  for (int group = 2; group <= players.count; group *= 2) {
    const auto [partner, mine, theirs] = cut(player, group);
    const int peer = players.rank_of(partner);
    const Range give = {players.first_block(mine.first), players.first_block(mine.last)};
    const Range take = {players.first_block(theirs.first), players.first_block(theirs.last)};
    for (int i = 0; i < std::max(give.size(), take.size()); ++i) {
      if (i < give.size()) step(lane).from(place(give.first + i)).to(push(peer, place(give.first + i)));
      if (i < take.size()) step(lane).from(push(peer, place(take.first + i))).to(place(take.first + i));
    }
  }
  for (int block = 0; host && block < players.ranks; ++block) {
    if (block != rank - 1) step(lane).from(place(block)).to(push(rank - 1, place(block)));
  }
  return lane;
}

}  // namespace

RankProgram halving_doubling(const Request& request, int rank) {
  if (request.ranks == 1) return alone(request);
  const Players players{request.ranks};
  switch (request.collective) {
    case Collective::kAllReduce: return one_lane(all_reduce(players, rank));
    case Collective::kReduceScatter: return one_lane(reduce_scatter(players, rank));
    case Collective::kAllGather: return one_lane(all_gather(players, rank));
    default: return {};
  }
}

}  // namespace tutti::algorithm
