// Grouped: ranks in groups that are near each other (a socket, a last-level cache). Sums are made inside the groups first, one
// partial sum of each piece crosses to the group that finishes it, one result crosses back, and is spread inside. Between groups
// goes what one rank of each would send, not all of them.
//
// With k groups, of which the smallest has m ranks, the data is cut into m columns of k units. Rank c of a group owns column
// c there; ranks beyond m own none. Unit j of a column is finished by group j's owner. Two levels of two-shot (twoshot.cpp): after R.
// Rabenseifner's reduce-scatter and all-gather, grouped as in the multi-leader designs of K. Kandalla et al.,
// "Designing multi-leader-based Allgather algorithms for multi-core clusters", IPDPS 2009.
// With M bytes and all groups of m ranks, per rank: 2 k (m-1) messages of M/(m k) inside the group and 2 (k-1) to other groups,
// where twoshot sends 2 (k-1) m of this size.
//
//   group j, round t = 0 .. k-1, unit u = (j + 1 + t) mod k:
//     everybody      sends unit u of each column to the column's owner in the group
//     column's owner adds up u: for another group the sum goes to that group's owner; u = j, in the last round, is
//                    finished by the others' partial sums, and goes to them and to the own group
//   then, round t = 1 .. k-1, u = (j + t) mod k: owners take the result u from group u's owner and pass it on in the group
//
// Direct: inputs are pulled, results pushed. In place, unit u of a column is read by the group's owner only, before the result
// can exist.
#include "algorithm/pattern.h"

#include <algorithm>
#include <vector>

namespace tutti::algorithm {
namespace {

/// Members by group, in rank order.
std::vector<std::vector<int>> members_of(const Request& request) {
  std::vector<std::vector<int>> members;
  for (int rank = 0; rank < request.ranks; ++rank) {
    const auto group = static_cast<std::size_t>(group_of(request, rank));
    if (group >= members.size()) members.resize(group + 1);
    members[group].push_back(rank);
  }
  return members;
}

class Grid {
 public:
  Grid(const Request& request, int rank)
      : members_(members_of(request)),
        groups_(static_cast<int>(members_.size())),
        rank_(rank),
        group_(group_of(request, rank)) {
    columns_ = static_cast<int>(std::ranges::min(members_, {}, &std::vector<int>::size).size());
    const std::vector<int>& mine = members(group_);
    column_ = static_cast<int>(std::ranges::find(mine, rank) - mine.begin());
  }

  LaneProgram program() {
    for (int round = 0; round < groups_; ++round) collect(around(group_, 1 + round, groups_));
    take_from_owners(group_);
    for (int round = 1; round < groups_; ++round) spread(around(group_, round, groups_));
    return std::move(lane_);
  }

 private:
  const std::vector<int>& members(int group) const { return members_[static_cast<std::size_t>(group)]; }
  int owner(int group, int column) const { return members(group)[static_cast<std::size_t>(column)]; }
  bool owns() const { return column_ < columns_; }
  Span unit(int column, int group) const { return {0, index(column * groups_ + group)}; }
  Endpoint from_input(int column, int group) const { return input(unit(column, group)); }
  Endpoint to_output(int column, int group) const { return output(unit(column, group)); }
  /// What the owners of other groups make of a unit before it is finished.
  Endpoint partial_sum(int of_group, int with) const { return sum_message(with, members(of_group).size() == 1); }

  void collect(int unit_of) {
    for (int distance = 1; distance <= columns_; ++distance) {
      const int column = around(std::min(column_, columns_ - 1), distance, columns_);
      if (column == column_) continue;
      step(lane_).from(from_input(column, unit_of)).to(pull(owner(group_, column), from_input(column, unit_of)));
    }
    if (!owns()) return;
    auto sum = step(lane_);
    for (int group = 0; group < groups_; ++group) {
      if (group == group_) {
        for (const int peer : members(group_))
          sum.from(peer == rank_ ? from_input(column_, unit_of) : pull(peer, from_input(column_, unit_of)));
      } else if (unit_of == group_) {
        sum.from(partial_sum(group, owner(group, column_)));
      }
    }
    if (unit_of != group_) {
      sum.to(partial_sum(group_, owner(unit_of, column_)));
      return;
    }
    sum.finish().to(to_output(column_, group_));
    for (int group = 0; group < groups_; ++group)
      if (group != group_) sum.to(push(owner(group, column_), to_output(column_, group_)));
    pass_on(sum, group_);
  }

  /// To the others of the group.
  void pass_on(schedule::StepBuilder& from, int unit_of) const {
    for (const int peer : members(group_))
      if (peer != rank_) from.to(push(peer, to_output(column_, unit_of)));
  }

  void take_from_owners(int unit_of) {
    for (int distance = 1; distance <= columns_; ++distance) {
      const int column = around(std::min(column_, columns_ - 1), -distance, columns_);
      if (column == column_) continue;
      step(lane_).from(push(owner(group_, column), to_output(column, unit_of))).to(to_output(column, unit_of));
    }
  }

  void spread(int unit_of) {
    if (owns()) {
      auto result =
          step(lane_).from(push(owner(unit_of, column_), to_output(column_, unit_of))).to(to_output(column_, unit_of));
      pass_on(result, unit_of);
    }
    take_from_owners(unit_of);
  }

  std::vector<std::vector<int>> members_;
  int groups_;
  int rank_;
  int group_;
  int columns_ = 1;
  int column_ = 0;  ///< that this rank owns; columns_ and more: none
  LaneProgram lane_;
};

}  // namespace

schedule::Shape unit_per_column(const Request& request) {
  const auto members = members_of(request);
  const auto columns = std::ranges::min(members, {}, &std::vector<int>::size).size();
  schedule::Shape shape;
  shape.units = static_cast<std::uint32_t>(columns * members.size());
  return shape;
}

RankProgram grouped(const Request& request, int rank) { return one_lane(Grid(request, rank).program()); }

}  // namespace tutti::algorithm
