#include "tuned.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <iterator>
#include <utility>

namespace tutti::bench {
namespace {

constexpr double kFasterBy = 1.05;

constexpr std::string_view kVersionLine = "tutti-tuning 1\n";

/// Of a size as rules have it: "512", "64K".
std::uint64_t bytes_of(std::string_view size) {
  std::uint64_t bytes = 0;
  const char* const unit = std::from_chars(size.data(), size.data() + size.size(), bytes).ptr;
  constexpr std::string_view kUnits = " KMG";
  return unit == size.data() + size.size() ? bytes : bytes << (10 * kUnits.find(*unit));
}

}  // namespace

std::vector<CandidateRule> split_rules(std::string_view text) {
  constexpr std::string_view kFrom = ": from ";
  std::vector<CandidateRule> rules;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    const std::size_t from = line.find(kFrom);
    if (from == std::string_view::npos) continue;
    const std::string_view rest = line.substr(from + kFrom.size());
    const std::size_t blank = std::min(rest.find(' '), rest.size());
    rules.push_back({std::string(line.substr(0, from)), std::string(rest.substr(0, blank)),
                     std::string(rest.substr(std::min(blank + 1, rest.size())))});
  }
  return rules;
}

std::string forcing_text(const CandidateRule& rule) {
  return fmt::format("{}{}: from {} {}\n", kVersionLine, rule.key, rule.size, rule.choice);
}

bool TunedCalls::has(std::string_view size) const {
  return std::ranges::find(sizes, size, &TunedSize::size) != sizes.end();
}

void TunedCalls::add(TunedSize size) {
  if (has(size.size)) return;
  const auto is_larger = [&](const TunedSize& other) { return bytes_of(other.size) > bytes_of(size.size); };
  const auto next = std::ranges::find_if(sizes, is_larger);
  sizes.insert(next, std::move(size));
}

std::vector<std::size_t> TunedCalls::winners() const {
  std::vector<std::size_t> winners;
  std::string before;
  for (const TunedSize& size : sizes) {
    const auto best = std::min_element(size.candidates.begin(), size.candidates.end(),
                                       [](const auto& a, const auto& b) { return a.time_us < b.time_us; });
    const auto is_good = [&](const TunedSize::Candidate& c) { return c.time_us < kFasterBy * best->time_us; };
    const auto stays = std::find_if(size.candidates.begin(), size.candidates.end(),
                                    [&](const TunedSize::Candidate& c) { return c.choice == before && is_good(c); });
    const auto winner = is_good(size.candidates.front()) ? size.candidates.begin()
                        : stays != size.candidates.end() ? stays
                                                         : best;
    before = winner->choice;
    winners.push_back(static_cast<std::size_t>(winner - size.candidates.begin()));
  }
  return winners;
}

std::string tuning_text(const std::vector<TunedCalls>& found, const std::vector<std::string>& comments) {
  std::string text(kVersionLine);
  for (const std::string& comment : comments) text += "# " + comment + "\n";
  for (const TunedCalls& calls : found) {
    const std::vector<std::size_t> winners = calls.winners();
    std::string last;
    for (std::size_t n = 0; n < winners.size(); ++n) {
      const TunedSize& size = calls.sizes[n];
      const std::string choice = winners[n] == 0 ? "model" : size.candidates[winners[n]].choice;
      if (choice == last) continue;
      text += fmt::format("{} from {} {}", last.empty() ? calls.key + ":" : ",", size.size, choice);
      last = choice;
    }
    if (!last.empty()) text += "\n";
  }
  return text;
}

std::string tuning_table(const TunedCalls& calls) {
  std::vector<std::string> columns;
  for (const TunedSize& size : calls.sizes) {
    for (const TunedSize::Candidate& c : size.candidates) {
      if (std::find(columns.begin(), columns.end(), c.choice) == columns.end()) columns.push_back(c.choice);
    }
  }
  std::sort(columns.begin(), columns.end());
  std::string text = calls.key + "\n   block";
  auto out = std::back_inserter(text);
  for (const std::string& column : columns) fmt::format_to(out, "  {:>12}", column);
  const std::vector<std::size_t> winners = calls.winners();
  for (std::size_t n = 0; n < winners.size(); ++n) {
    const TunedSize& size = calls.sizes[n];
    fmt::format_to(out, "\n{:>8}", size.size);
    for (const std::string& column : columns) {
      const auto c = std::find_if(size.candidates.begin(), size.candidates.end(),
                                  [&](const TunedSize::Candidate& candidate) { return candidate.choice == column; });
      std::string time = "-";
      std::string marks;
      if (c != size.candidates.end()) {
        const auto place = static_cast<std::size_t>(c - size.candidates.begin());
        time = fmt::format("{:.2f}", c->time_us);
        marks = fmt::format("{}{}", place == winners[n] ? "*" : "", place == 0 ? "m" : "");
      }
      fmt::format_to(out, "  {:>{}}{:<2}", time, std::max<std::size_t>(column.size(), 12) - 2, marks);
    }
  }
  return text + "\n";
}

}  // namespace tutti::bench
