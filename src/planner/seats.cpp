#include "planner/seats.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <utility>

namespace tutti::planner {
namespace {

std::string ranges_text(const std::vector<int>& ascending, std::string_view separator) {
  std::string text;
  for (std::size_t i = 0; i < ascending.size();) {
    std::size_t last = i;
    while (last + 1 < ascending.size() && ascending[last + 1] == ascending[last] + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : separator, ascending[i]);
    if (last > i) text += fmt::format("-{}", ascending[last]);
    i = last + 1;
  }
  return text;
}

/// False at what is no number, or too large a one.
bool take_number(std::string_view& text, int& number) {
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc() || number < 0 || number > kProcessorsMax) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

int part_of(const Seat& seat, SeatLevel level) {
  switch (level) {
    case SeatLevel::kPackage: return seat.package;
    case SeatLevel::kNuma: return seat.numa;
    case SeatLevel::kCache: return seat.cache;
    case SeatLevel::kNone: break;
  }
  return kUnknownSeat;
}

SeatGroups grouped_by(const std::vector<Seat>& seats, SeatLevel level) {
  SeatGroups groups;
  std::map<int, int> numbers;
  for (const Seat& seat : seats) {
    const int part = part_of(seat, level);
    if (part == kUnknownSeat) return {};
    groups.of_rank.push_back(numbers.try_emplace(part, static_cast<int>(numbers.size())).first->second);
  }
  groups.count = static_cast<int>(numbers.size());
  const bool apart = groups.count > 1 && groups.count < static_cast<int>(seats.size());
  if (!apart) return {};
  groups.level = level;
  return groups;
}

}  // namespace

std::string to_list(const std::vector<int>& processors) { return ranges_text(processors, ","); }
std::string ranks_text(const std::vector<int>& ranks) { return ranges_text(ranks, " "); }

std::vector<int> from_list(std::string_view list) {
  while (!list.empty() && (list.back() == '\n' || list.back() == ' ')) list.remove_suffix(1);
  std::vector<int> processors;
  while (!list.empty()) {
    int first = 0;
    if (!take_number(list, first)) return {};
    int last = first;
    if (!list.empty() && list.front() == '-') {
      list.remove_prefix(1);
      if (!take_number(list, last) || last < first) return {};
    }
    for (int processor = first; processor <= last; ++processor) processors.push_back(processor);
    if (processors.size() > static_cast<std::size_t>(kProcessorsMax)) return {};
    if (list.empty()) break;
    if (list.front() != ',') return {};
    list.remove_prefix(1);
  }
  std::ranges::sort(processors);
  processors.erase(std::unique(processors.begin(), processors.end()), processors.end());
  return processors;
}

std::string_view name_of(SeatLevel level) {
  switch (level) {
    case SeatLevel::kPackage: return "socket";
    case SeatLevel::kNuma: return "NUMA node";
    case SeatLevel::kCache: return "last-level cache";
    case SeatLevel::kNone: break;
  }
  return "nothing";
}

SeatGroups groups_of(const std::vector<Seat>& seats) {
  for (const SeatLevel level : {SeatLevel::kPackage, SeatLevel::kNuma, SeatLevel::kCache}) {
    if (SeatGroups groups = grouped_by(seats, level); groups.level != SeatLevel::kNone) return groups;
  }
  return {};
}

double crowding_of(const std::vector<Seat>& seats) {
  std::map<std::vector<int>, int> ranks;  // by processors
  std::set<int> all;
  for (const Seat& seat : seats) {
    if (seat.processors.empty()) return 0;
    ++ranks[seat.processors];
    all.insert(seat.processors.begin(), seat.processors.end());
  }
  if (all.empty()) return 0;
  double most = static_cast<double>(seats.size()) / static_cast<double>(all.size());
  for (const auto& entry : ranks) {
    const std::vector<int>& processors = entry.first;
    int confined = 0;
    for (const auto& [others, other_count] : ranks)
      if (std::ranges::includes(processors, others)) confined += other_count;
    most = std::max(most, static_cast<double>(confined) / static_cast<double>(processors.size()));
  }
  return most;
}

int least_crowded(const std::vector<Seat>& seats) {
  std::map<std::vector<int>, std::size_t> turns;  // by processors: ranks so far
  std::map<int, int> ranks;                       // by processor
  std::vector<int> places;
  for (const Seat& seat : seats) {
    if (seat.processors.empty()) return 0;
    places.push_back(seat.processors[turns[seat.processors]++ % seat.processors.size()]);
    ++ranks[places.back()];
  }
  return static_cast<int>(std::ranges::min_element(places, {}, [&](int place) { return ranks[place]; }) -
                          places.begin());
}

namespace {

/// Ranks whose processors are the same, by these.
using Sharers = std::map<std::vector<int>, std::vector<int>>;

void advise_on_sharing(const Sharers& sharers, std::vector<std::string>& advice) {
  for (const auto& [processors, ranks] : sharers) {
    if (ranks.size() <= processors.size()) continue;
    advice.push_back(
        processors.size() == 1
            ? fmt::format(
                  "ranks {} are all bound to processor {}: they wait for each other to leave it. Bind each to a "
                  "processor of its own",
                  ranks_text(ranks), processors[0])
            : fmt::format("ranks {} are {} on the {} processors {}: some always wait for one. Use fewer ranks or bind "
                          "them elsewhere",
                          ranks_text(ranks), ranks.size(), processors.size(), to_list(processors)));
  }
}

/// Ranks that may run on several processors and do not have them for themselves.
std::string overlap_advice(const Sharers& sharers) {
  std::map<int, int> users;  // by processor
  for (const auto& [processors, ranks] : sharers)
    for (const int processor : processors) users[processor] += static_cast<int>(ranks.size());
  std::vector<int> loose;
  for (const auto& [processors, ranks] : sharers) {
    const bool shares = std::ranges::any_of(processors, [&](int processor) { return users[processor] > 1; });
    if (shares && processors.size() > 1) loose.insert(loose.end(), ranks.begin(), ranks.end());
  }
  if (loose.size() < 2) return "";
  std::ranges::sort(loose);
  return fmt::format(
      "ranks {} may run on the same processors: the system may move them away from their data, or two to "
      "one. Bind each to its own (mpirun --bind-to core, srun --cpu-bind=cores, taskset)",
      ranks_text(loose));
}

/// Processors that are known and lie within no node lie on several.
std::string numa_advice(const std::vector<Seat>& seats, const std::vector<int>& ranks) {
  std::vector<int> spread;
  for (std::size_t i = 0; i < seats.size(); ++i)
    if (seats[i].numa == kUnknownSeat && !seats[i].processors.empty()) spread.push_back(ranks[i]);
  if (spread.empty()) return "";
  return fmt::format(
      "ranks {} may run on several NUMA nodes: their buffers may lie on another node than they run on. "
      "Bind each to one",
      ranks_text(spread));
}

}  // namespace

std::vector<std::string> pinning_advice(const std::vector<Seat>& seats, std::vector<int> ranks) {
  std::vector<std::string> advice;
  if (seats.size() < 2) return advice;
  for (std::size_t i = ranks.size(); i < seats.size(); ++i) ranks.push_back(static_cast<int>(i));
  Sharers sharers;
  std::set<int> all;
  for (std::size_t i = 0; i < seats.size(); ++i) {
    if (seats[i].processors.empty()) continue;
    sharers[seats[i].processors].push_back(ranks[i]);
    all.insert(seats[i].processors.begin(), seats[i].processors.end());
  }
  const bool crowded = !all.empty() && seats.size() > all.size();
  if (crowded) {
    advice.push_back(
        fmt::format("{} ranks have {} processors between them: some always wait for one", seats.size(), all.size()));
  }
  // Said already where all ranks may use all processors.
  if (!(crowded && sharers.size() == 1)) advise_on_sharing(sharers, advice);
  if (!crowded) {
    if (std::string overlap = overlap_advice(sharers); !overlap.empty()) advice.push_back(std::move(overlap));
  }
  if (std::string numa = numa_advice(seats, ranks); !numa.empty()) advice.push_back(std::move(numa));
  // Ranks of one container share its quota; those of several have one each, which cannot be told from here.
  const int quota = seats.front().quota_percent;
  const bool alike = std::ranges::all_of(seats, [&](const Seat& seat) { return seat.quota_percent == quota; });
  if (alike && quota > 0 && static_cast<std::size_t>(quota) < 100 * seats.size()) {
    advice.push_back(
        fmt::format("the container allows its processes {}.{:02} processors' time, less than one for each of "
                    "{} ranks: calls stop whenever it is used up",
                    quota / 100, quota % 100, seats.size()));
  }
  return advice;
}

}  // namespace tutti::planner
