#include "schedule/verifier_sums.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace tutti::schedule::verifier {

Sums::Id Sums::input(std::uint32_t rank, std::uint32_t block, std::uint32_t unit) {
  Sum s;
  s.block = block;
  s.unit = unit;
  s.count = 1;
  s.first_interval = static_cast<std::uint32_t>(intervals_.size());
  s.interval_count = 1;
  s.front = s.back = rank;
  intervals_.push_back({rank, rank + 1});
  sums_.push_back(s);
  return static_cast<Id>(sums_.size() - 1);
}

/// All intervals of the parts, sorted.
void Sums::collect_intervals(std::span<const Id> parts) {
  merged_.clear();
  for (const Id id : parts) {
    const auto add = intervals(sums_[id]);
    merged_.insert(merged_.end(), add.begin(), add.end());
  }
  const auto before = [](const Interval& a, const Interval& b) { return a.begin < b.begin; };
  if (!std::is_sorted(merged_.begin(), merged_.end(), before)) std::sort(merged_.begin(), merged_.end(), before);
}

std::optional<std::uint32_t> Sums::repeated_rank(std::span<const Id> parts) {
  collect_intervals(parts);
  for (std::size_t i = 1; i < merged_.size(); ++i) {
    if (merged_[i].begin < merged_[i - 1].end) return merged_[i].begin;
  }
  return std::nullopt;
}

Sums::Id Sums::add(std::span<const Id> parts, bool finished) {
  collect_intervals(parts);
  merged_in_all_ += merged_.size();
  if (merged_in_all_ > kIntervalsMax) return kNothing;
  Sum s;
  s.block = sums_[parts[0]].block;
  s.unit = sums_[parts[0]].unit;
  s.first_part = static_cast<std::uint32_t>(parts_.size());
  s.part_count = static_cast<std::uint32_t>(parts.size());
  s.front = sums_[parts[0]].front;
  s.back = sums_[parts[0]].back;
  s.left_fold = sums_[parts[0]].left_fold;
  s.ascending = sums_[parts[0]].ascending;
  s.count = sums_[parts[0]].count;
  s.finished = finished;
  for (const Id id : parts.subspan(1)) {
    const Sum& part = sums_[id];
    s.left_fold &= part.count == 1;
    s.ascending &= part.ascending && s.back < part.front;
    s.back = part.back;
    s.count += part.count;
  }
  parts_.insert(parts_.end(), parts.begin(), parts.end());
  s.first_interval = static_cast<std::uint32_t>(intervals_.size());
  for (const Interval& i : merged_) {
    if (intervals_.size() > s.first_interval && intervals_.back().end == i.begin)
      intervals_.back().end = i.end;
    else
      intervals_.push_back(i);
  }
  s.interval_count = static_cast<std::uint32_t>(intervals_.size()) - s.first_interval;
  sums_.push_back(s);
  return static_cast<Id>(sums_.size() - 1);
}

bool Sums::same(Id a, Id b) const {
  // No rank is in a sum twice, so that the trees have as many leaves as the sums have ranks.
  std::vector<std::pair<Id, Id>> open{{a, b}};
  while (!open.empty()) {
    const auto [left, right] = open.back();
    open.pop_back();
    if (left == right) continue;
    if (left == kNothing || right == kNothing) return false;
    const Sum& x = sums_[left];
    const Sum& y = sums_[right];
    if (x.block != y.block || x.unit != y.unit || x.front != y.front || x.part_count != y.part_count ||
        x.finished != y.finished) {
      return false;
    }
    for (std::uint32_t i = 0; i < x.part_count; ++i) open.emplace_back(parts(x)[i], parts(y)[i]);
  }
  return true;
}

std::vector<std::uint32_t> Sums::ranks(Id id) const {
  std::vector<std::uint32_t> found;
  std::vector<Id> open{id};
  while (!open.empty()) {
    const Sum& s = sums_[open.back()];
    open.pop_back();
    if (s.part_count == 0) {
      found.push_back(s.front);
      continue;
    }
    const auto inner = parts(s);
    open.insert(open.end(), inner.rbegin(), inner.rend());
  }
  return found;
}

std::string Sums::name(Id id) const {
  if (id == kNothing) return "nothing (never written)";
  const Sum& s = sums_[id];
  std::string text = s.count == 1 ? "rank" : "the sum of ranks";
  constexpr std::size_t kShownMax = 16;
  const std::vector<std::uint32_t> all = ranks(id);
  for (std::size_t i = 0; i < std::min(all.size(), kShownMax); ++i) text += fmt::format(" {}", all[i]);
  if (all.size() > kShownMax) text += " ...";
  return text + fmt::format(", in[{}.{}]{}", s.block, s.unit, s.finished ? ", finished" : "");
}

std::string Sums::missing(Id id, std::uint32_t ranks) const {
  if (id == kNothing || sums_[id].count >= ranks) return {};
  constexpr std::uint32_t kShownMax = 8;
  std::string text;
  std::uint32_t next = 0;
  std::uint32_t shown = 0;
  const auto skip_to = [&](std::uint32_t end) {
    for (; next < end && shown <= kShownMax; ++next, ++shown)
      text += shown == kShownMax ? ", ..." : fmt::format("{}{}", shown == 0 ? "" : ", ", next);
  };
  for (const Interval& i : intervals(sums_[id])) {
    skip_to(i.begin);
    next = i.end;
  }
  skip_to(ranks);
  return fmt::format(" (without rank {})", text);
}

}  // namespace tutti::schedule::verifier
