#include "case.h"

#include "algorithm/planned_trees.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <map>
#include <vector>

namespace tutti::conformance {
namespace {

struct CapabilityRow {
  std::string_view name;
  std::string_view reason;  ///< empty: no case needs it by itself
};
constexpr std::array<CapabilityRow, kCapabilities> kRows = {{
    {"slots", ""},
    {"lines", ""},
    {"mapped buffers", ""},
    {"single copies", ""},
    {"announce lines", ""},
    {"messages of MPI's own", ""},
    {"one thread", ""},
    {"threads", ""},
    {"processes", ""},
    {"host streams", ""},
    {"chosen algorithms", "a schedule that is set never goes by announce lines, nor as messages of MPI's own"},
    {"planner", "the interpreter runs the plan that it is given: nothing chooses"},
    {"calls of nothing", "calls of nothing end in the communicator, which is not here"},
    {"send and receive", "send and receive begin in the communicator, which is not here"},
    {"types and operations", "the interpreter's world adds uint32: kernels are not what differs"},
    {"averages", "averages are the communicator's division"},
    {"PreMulSum", "factors come with the communicator's announcements"},
    {"groups", "groups are the communicator's"},
    {"aborts", "one thread that waits in a group cannot abort it"},
    {"stale memory", "its loads return what this processor's memory returns"},
}};

constexpr Collective kCollectivesHere[] = {Collective::kAllReduce,     Collective::kReduce,    Collective::kBroadcast,
                                           Collective::kReduceScatter, Collective::kAllGather, Collective::kAllToAll,
                                           Collective::kGather,        Collective::kScatter};
constexpr Size kSizes[] = {Size::kNone, Size::kOne, Size::kCacheLine, Size::kPrime, Size::kRounds};

std::string_view name_of(Size size) {
  constexpr std::string_view kNames[] = {"no elements", "1 element", "a cache line", "37 elements",
                                         "several rounds of slots"};
  return kNames[static_cast<std::size_t>(size)];
}

/// Ranks in a line, from the root on and round to the rank before it.
algorithm::Parents line_from(int root, int ranks) {
  algorithm::Parents parents(static_cast<std::size_t>(ranks), algorithm::kNoParent);
  for (int i = 1; i < ranks; ++i) parents[static_cast<std::size_t>((root + i) % ranks)] = (root + i - 1) % ranks;
  return parents;
}
algorithm::Parents star_from(int root, int ranks) {
  algorithm::Parents parents(static_cast<std::size_t>(ranks), root);
  parents[static_cast<std::size_t>(root)] = algorithm::kNoParent;
  return parents;
}

/// As a machine's plan might have them: a lane of lines and one of stars, and a line up and a star down, with as few slots as the interpreter's worlds have.
const std::vector<schedule::Schedule>& planned_schedules(int ranks) {
  constexpr int kSlots = 2;
  static std::map<int, std::vector<schedule::Schedule>> known;
  std::vector<schedule::Schedule>& made = known[ranks];
  if (!made.empty()) return made;
  algorithm::RootedTrees lines, stars;
  for (int root = 0; root < ranks; ++root) {
    lines.push_back(line_from(root, ranks));
    stars.push_back(star_from(root, ranks));
  }
  made.push_back(algorithm::schedule_of({Collective::kAllReduce, {lines.back(), stars.front()}, {}}, kSlots));
  made.push_back(algorithm::schedule_of({Collective::kAllReduce, {}, {}, {{lines.back(), stars.back()}}}, kSlots));
  for (const Collective collective : {Collective::kAllGather, Collective::kReduceScatter})
    made.push_back(algorithm::schedule_of({collective, {}, {lines, stars}}, kSlots));
  return made;
}

class Maker {
 public:
  Maker(bool quick, int ranks, std::vector<Case>& cases) : quick_(quick), ranks_(ranks), cases_(cases) {}

  void make() {
    for (const Collective collective : kCollectivesHere) {
      for (const int root : roots(collective)) collective_cases({collective, ranks_, root, 0});
    }
    for (const Size size : kSizes) add({{Collective::kSend, ranks_, 0, 0}, nullptr, size});
    if (ranks_ == 2 || ranks_ == 5) types();
    if (ranks_ == 3) moves();
    for (const Collective collective : kCollectivesHere) {
      add({{collective, ranks_, ranks_ / 2 * is_rooted(collective), 0}, nullptr, Size::kPrime, false, Kind::kGroup});
    }
    if (ranks_ == 2 || ranks_ == 3) aborts();
  }

 private:
  void add(const Case& c) {
    cases_.push_back(c);
    cases_.back().place = static_cast<int>(cases_.size()) - 1;
  }

  std::vector<int> roots(Collective collective) const {
    if (!is_rooted(collective)) return {0};
    std::vector<int> found = {0, ranks_ / 2, ranks_ - 1};
    if (ranks_ == 5) found = {0, 3};
    if (ranks_ == 8) found = {6};
    if (quick_) found = {ranks_ - 1};
    found.erase(std::unique(found.begin(), found.end()), found.end());
    return found;
  }

  void collective_cases(const schedule::Request& request) {
    std::vector<const algorithm::Algorithm*> some = {nullptr};
    schedule::Request with_plan = request;
    if (kRanksOfPlans[0] <= ranks_ && ranks_ <= kRanksOfPlans[1]) with_plan.planned = &planned_schedules(ranks_);
    for (const algorithm::Algorithm& a : algorithm::algorithms()) {
      if (a.supports(with_plan)) some.push_back(&a);
    }
    for (const algorithm::Algorithm* a : some) {
      const schedule::Request& asked = a != nullptr && a->planned ? with_plan : request;
      for (const Size size : kSizes) {
        if (quick_ && (size == Size::kOne || size == Size::kCacheLine)) continue;
        for (const bool in_place : {false, true}) add({asked, a, size, in_place});
      }
      if (ranks_ == 3 || ranks_ == 5) add({asked, a, Size::kRounds, ranks_ == 5, Kind::kStale});
      if (is_rooted(request.collective) && (a == nullptr || a->name == "oneshot")) {
        for (const Size size : {Size::kOne, Size::kPrime}) add({request, a, size, false, Kind::kRow});
      }
    }
  }

  void types() {
    for (const Collective collective : {Collective::kAllReduce, Collective::kReduce, Collective::kReduceScatter}) {
      for (const bench::ElementType& type : bench::element_types()) {
        for (const bench::Reduction& reduction : bench::reductions()) {
          // Whole averages and products with factors that the small floats can hold exactly: there are none of 5 ranks.
          const bool divided = reduction.op == ncclAvg || reduction.op == bench::kScaledSum;
          if (divided && type.is_float && type.mantissa_bits < 7) continue;
          for (const Size size : {Size::kPrime, Size::kRounds}) {
            if (size == Size::kRounds && (quick_ || reduction.op != ncclSum)) continue;
            const int root = is_rooted(collective) ? ranks_ - 1 : 0;
            add({{collective, ranks_, root, 0},
                 nullptr,
                 size,
                 size == Size::kRounds,
                 Kind::kCalls,
                 type.type,
                 reduction.op});
          }
        }
      }
    }
  }

  void moves() {
    for (const Collective collective : kCollectivesHere) {
      if (reduces(collective)) continue;
      for (const bench::ElementType& type : bench::element_types()) {
        add({{collective, ranks_, is_rooted(collective) ? 1 : 0, 0},
             nullptr,
             Size::kPrime,
             false,
             Kind::kCalls,
             type.type});
      }
    }
  }

  void aborts() {
    for (const Collective collective : kCollectivesHere) {
      for (const algorithm::Algorithm& a : algorithm::algorithms()) {
        const schedule::Request request{collective, ranks_, 0, 0};
        if (!a.supports(request) || a.name != "oneshot") continue;
        add({request, &a, Size::kRounds, false, Kind::kAbort});
        add({request, nullptr, Size::kOne, false, Kind::kAbort});
      }
    }
  }

  /// Among more ranks lines have very many units.
  static constexpr int kRanksOfPlans[] = {2, 5};

  bool quick_;
  int ranks_;
  std::vector<Case>& cases_;
};

}  // namespace

std::string describe(const Case& c) {
  const std::string_view collective =
      c.request.collective == Collective::kSend ? "send and receive" : tutti::name_of(c.request.collective);
  std::string text = fmt::format("{}{}{}, {} ranks", collective, c.algorithm ? " by " : "",
                                 c.algorithm ? c.algorithm->name : "", c.request.ranks);
  if (is_rooted(c.request.collective)) text += fmt::format(", root {}", c.request.root);
  text += fmt::format(", {}", name_of(c.size));
  if (c.type != ncclUint32) text += fmt::format(", {}", tutti::name_of(static_cast<DataType>(c.type)));
  if (c.op != ncclSum) {
    text += c.op == bench::kScaledSum ? ", PreMulSum" : fmt::format(", {}", name_of(static_cast<ReduceOp>(c.op)));
  }
  if (c.in_place) text += ", in place";
  constexpr std::string_view kKinds[] = {"", ", in one group", ", the last rank aborts", ", stale loads",
                                         ", many in a row"};
  return text + std::string(kKinds[static_cast<std::size_t>(c.kind)]);
}

std::vector<Case> make_cases(const Wanted& wanted) {
  std::vector<Case> cases;
  for (const int ranks : wanted.ranks) Maker(wanted.quick, ranks, cases).make();
  return cases;
}

Capabilities needs_of(const Case& c) {
  Capabilities needs = bit(c.algorithm ? Capability::kAlgorithms : Capability::kPlanner);
  if (c.size == Size::kNone) needs |= bit(Capability::kNothing);
  if (c.request.collective == Collective::kSend) needs |= bit(Capability::kSendReceive);
  if (c.type != ncclUint32 || c.op != ncclSum) needs |= bit(Capability::kTypes);
  if (c.op == ncclAvg) needs |= bit(Capability::kAverages);
  if (c.op == bench::kScaledSum) needs |= bit(Capability::kScaledSums);
  if (c.kind == Kind::kGroup) needs |= bit(Capability::kGroups);
  if (c.kind == Kind::kAbort) needs |= bit(Capability::kAborts);
  if (c.kind == Kind::kStale) needs |= bit(Capability::kStaleMemory);
  return needs;
}

std::string_view name_of(Capability capability) { return kRows[static_cast<std::size_t>(capability)].name; }
std::string_view reason_without(Capability capability) { return kRows[static_cast<std::size_t>(capability)].reason; }

}  // namespace tutti::conformance
