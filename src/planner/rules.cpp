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

/// So much faster past the caches: the cores share none.
constexpr double kSharesNoCache = 2;
/// How much more slots have where cores share a cache: 32 KiB were measured, again and again in the same place, and calls go through all of
/// a channel's slots, of which the reader's own cache has lost many. 2 ranks on 2 near cores of a Zen 4 EPYC: from 1.6 to 3.1.
constexpr double kSharedCache = 2;

bool shares_no_cache(const MeasuredCosts& costs) { return costs.streamed_gbps > kSharesNoCache * costs.slot_gbps; }

}  // namespace

MeasuredCosts moved(const MeasuredCosts& costs) {
  // What is written past the caches takes as long anywhere, and near each other ordinary stores are about as fast as that.
  MeasuredCosts other = costs;
  other.slot_gbps = shares_no_cache(costs) ? costs.streamed_gbps : costs.streamed_gbps / (2 * kSharesNoCache);
  return costs.streamed_gbps > 0 ? other : MeasuredCosts{};
}

bool streams_slots(const Rules& rules) {
  if (rules.slot_stores != SlotStores::kAsMeasured) return rules.slot_stores == SlotStores::kStreamed;
  return shares_no_cache(rules.measured);
}

double slot_gbps(const Rules& rules) {
  if (streams_slots(rules)) return rules.measured.streamed_gbps;
  return (shares_no_cache(rules.measured) ? 1 : kSharedCache) * rules.measured.slot_gbps;
}

double near_store_gbps(const Rules& rules) {
  if (rules.slot_stores != SlotStores::kAsMeasured) return 0;
  return rules.measured.streamed_gbps / (2 * kSharesNoCache);
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
