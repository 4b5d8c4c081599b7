#include "planner/rules.h"

#include "algorithm/algorithm.h"
#include "planner/planned_schedules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <set>

namespace tutti::planner {
namespace {

// Names that NCCL has and that mean nothing here: allowed in a list, never chosen.
constexpr std::string_view kForeign[] = {"collnetdirect", "collnetchain", "nvls", "nvlstree", "pat"};

std::string lower(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (!std::isspace(static_cast<unsigned char>(c)))
      out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return out;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  for (;;) {
    const std::size_t end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end - begin));
    if (end == std::string::npos) return parts;
    begin = end + 1;
  }
}

std::set<std::string> known_names() {
  std::set<std::string> names;
  for (const algorithm::Algorithm& a : algorithm::algorithms()) names.emplace(a.name);
  return names;
}

std::optional<Collective> collective_of(std::string name) {
  std::erase(name, '_');
  for (int c = 0; c < kCollectives; ++c) {
    std::string candidate(name_of(static_cast<Collective>(c)));
    std::erase(candidate, '_');
    if (candidate == name) return static_cast<Collective>(c);
  }
  return std::nullopt;
}

Result<AlgorithmFilter> parse_list(std::string list, std::string_view whole) {
  AlgorithmFilter filter;
  filter.present = true;
  if (!list.empty() && list[0] == '^') {
    filter.exclude = true;
    list.erase(0, 1);
  }
  const std::set<std::string> known = known_names();
  for (const std::string& name : split(list, ',')) {
    const bool foreign = std::ranges::find(kForeign, name) != std::end(kForeign);
    if (!known.contains(name) && !foreign) {
      return error(Code::kInvalidUsage, fmt::format("NCCL_ALGO=\"{}\": there is no algorithm \"{}\"; there are {}",
                                                    whole, name, fmt::join(known, ", ")));
    }
    filter.names.push_back(name);
  }
  return filter;
}

}  // namespace

bool AlgorithmFilter::admits(std::string_view name) const {
  if (!present) return true;
  return (std::ranges::find(names, name) != names.end()) != exclude;
}

Result<Rules> make_rules(std::string_view nccl_algo, bool reproducible) {
  Rules rules;
  rules.reproducible = reproducible;
  rules.text = nccl_algo;
  if (lower(nccl_algo).empty()) return rules;
  for (const std::string& section : split(lower(nccl_algo), ';')) {
    if (section.empty()) continue;
    const std::size_t colon = section.find(':');
    TUTTI_TRY_ASSIGN(AlgorithmFilter filter,
                     parse_list(section.substr(colon == std::string::npos ? 0 : colon + 1), nccl_algo));
    if (colon == std::string::npos) {
      rules.everywhere = std::move(filter);
      continue;
    }
    const auto collective = collective_of(section.substr(0, colon));
    if (!collective) {
      return error(Code::kInvalidUsage,
                   fmt::format("NCCL_ALGO=\"{}\": there is no collective \"{}\"; there are allreduce, reduce, "
                               "broadcast, reducescatter, allgather, alltoall, gather, scatter, send, recv",
                               nccl_algo, section.substr(0, colon)));
    }
    rules.special[static_cast<int>(*collective)] = std::move(filter);
  }
  return rules;
}

namespace {

/// Beyond what measurements differ by.
constexpr double kWorthStreaming = 1.1;
/// So much faster past the caches: the cores share none.
constexpr double kSharesNoCache = 2;
/// How much more slots have in sums of several rounds, of which each rank reads and writes at the same time. Measured, 2 ranks on 2
/// near cores of a Zen 4 EPYC: from 1.8 to 2.2.
constexpr double kManyRounds = 1.8;

/// All ranks write as much as they read, and add: what is copied only goes faster by single copies where slots are slow.
bool all_add(Collective c) { return reduces(c) && !is_rooted(c); }

bool shares_no_cache(const MeasuredCosts& costs) { return costs.streamed_gbps > kSharesNoCache * costs.slot_gbps; }

}  // namespace

bool streams_slots(const Rules& rules, Collective collective, std::uint64_t rounds) {
  if (rules.slot_stores != SlotStores::kAsMeasured) return rules.slot_stores == SlotStores::kStreamed;
  if (shares_no_cache(rules.measured)) return true;
  return all_add(collective) && rounds == 1 &&
         rules.measured.streamed_gbps > kWorthStreaming * rules.measured.slot_gbps;
}

double slot_gbps(const Rules& rules, Collective collective, std::uint64_t rounds) {
  if (streams_slots(rules, collective, rounds)) return rules.measured.streamed_gbps;
  const bool gains = rounds > 1 && all_add(collective) && !shares_no_cache(rules.measured);
  return (gains ? kManyRounds : 1) * rules.measured.slot_gbps;
}

schedule::Request in_groups(schedule::Request request, const Rules& rules) {
  request.groups = rules.groups.empty() ? nullptr : &rules.groups;
  request.planned = rules.planned ? &rules.planned->of(request.collective) : nullptr;
  return request;
}

bool uses_wide_wire(const Rules& rules, Collective collective, DataType type, ReduceOp op) {
  const bool adds = op == ReduceOp::kSum || op == ReduceOp::kProduct || op == ReduceOp::kAverage;
  return rules.wide_wire && reduces(collective) && is_narrow_float(type) && adds;
}

}  // namespace tutti::planner
