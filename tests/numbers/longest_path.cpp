#include "longest_path.h"

#include "algorithm/pattern.h"
#include "base/assert.h"
#include "schedule_sums.h"

#include <algorithm>
#include <cstring>

namespace tutti::numbers {
namespace {

/// What stands for an element.
struct Counters {
  std::uint16_t operations = 0;
  std::uint16_t roundings = 0;
};

/// A kernel's fold: an addition for each further source, then one rounding. One source alone is a copy.
void count_fold(const ReduceArgs& args) {
  for (std::size_t i = 0; i < args.count; ++i) {
    Counters sum;
    for (int s = 0; s < args.source_count; ++s) {
      const Counters next = static_cast<const Counters*>(args.sources[s])[i];
      if (s == 0) {
        sum = next;
        continue;
      }
      sum.operations = static_cast<std::uint16_t>(std::max(sum.operations, next.operations) + 1);
      sum.roundings = std::max(sum.roundings, next.roundings);
    }
    for (int d = 0; d < args.destination_count; ++d) {
      const bool wide = args.wide_destinations != nullptr && args.wide_destinations[d];
      Counters& result = static_cast<Counters*>(args.destinations[d])[i] = sum;
      if (args.source_count > 1 && !wide) ++result.roundings;
    }
  }
}

int ceil_log2(int number) {
  int log = 0;
  while ((1 << log) < number) ++log;
  return log;
}
int floor_log2(int number) { return ceil_log2(number + 1) - 1; }

/// Up the in-order tree of `size` ranks.
LongestPath up_the_tree(int size) {
  if (size == 1) return {0, 0};
  const int height = floor_log2(size);
  const bool top_has_one_child = size == 1 << height;
  return {2 * height - (top_has_one_child ? 1 : 0), height};
}

/// Groups of consecutive ranks, as where no request says other ones: the sums of the groups before the finishing one come
/// first, then its own inputs, then the other groups' sums.
LongestPath through_groups(int ranks) {
  std::vector<int> sizes;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto group = static_cast<std::size_t>(algorithm::group_of({Collective::kAllReduce, ranks, 0, 0}, rank));
    if (group >= sizes.size()) sizes.resize(group + 1);
    ++sizes[group];
  }
  if (sizes.size() == 1) return {ranks - 1, 1};
  int most = 0;
  for (std::size_t finishing = 0; finishing < sizes.size(); ++finishing) {
    int operations = -1;
    for (std::size_t group = 0; group < sizes.size(); ++group) {
      if (group == finishing) {
        operations += sizes[group];
      } else {
        operations = std::max(operations, sizes[group] - 2 + (operations < 0 ? 0 : 1)) + 1;
      }
    }
    most = std::max(most, operations);
  }
  return {most, 2};
}

}  // namespace

LongestPath counted_path(const algorithm::Algorithm& algorithm, const schedule::Request& request, bool wide_wire) {
  const schedule::Shape shape = algorithm.shape(request);
  // A cache line per unit and lane; of many units some.
  const std::uint64_t count = std::uint64_t{16} * std::min<std::uint32_t>(shape.units, 128) * shape.lanes;
  const CompactSchedule schedule(algorithm, request, count, sizeof(Counters));
  const Arithmetic arithmetic{count_fold, 0, {}, wide_wire};
  const auto n = static_cast<std::size_t>(request.ranks);
  const std::vector<Counters> input(count * shape.input_blocks);
  std::vector<std::vector<Counters>> outputs(n, std::vector<Counters>(count * shape.output_blocks));
  std::vector<const std::byte*> from(n, reinterpret_cast<const std::byte*>(input.data()));
  std::vector<std::byte*> to;
  for (auto& output : outputs) to.push_back(reinterpret_cast<std::byte*>(output.data()));
  ScheduleSums(schedule, arithmetic).run(from, to);
  LongestPath longest;
  for (const auto& output : outputs) {
    for (const Counters& c : output) {
      longest.operations = std::max<int>(longest.operations, c.operations);
      longest.roundings = std::max<int>(longest.roundings, c.roundings);
    }
  }
  return longest;
}

LongestPath documented_path(const algorithm::Algorithm& algorithm, const schedule::Request& request, bool wide_wire) {
  const int n = request.ranks;
  if (n == 1) return {0, 0};
  if (wide_wire) return {documented_path(algorithm, request).operations, 1};
  if (algorithm.name == "ring" || algorithm.name == "chain") return {n - 1, n - 1};
  if (algorithm.name == "oneshot" || algorithm.name == "twoshot") return {n - 1, 1};
  if (algorithm.name == "halving_doubling") return {ceil_log2(n), ceil_log2(n)};
  if (algorithm.name == "grouped") return through_groups(n);
  if (algorithm.name == "binomial") return {ceil_log2(n), floor_log2(n)};
  if (algorithm.name == "tree" && request.collective == Collective::kAllReduce) return up_the_tree(n);
  if (algorithm.name == "tree") {
    const LongestPath below = up_the_tree(n - 1);
    return {below.operations + 1, below.roundings + 1};
  }
  TUTTI_ASSERT(false);
  return {};
}

std::vector<const algorithm::Algorithm*> reducing_rows() {
  std::vector<const algorithm::Algorithm*> rows;
  for (const algorithm::Algorithm& row : algorithm::algorithms()) {
    for (const Collective collective : {Collective::kAllReduce, Collective::kReduceScatter, Collective::kReduce}) {
      if (!row.supports({collective, 4, 0, 0})) continue;
      rows.push_back(&row);
      break;
    }
  }
  return rows;
}

Collective collective_of(const algorithm::Algorithm& row) {
  for (const Collective collective : {Collective::kAllReduce, Collective::kReduceScatter}) {
    if (row.supports({collective, 4, 0, 0})) return collective;
  }
  return Collective::kReduce;
}

}  // namespace tutti::numbers
