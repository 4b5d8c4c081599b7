#include "schedule/text_line.h"

#include <fmt/format.h>

#include <algorithm>

namespace tutti::schedule {
namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Length of the token at the start of `text`, which starts with no blank.
std::size_t token_length(std::string_view text) {
  if (text.empty()) return 0;
  std::size_t n = 1;
  if (is_digit(text[0])) {
    while (n < text.size() && is_digit(text[n])) ++n;
  } else if (is_letter(text[0])) {
    // A dash belongs to a word when a letter or digit follows: "two-shot", but "in[0.0]->out[0.0]".
    while (n < text.size() &&
           (is_letter(text[n]) || is_digit(text[n]) ||
            (text[n] == '-' && n + 1 < text.size() && (is_letter(text[n + 1]) || is_digit(text[n + 1]))))) {
      ++n;
    }
  } else if (text.substr(0, 2) == "->") {
    n = 2;
  }
  return n;
}

/// What to show of a token: hostile text may hold anything.
std::string shown(std::string_view token) {
  if (token.empty()) return "the end of the line";
  std::string text = "\"";
  constexpr std::size_t kShownMax = 40;
  for (const char c : token.substr(0, kShownMax)) {
    if (c >= ' ' && c <= '~')
      text += c;
    else
      text += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  if (token.size() > kShownMax) text += "...";
  return text + "\"";
}

}  // namespace

TextLine::TextLine(std::string_view text, std::size_t number, std::string_view kind)
    : rest_(text.substr(0, text.find('#'))), number_(number), kind_(kind) {
  next();
}

bool TextLine::is_word() const { return !token_.empty() && is_letter(token_[0]); }

void TextLine::next() {
  const std::size_t start = std::min(rest_.find_first_not_of(" \t\r"), rest_.size());
  rest_.remove_prefix(start);
  token_ = rest_.substr(0, token_length(rest_));
  rest_.remove_prefix(token_.size());
}

bool TextLine::accept(std::string_view token) {
  if (!is(token)) return false;
  next();
  return true;
}

Status TextLine::expect(std::string_view token, std::string_view why) {
  if (accept(token)) return {};
  return expected(fmt::format("\"{}\" {}", token, why));
}

Result<std::uint32_t> TextLine::number(std::string_view what, std::uint32_t most) {
  if (token_.empty() || !is_digit(token_[0])) return expected(fmt::format("{} (a whole number)", what));
  std::uint64_t value = 0;
  for (const char c : token_) {
    value = value * 10 + static_cast<std::uint64_t>(c - '0');
    if (value > most)
      return wrong(fmt::format("{} of {} is too large; expected at most {}", what, shown(token_), most));
  }
  next();
  return static_cast<std::uint32_t>(value);
}

Error TextLine::expected(std::string_view what) const {
  return wrong(fmt::format("expected {}, found {}", what, shown(token_)));
}

Error TextLine::wrong(const std::string& message) const {
  return error(Code::kInvalidArgument, fmt::format("{}, line {}: {}", kind_, number_, message));
}

}  // namespace tutti::schedule
