#include "algorithm/planned_trees.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <optional>
#include <utility>

namespace tutti::algorithm {

namespace {

constexpr Collective kPlanned[] = {Collective::kAllReduce, Collective::kAllGather, Collective::kReduceScatter};

std::string line_of(const Parents& parents) {
  std::string line;
  for (const int parent : parents) {
    if (!line.empty()) line += ' ';
    line += parent == kNoParent ? std::string("-") : std::to_string(parent);
  }
  return line + "\n";
}

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  while (!line.empty()) {
    const std::size_t end = std::min(line.find(' '), line.size());
    if (end > 0) words.push_back(line.substr(0, end));
    line.remove_prefix(std::min(end + 1, line.size()));
  }
  return words;
}

/// A number from 0 up to what is below `end`.
std::optional<int> number_in(std::string_view word, int end) {
  int number = 0;
  const auto [rest, problem] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (problem != std::errc() || rest != word.data() + word.size() || number < 0 || number >= end) return std::nullopt;
  return number;
}

int root_of(const Parents& parents) {
  return static_cast<int>(std::ranges::find(parents, kNoParent) - parents.begin());
}

/// Whether every rank leads to the one root.
bool is_tree(const Parents& parents) {
  if (std::ranges::count(parents, kNoParent) != 1) return false;
  for (int rank : parents) {
    for (std::size_t hops = 0; rank != kNoParent; ++hops) {
      if (hops > parents.size()) return false;
      rank = parents[static_cast<std::size_t>(rank)];
    }
  }
  return true;
}

class TreesParser {
 public:
  TreesParser(std::string_view text, int ranks, int lanes_most) : rest_(text), ranks_(ranks), lanes_most_(lanes_most) {}

  Result<std::vector<PlannedTrees>> all() {
    std::vector<PlannedTrees> found;
    while (!rest_.empty()) {
      TUTTI_TRY_ASSIGN(PlannedTrees one, trees());
      found.push_back(std::move(one));
    }
    return found;
  }

 private:
  std::string_view next_line() {
    const std::size_t end = std::min(rest_.find('\n'), rest_.size());
    const std::string_view line = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    ++number_;
    return line;
  }
  Error wrong(std::string_view expected, std::string_view line) const {
    return error(Code::kInvalidArgument,
                 fmt::format("trees, line {}: expected {}, found \"{}\"", number_, expected, line.substr(0, 80)));
  }

  Result<PlannedTrees> trees() {
    const std::string_view head = next_line();
    const std::vector<std::string_view> words = words_of(head);
    const auto is_named = [&](Collective c) { return words.size() == 6 && words[1] == name_of(c); };
    const auto* collective = std::ranges::find_if(kPlanned, is_named);
    const bool pairs = !words.empty() && words[0] == "pairs";
    if (collective == std::end(kPlanned) || (words[0] != "trees" && !pairs) || words[2] != "ranks" ||
        words[4] != "lanes")
      return wrong("\"trees COLLECTIVE ranks N lanes N\"", head);
    if (pairs && *collective != Collective::kAllReduce) return wrong("\"pairs all_reduce\"", head);
    if (number_in(words[3], ranks_ + 1) != ranks_) return wrong(fmt::format("trees for {} ranks", ranks_), head);
    const std::optional<int> lanes = number_in(words[5], lanes_most_ + 1);
    if (!lanes || *lanes == 0) return wrong(fmt::format("1 to {} lanes", lanes_most_), head);
    PlannedTrees found{*collective, {}, {}, {}};
    for (int lane = 0; lane < *lanes; ++lane) {
      if (pairs) {
        TUTTI_TRY_ASSIGN(TreePair pair, tree_pair());
        found.pairs.push_back(std::move(pair));
        continue;
      }
      if (found.collective == Collective::kAllReduce) {
        TUTTI_TRY_ASSIGN(Parents parents, tree());
        found.lanes.push_back(std::move(parents));
        continue;
      }
      RootedTrees& rooted = found.rooted.emplace_back();
      for (int root = 0; root < ranks_; ++root) {
        TUTTI_TRY_ASSIGN(Parents parents, tree());
        if (parents[static_cast<std::size_t>(root)] != kNoParent)
          return wrong(fmt::format("a tree with the root {}", root), line_of(parents));
        rooted.push_back(std::move(parents));
      }
    }
    return found;
  }

  Result<TreePair> tree_pair() {
    TreePair pair;
    TUTTI_TRY_ASSIGN(pair.up, tree());
    TUTTI_TRY_ASSIGN(pair.down, tree());
    if (root_of(pair.up) != root_of(pair.down))
      return wrong(fmt::format("a tree with the root {}", root_of(pair.up)), line_of(pair.down));
    return pair;
  }

  Result<Parents> tree() {
    const std::string_view line = next_line();
    Parents parents;
    for (const std::string_view word : words_of(line)) {
      const std::optional<int> parent = word == "-" ? kNoParent : number_in(word, ranks_);
      if (!parent) return wrong(fmt::format("a rank below {} or \"-\"", ranks_), word);
      parents.push_back(*parent);
    }
    if (parents.size() != static_cast<std::size_t>(ranks_) || !is_tree(parents))
      return wrong(fmt::format("the parents of {} ranks that all lead to one root", ranks_), line);
    return parents;
  }

  std::string_view rest_;
  int ranks_;
  int lanes_most_;
  int number_ = 0;
};

int deepest_of(const PlannedTrees& trees) {
  int deepest = 1;
  const auto look = [&](const Parents& parents) { deepest = std::max(deepest, std::ranges::max(depths_of(parents))); };
  for (const Parents& parents : trees.lanes) look(parents);
  for (const TreePair& pair : trees.pairs) {
    look(pair.up);
    look(pair.down);
  }
  for (const RootedTrees& rooted : trees.rooted) std::ranges::for_each(rooted, look);
  return deepest;
}

}  // namespace

std::string to_text(const PlannedTrees& trees) {
  const std::size_t ranks = !trees.pairs.empty()   ? trees.pairs.front().up.size()
                            : !trees.lanes.empty() ? trees.lanes.front().size()
                                                   : trees.rooted.front().size();
  std::string text =
      fmt::format("{} {} ranks {} lanes {}\n", trees.pairs.empty() ? "trees" : "pairs", name_of(trees.collective),
                  ranks, trees.lanes.size() + trees.pairs.size() + trees.rooted.size());
  for (const Parents& parents : trees.lanes) text += line_of(parents);
  for (const TreePair& pair : trees.pairs) text += line_of(pair.up) + line_of(pair.down);
  for (const RootedTrees& rooted : trees.rooted) {
    for (const Parents& parents : rooted) text += line_of(parents);
  }
  return text;
}

Result<std::vector<PlannedTrees>> parse_trees(std::string_view text, int ranks, int lanes_most) {
  return TreesParser(text, ranks, lanes_most).all();
}

schedule::Schedule schedule_of(const PlannedTrees& trees, int slots) {
  const int units = kPlannedUnitsPerHop * deepest_of(trees);
  if (!trees.pairs.empty()) return packed_pairs(trees.pairs, units);
  switch (trees.collective) {
    case Collective::kAllGather: return packed_out_trees(trees.rooted, units, slots);
    case Collective::kReduceScatter: return packed_in_trees(trees.rooted, units, slots);
    default: return packed_trees(trees.lanes, units, std::min(kAheadPerHop, slots));
  }
}

}  // namespace tutti::algorithm
