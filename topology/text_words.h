// One line of Tutti's text form as words, and the numbers in them.
#pragma once

#include "topology/graph.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::topology {

struct Word {
  std::string text;
  std::size_t equals = std::string::npos;  ///< where the first "=" outside of quotes is
};

/// The words before a comment. kInvalidArgument says what is wrong with the quotes.
Result<std::vector<Word>> words_of(std::string_view line);

/// The whole of `text` as a number in [min, max].
template <class Number>
std::optional<Number> number_from(std::string_view text, Number min, Number max = std::numeric_limits<Number>::max()) {
  Number number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc{} || end != text.data() + text.size() || number < min || number > max) return {};
  return number;
}

/// The number that the text begins with; kNone: it begins with none.
inline int number_in(std::string_view text) {
  int number = kNone;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

/// The number, with a point as C has it, that the text begins with behind blanks; 0: it begins with none. strtod takes the locale's: where that
/// is a comma, it reads 2 of "2.5".
inline double decimal_in(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  double number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

/// GB/s to the kB/s: digits with up to six decimals, above 0 and at most 10^6. Not by way of floating point.
std::optional<Bandwidth> gigabytes_from(std::string_view text);

/// GB/s with as many decimals as it takes: "370.8".
std::string gigabytes_text(Bandwidth bandwidth);

}  // namespace tutti::topology
