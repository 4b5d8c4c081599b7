// Plans among more ranks than whole schedules are priced for.
#include "planner/miniature.h"
#include "planner/plan.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <ctime>

using namespace tutti;
using planner::Access;
using planner::Question;
using planner::Rules;

namespace {

/// Hosts of so many ranks, and a last one of `last` more, if any.
schedule::Groups hosts_of(int hosts, int ranks, int last = 0) {
  schedule::Groups groups;
  for (int host = 0; host < hosts; ++host) groups.insert(groups.end(), static_cast<std::size_t>(ranks), host);
  groups.insert(groups.end(), static_cast<std::size_t>(last), hosts);
  return groups;
}

struct Width {
  std::uint32_t narrow = 0, wide = 0;
};

/// Whatever the way that data goes, and whatever is wide.
void widen(Width& width, const schedule::RankProgram& rank) {
  for (const auto& lane : rank.lanes) {
    for (const schedule::Endpoint& e : lane.endpoints) {
      if (e.place != schedule::Place::kPeer) continue;
      std::uint32_t& one = e.wide ? width.wide : width.narrow;
      one = std::max(one, e.width);
    }
  }
}

void check_widest(const schedule::Request& request) {
  for (const algorithm::Algorithm& row : algorithm::algorithms()) {
    if (!row.supports(request)) continue;
    INFO(row.name << " " << name_of(request.collective) << " ranks " << request.ranks << " root " << request.root
                  << " groups " << (request.groups != nullptr ? request.groups->size() : 0));
    Width all, some;
    for (int rank = 0; rank < request.ranks; ++rank) widen(all, row.build(request, rank));
    for (const int rank : planner::ranks_with_widest(request)) widen(some, row.build(request, rank));
    CHECK(some.narrow == all.narrow);
    CHECK(some.wide == all.wide);
  }
}

void check_widest_of_all(int ranks, const schedule::Groups* groups) {
  for (int c = 0; c < kCollectives; ++c) {
    schedule::Request request{static_cast<Collective>(c), ranks, 0, 0};
    if (request.collective == Collective::kSend || request.collective == Collective::kReceive) continue;
    request.groups = groups;
    for (const int root : {0, 1, ranks / 2, ranks - 1}) {
      if (root != 0 && !is_rooted(request.collective)) continue;
      request.root = root;
      check_widest(request);
    }
  }
}

Rules rules_over(const schedule::Groups& groups) {
  auto rules = planner::make_rules("", false);
  REQUIRE(rules.ok());
  rules.value().slots = {4, 8 << 10};
  rules.value().groups = groups;
  if (!groups.empty()) rules.value().network = {15, 0, 1.5};
  return rules.value();
}

}  // namespace

TEST_CASE("the ranks that are asked have the widest messages of every row", "[many]") {
  for (const int ranks : {2, 3, 5, 8, 13, 16, 31, 65, 96, 100, 127, 128}) check_widest_of_all(ranks, nullptr);
  for (const auto& groups : {hosts_of(2, 3), hosts_of(3, 4), hosts_of(16, 8), hosts_of(9, 8, 3), hosts_of(2, 40),
                             hosts_of(5, 7, 16), hosts_of(1, 65, 5), hosts_of(64, 1, 2)}) {
    check_widest_of_all(static_cast<int>(groups.size()), &groups);
  }
}

TEST_CASE("a price that is continued is near the one of the whole schedule", "[many]") {
  const Rules flat = rules_over({});
  const Rules over = rules_over(hosts_of(16, 8));
  for (const Rules* rules : {&flat, &over}) {
    for (const std::uint64_t count : {64ull, 16384ull, 4194304ull}) {
      Question q{{Collective::kAllReduce, 128, 0, 0}, count, 4, Access::kSlots, false};
      const auto found = planner::candidates(q, *rules);
      REQUIRE(found.ok());
      for (const planner::Candidate& candidate : found.value()) {
        const auto whole = planner::make_candidate(
            *candidate.algorithm, algorithm::make_schedule(*candidate.algorithm, planner::in_groups(q.request, *rules)),
            q, *rules, candidate.direct);
        INFO(candidate.algorithm->name << " count " << count << (rules == &flat ? " flat" : " over hosts") << ": "
                                       << candidate.predicted_us << " us, whole " << whole.predicted_us);
        CHECK(candidate.predicted_us < 2 * whole.predicted_us);
        CHECK(candidate.predicted_us > whole.predicted_us / 2);
        const planner::Plan planned = planner::make_plan(q, *rules, candidate, 77);
        const planner::Plan of_all = planner::make_plan(q, *rules, whole, 77);
        CHECK(planned.tiling.slab == of_all.tiling.slab);
        if (whole.widest != 0) CHECK(planned.tiling.message_bytes_max(whole.widest) <= rules->slots.slot_bytes);
      }
    }
  }
}

TEST_CASE("a rank of 16384 on hosts of 8 has its plan within a second", "[many]") {
  const Rules rules = rules_over(hosts_of(2048, 8));
  for (const std::uint64_t count : {2ull, 1ull << 18, 1ull << 28}) {
    const Question q{{Collective::kAllReduce, 16384, 0, 0}, count, 4, Access::kSlots, false};
    const std::clock_t began = std::clock();
    const auto found = planner::candidates(q, rules);
    REQUIRE(found.ok());
    const planner::Plan plan = planner::make_plan(q, rules, found.value().front(), 12345);
    const double seconds = static_cast<double>(std::clock() - began) / CLOCKS_PER_SEC;
    INFO(plan.algorithm->name << ": " << seconds << " s");
    CHECK(!plan.program->lanes.empty());
    CHECK(seconds < 1);
  }
}
