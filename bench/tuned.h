// What --tune found: the times of every candidate, the winners as a tuning file's text, and a table for people.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::bench {

/// "all_reduce ranks 2 access slots out_of_place: from 64K twoshot slots", as tuttiCandidateRules gives it.
struct CandidateRule {
  std::string key;     ///< "all_reduce ranks 2 access slots out_of_place"
  std::string size;    ///< of a block: "64K"
  std::string choice;  ///< "twoshot slots"
};
std::vector<CandidateRule> split_rules(std::string_view text);
/// A whole tuning text that makes this one run at its size and above.
std::string forcing_text(const CandidateRule& rule);

struct TunedSize {
  struct Candidate {
    std::string choice;
    double time_us = 0;
  };
  std::string size;
  std::vector<Candidate> candidates;  ///< the cost model's choice first
};

struct TunedCalls {
  std::string key;
  std::vector<TunedSize> sizes;  ///< growing

  bool has(std::string_view size) const;
  /// In its place among the others; one that is there already stays as it is.
  void add(TunedSize size);
  /// For each size the candidate that shall run: the cost model's choice unless another one is at least 5% faster; then the one
  /// that runs at the size before, unless another one is at least 5% faster.
  std::vector<std::size_t> winners() const;
};

/// The tuning file: `comments` first, one a line; neighbouring sizes with the same winner in one choice.
std::string tuning_text(const std::vector<TunedCalls>& found, const std::vector<std::string>& comments);
/// A row per size, a column per candidate; the winner bears a star, the cost model's choice an m.
std::string tuning_table(const TunedCalls& calls);

}  // namespace tutti::bench
