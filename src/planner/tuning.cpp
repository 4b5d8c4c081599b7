#include "planner/tuning.h"

#include "schedule/limits.h"
#include "schedule/text_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

namespace tutti::planner {
namespace {

using algorithm::Algorithm;
using schedule::TextLine;

constexpr std::string_view kAccessNames[] = {"slots", "single_copy", "direct"};
constexpr std::uint64_t kSizeMax = std::uint64_t{1} << 40;

std::string_view carriage(bool direct) { return direct ? "direct" : "slots"; }

std::string size_text(std::uint64_t bytes) {
  constexpr std::string_view kUnits[] = {"", "K", "M", "G"};
  std::size_t unit = 0;
  for (; unit + 1 < std::size(kUnits) && bytes != 0 && bytes % 1024 == 0; ++unit) bytes /= 1024;
  return fmt::format("{}{}", bytes, kUnits[unit]);
}

/// Receives have the rules of sends.
std::string collective_names() {
  std::string names;
  for (int c = 0; c < kCollectives; ++c) {
    if (static_cast<Collective>(c) == Collective::kReceive) continue;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name_of(static_cast<Collective>(c)));
  }
  return names;
}

Result<Collective> read_collective(TextLine& line) {
  const auto collective = collective_named(line.token());
  if (!collective || *collective == Collective::kReceive)
    return line.expected(fmt::format("a collective ({})", collective_names()));
  line.next();
  return *collective;
}

Result<Access> read_access(TextLine& line) {
  for (std::size_t a = 0; a < std::size(kAccessNames); ++a) {
    if (line.accept(kAccessNames[a])) return static_cast<Access>(a);
  }
  return line.expected("slots, single_copy or direct");
}

Result<bool> read_form(TextLine& line) {
  if (line.accept("in_place")) return true;
  if (line.accept("out_of_place")) return false;
  return line.expected("in_place or out_of_place");
}

Result<TuningKey> read_key(TextLine& line) {
  TuningKey key;
  TUTTI_TRY_ASSIGN(key.collective, read_collective(line));
  TUTTI_TRY(line.expect("ranks", "and their number"));
  TUTTI_TRY_ASSIGN(const std::uint32_t ranks, line.number("a number of ranks", schedule::kRanksMax));
  if (ranks == 0) return line.wrong("a communicator has at least 1 rank");
  key.ranks = static_cast<int>(ranks);
  TUTTI_TRY(line.expect("access", "and how buffers are reached: slots, single_copy or direct"));
  TUTTI_TRY_ASSIGN(key.access, read_access(line));
  TUTTI_TRY_ASSIGN(key.in_place, read_form(line));
  return key;
}

Result<std::uint64_t> read_size(TextLine& line) {
  TUTTI_TRY_ASSIGN(std::uint64_t size, line.number("a size such as 0, 512, 64K or 16M", ~std::uint32_t{0}));
  if (line.accept("K")) {
    size <<= 10;
  } else if (line.accept("M")) {
    size <<= 20;
  } else if (line.accept("G")) {
    size <<= 30;
  }
  if (size > kSizeMax) return line.wrong(fmt::format("a size of {} bytes is too large; expected at most 1024G", size));
  if (size != 0 && !std::has_single_bit(size)) {
    return line.wrong(
        fmt::format("a size of {} bytes; expected 0 or a power of two, such as {}: choices are made for each power of "
                    "two",
                    size, size_text(std::bit_ceil(size))));
  }
  return size;
}

/// The algorithms that such calls may run.
std::string algorithm_names(const schedule::Request& request) {
  std::string names;
  for (const Algorithm& a : algorithm::algorithms()) {
    if (a.supports(request)) names += (names.empty() ? "" : ", ") + std::string(a.name);
  }
  return names;
}

/// A row that serves such calls, on one host or several, or on some machine. Where a communicator has no such candidate the rule has no effect.
const Algorithm* find_anywhere(std::string_view name, const schedule::Request& on_one_host) {
  if (const Algorithm* found = algorithm::find(name, on_one_host)) return found;
  schedule::Request request = on_one_host;
  schedule::Groups hosts(static_cast<std::size_t>(request.ranks), 0);
  std::fill(hosts.begin() + (request.ranks + 1) / 2, hosts.end(), 1);
  request.groups = &hosts;
  const std::vector<schedule::Schedule> planned{{std::string(name), on_one_host, {}, {}}};
  request.planned = &planned;
  return algorithm::find(name, request);
}

/// "model", or an algorithm and how its data goes.
Status read_choice(TextLine& line, const TuningKey& key, TunedChoice& choice) {
  if (line.accept("model")) return {};
  const schedule::Request request{key.collective, key.ranks, 0, 0};
  const Algorithm* found = find_anywhere(line.token(), request);
  if (found == nullptr) {
    return line.expected(
        fmt::format("model, or an algorithm for {} ({})", name_of(key.collective), algorithm_names(request)));
  }
  choice.algorithm = line.token();
  line.next();
  choice.direct = line.is("direct");
  if (!choice.direct && !line.is("slots")) return line.expected(fmt::format("slots or direct after {}", found->name));
  if (choice.direct && key.access == Access::kSlots) {
    return line.wrong(fmt::format("{} direct: with access slots nothing reaches the others' buffers; expected {} slots",
                                  found->name, found->name));
  }
  if (choice.direct && !(key.in_place ? found->direct_in_place : found->direct)) {
    return line.wrong(fmt::format("{} direct: {} cannot run direct {}; expected {} slots", found->name, found->name,
                                  key.in_place ? "in place" : "out of place", found->name));
  }
  line.next();
  return {};
}

Result<TuningRule> read_rule(TextLine& line) {
  TuningRule rule;
  TUTTI_TRY_ASSIGN(rule.key, read_key(line));
  TUTTI_TRY(line.expect(":", "before the choices"));
  do {
    TunedChoice choice;
    TUTTI_TRY(line.expect("from", "and a size"));
    TUTTI_TRY_ASSIGN(choice.from_bytes, read_size(line));
    if (!rule.choices.empty() && choice.from_bytes <= rule.choices.back().from_bytes) {
      return line.wrong(fmt::format("from {} after from {}; expected growing sizes", size_text(choice.from_bytes),
                                    size_text(rule.choices.back().from_bytes)));
    }
    TUTTI_TRY(read_choice(line, rule.key, choice));
    rule.choices.push_back(std::move(choice));
  } while (line.accept(","));
  if (!line.at_end()) return line.expected("\",\" and another choice, or the end of the line");
  return rule;
}

Status read_version(TextLine& line) {
  TUTTI_TRY(line.expect("tutti-tuning", "and its version, 1, on the first line"));
  if (!line.accept("1")) return line.expected("version 1, the only one that this library reads");
  return line.at_end() ? Status() : Status(line.expected("the end of the line"));
}

std::string key_text(const TuningKey& key) {
  return fmt::format("{} ranks {} access {} {}", name_of(key.collective), key.ranks,
                     kAccessNames[static_cast<std::size_t>(key.access)], key.in_place ? "in_place" : "out_of_place");
}

}  // namespace

TuningKey::TuningKey(const Question& q)
    : collective(q.request.collective == Collective::kReceive ? Collective::kSend : q.request.collective),
      ranks(q.request.ranks),
      access(q.access),
      in_place(q.in_place) {}

const TuningRule* Tuning::rule_for(const Question& question) const {
  const auto rule = std::ranges::find(rules_, TuningKey(question), &TuningRule::key);
  return rule == rules_.end() ? nullptr : &*rule;
}

const TunedChoice* Tuning::find(const Question& question) const {
  const TuningRule* rule = rule_for(question);
  if (rule == nullptr) return nullptr;
  const std::uint64_t bytes = question.count * question.element_bytes;
  const auto next = std::ranges::upper_bound(rule->choices, bytes, {}, &TunedChoice::from_bytes);
  if (next == rule->choices.begin()) return nullptr;
  const TunedChoice& choice = *std::prev(next);
  return choice.algorithm.empty() ? nullptr : &choice;
}

std::uint32_t Tuning::fingerprint() const {
  std::uint32_t hash = 2166136261u;
  for (const char c : to_text(*this)) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return std::max(hash, 1u);
}

Result<Tuning> parse_tuning(std::string_view text) {
  if (text.size() > kTuningBytesMax) {
    return error(Code::kInvalidArgument,
                 fmt::format("tuning text of {} bytes; expected at most {}: leave out comments, "
                             "and rules for other numbers of ranks",
                             text.size(), kTuningBytesMax));
  }
  std::vector<TuningRule> rules;
  bool has_version = false;
  std::size_t number = 0;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    TextLine line(text.substr(begin, end - begin), ++number, "tuning text");
    begin = end + 1;
    const bool is_last = begin > text.size();
    if (line.at_end() && (has_version || !is_last)) continue;
    if (!has_version) {
      TUTTI_TRY(read_version(line));
      has_version = true;
      continue;
    }
    TUTTI_TRY_ASSIGN(TuningRule rule, read_rule(line));
    if (std::ranges::find(rules, rule.key, &TuningRule::key) != rules.end()) {
      return line.wrong(fmt::format("a second rule for {}; expected one, with all its sizes", key_text(rule.key)));
    }
    rules.push_back(std::move(rule));
  }
  return Tuning(std::move(rules));
}

std::string to_text(const TuningRule& rule) {
  std::string text = key_text(rule.key);
  for (const TunedChoice& choice : rule.choices) {
    fmt::format_to(std::back_inserter(text), "{} from {} ", &choice == &rule.choices.front() ? ":" : ",",
                   size_text(choice.from_bytes));
    text += choice.algorithm.empty() ? "model" : fmt::format("{} {}", choice.algorithm, carriage(choice.direct));
  }
  return text;
}

std::string to_text(const Tuning& tuning) {
  std::string text = "tutti-tuning 1\n";
  for (const TuningRule& rule : tuning.rules()) text += to_text(rule) + "\n";
  return text;
}

}  // namespace tutti::planner
