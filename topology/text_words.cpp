#include "topology/text_words.h"

#include <fmt/format.h>

namespace tutti::topology {

namespace {

/// The character after the backslash at line[at - 1]; moves `at` behind it. Nothing if there is no such escape.
std::optional<char> escaped(std::string_view line, std::size_t& at) {
  if (at >= line.size()) return {};
  const char c = line[at++];
  if (c == '"' || c == '\\') return c;
  if (c == 'n') return '\n';
  if (c != 'x' || at + 2 > line.size()) return {};
  int code = 0;
  const auto [end, failure] = std::from_chars(line.data() + at, line.data() + at + 2, code, 16);
  if (failure != std::errc{} || end != line.data() + at + 2) return {};
  at += 2;
  return static_cast<char>(code);
}

/// The inside of quotes, from behind the opening one; moves `at` behind the closing one.
Status read_quoted(std::string_view line, std::size_t& at, std::string& text) {
  const std::size_t opening = at;
  while (at < line.size()) {
    const char c = line[at++];
    if (c == '"') return {};
    if (c != '\\') {
      text += c;
      continue;
    }
    const auto meant = escaped(line, at);
    if (!meant)
      return error(Code::kInvalidArgument,
                   fmt::format("column {}: a backslash is followed by \", \\, n or xHH (two hex digits)", at));
    text += *meant;
  }
  return error(Code::kInvalidArgument, fmt::format("column {}: the quotes that open here do not close", opening));
}

bool ends_word(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '#'; }

}  // namespace

Result<std::vector<Word>> words_of(std::string_view line) {
  std::vector<Word> words;
  std::size_t at = 0;
  while (at < line.size() && line[at] != '#') {
    if (ends_word(line[at])) {
      ++at;
      continue;
    }
    Word word;
    while (at < line.size() && !ends_word(line[at])) {
      const char c = line[at++];
      if (c == '"') {
        TUTTI_TRY(read_quoted(line, at, word.text));
        continue;
      }
      if (c == '=' && word.equals == std::string::npos) word.equals = word.text.size();
      word.text += c;
    }
    words.push_back(std::move(word));
  }
  return words;
}

std::optional<Bandwidth> gigabytes_from(std::string_view text) {
  constexpr std::size_t kDecimals = 6;
  const std::size_t point = text.find('.');
  const auto whole = number_from<Bandwidth>(text.substr(0, point), 0, kBandwidthMax / kGigabyte);
  if (!whole) return {};
  Bandwidth fraction = 0;
  if (point != std::string_view::npos) {
    std::string decimals(text.substr(point + 1));
    if (decimals.empty() || decimals.size() > kDecimals) return {};
    if (decimals.find_first_not_of("0123456789") != std::string::npos) return {};
    decimals.resize(kDecimals, '0');
    fraction = *number_from<Bandwidth>(decimals, 0);
  }
  const Bandwidth bandwidth = *whole * kGigabyte + fraction;
  if (bandwidth <= 0 || bandwidth > kBandwidthMax) return {};
  return bandwidth;
}

std::string gigabytes_text(Bandwidth bandwidth) {
  std::string text = fmt::format("{}.{:06}", bandwidth / kGigabyte, bandwidth % kGigabyte);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

}  // namespace tutti::topology
