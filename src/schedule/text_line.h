// One line of a text that a person may have written (a schedule, a tuning), cut into tokens; makes the parsers' error messages.
#pragma once

#include "base/result.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace tutti::schedule {

/// Tokens: words, whole numbers, "->", and single signs. "#" starts a comment.
class TextLine {
 public:
  /// `kind`: what its errors call the text; a literal.
  TextLine(std::string_view text, std::size_t number, std::string_view kind = "schedule text");

  /// The next token, or an empty view at the end of the line.
  std::string_view token() const { return token_; }
  bool at_end() const { return token_.empty(); }
  bool is(std::string_view token) const { return token_ == token; }
  bool is_word() const;
  void next();
  /// Steps over the token if it is there.
  bool accept(std::string_view token);

  /// Steps over the token, or says that it is missing.
  Status expect(std::string_view token, std::string_view why);
  /// A number up to `most`; `what` names it: "a rank".
  Result<std::uint32_t> number(std::string_view what, std::uint32_t most);
  /// "line 7: expected a rank, found \"x\""
  Error expected(std::string_view what) const;
  Error wrong(const std::string& message) const;

 private:
  std::string_view rest_;
  std::string_view token_;
  std::size_t number_;
  std::string_view kind_;
};

}  // namespace tutti::schedule
