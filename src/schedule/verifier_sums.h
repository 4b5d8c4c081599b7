// What a place holds, symbolically: one rank's input, or the sum of several as it was added up. Part of the verifier.
//
// A sum lists its parts in the order of the addition; a part is an input or another sum. Next to that tree stands what the
// checks ask for, so that none of them walks it: how many ranks, which ones (as intervals: a ring's and a tree's sums
// are one or two), and whether the order is the left fold in rank order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tutti::schedule::verifier {

class Sums {
 public:
  using Id = std::uint32_t;
  static constexpr Id kNothing = 0;  ///< what a place holds before anything was written there
  /// Intervals that the parts of all sums may have together: what they take to be sorted, and no sum has more than its parts, in all
  /// about 256 MiB.
  static constexpr std::size_t kIntervalsMax = std::size_t{1} << 25;

  struct Sum {
    std::uint32_t block = 0;  ///< of the ranks' inputs, all the same
    std::uint32_t unit = 0;
    std::uint32_t count = 0;  ///< ranks
    std::uint32_t first_part = 0;
    std::uint32_t part_count = 0;  ///< 0: the input of rank `front`
    std::uint32_t first_interval = 0;
    std::uint32_t interval_count = 0;
    std::uint32_t front = 0;  ///< the first and the last rank in the order of addition
    std::uint32_t back = 0;
    bool ascending = true;  ///< ranks in that order
    bool left_fold = true;  ///< ((a + b) + c) + ...
    bool finished = false;
  };

  Sums() : sums_(1) {}

  const Sum& operator[](Id id) const { return sums_[id]; }

  Id input(std::uint32_t rank, std::uint32_t block, std::uint32_t unit);
  /// A rank that is in two of the parts, if there is one.
  std::optional<std::uint32_t> repeated_rank(std::span<const Id> parts);
  /// The parts in order; no rank may be in two of them. kNothing when there is no room for more sums.
  Id add(std::span<const Id> parts, bool finished);

  /// Equal in every respect: the same ranks, added up in the same way.
  bool same(Id a, Id b) const;
  /// (((0 + 1) + 2) + ...
  bool in_rank_order(Id id) const { return sums_[id].left_fold && sums_[id].ascending; }
  /// Ranks in the order they were added.
  std::vector<std::uint32_t> ranks(Id id) const;
  /// "rank 2, in[0.1]", "the sum of ranks 2 0 1, in[0.1], finished"
  std::string name(Id id) const;
  /// " (without rank 1, 5)", for a sum that should be of all `ranks`; empty where none is missing.
  std::string missing(Id id, std::uint32_t ranks) const;

 private:
  struct Interval {
    std::uint32_t begin = 0;
    std::uint32_t end = 0;
  };

  std::span<const Interval> intervals(const Sum& s) const {
    return {intervals_.data() + s.first_interval, s.interval_count};
  }
  std::span<const Id> parts(const Sum& s) const { return {parts_.data() + s.first_part, s.part_count}; }
  void collect_intervals(std::span<const Id> parts);

  std::vector<Sum> sums_;
  std::vector<Id> parts_;
  std::vector<Interval> intervals_;
  std::vector<Interval> merged_;   ///< scratch of collect_intervals
  std::size_t merged_in_all_ = 0;  ///< of all sums
};

}  // namespace tutti::schedule::verifier
