// Measured crossovers: which algorithm is the fastest on this machine, as tutti-perf --tune writes it and a person may edit
// it. One rule a line, "#" starts a comment:
//
//   tutti-tuning 1
//   all_reduce ranks 2 access slots out_of_place: from 1K oneshot slots, from 64K twoshot slots, from 16M model
//
// A rule is for calls of that collective among that many ranks whose buffers are reached in that way (Access), whatever their
// root, type and operation. Sizes are bytes of one block, the call's count times the element's size; each choice counts
// up to the next one's size, and "model" is the cost model's choice. Sizes are powers of two, because plans are
// remembered for each power of two of the count (PlanCache::size_class).
#pragma once

#include "base/dtype.h"
#include "base/result.h"
#include "planner/plan.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::planner {

/// The longest text.
inline constexpr std::size_t kTuningBytesMax = 16 << 10;

struct TunedChoice {
  std::uint64_t from_bytes = 0;
  std::string algorithm;  ///< empty: the cost model's
  bool direct = false;

  friend bool operator==(const TunedChoice&, const TunedChoice&) = default;
};

/// The calls that a rule is for. Receives follow the rules of sends.
struct TuningKey {
  Collective collective = Collective::kAllReduce;
  int ranks = 0;
  Access access = Access::kSlots;
  bool in_place = false;

  explicit TuningKey(const Question& question);
  TuningKey() = default;
  friend bool operator==(const TuningKey&, const TuningKey&) = default;
};

struct TuningRule {
  TuningKey key;
  std::vector<TunedChoice> choices;  ///< by size

  friend bool operator==(const TuningRule&, const TuningRule&) = default;
};

class Tuning {
 public:
  explicit Tuning(std::vector<TuningRule> rules = {}) : rules_(std::move(rules)) {}

  const std::vector<TuningRule>& rules() const { return rules_; }
  /// The rule for such calls, or nullptr.
  const TuningRule* rule_for(const Question& question) const;
  /// What the rules say about the call: nullptr where they say nothing or "model".
  const TunedChoice* find(const Question& question) const;
  /// Of what the rules say, not 0: blanks and comments make no difference.
  std::uint32_t fingerprint() const;

 private:
  std::vector<TuningRule> rules_;
};

/// kInvalidArgument: the line, what was found there and what was expected; an algorithm that there is not, or not for such
/// calls, is an error too.
Result<Tuning> parse_tuning(std::string_view text);
/// The text that parses to the same.
std::string to_text(const Tuning& tuning);
/// One line of it, without its end.
std::string to_text(const TuningRule& rule);

}  // namespace tutti::planner
