// Every algorithm of the table, proved for every rank count up to 32 and every root, with the slot counts that
// communicators have and with the fewest that it can do with; and for samples of rank counts up to 1024.
#include "algorithm/algorithm.h"
#include "schedule/limits.h"
#include "schedule/text.h"
#include "schedule/tiling.h"
#include "schedule/verifier.h"
#include "turn.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include <set>
#include <string>
#include <vector>

namespace tutti::schedule {
namespace {

// A proof has no timing: what sanitizers can find in the verifier shows with few ranks.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kRanksMost = 10;
constexpr int kSampleMost = 65;
#else
constexpr int kRanksMost = 32;
constexpr int kSampleMost = 1024;
#endif

/// The slots of a channel: comm/control.cpp gives 8 to communicators of up to 8 ranks (over hosts from 3 on), else 4.
constexpr int kRealSlots[] = {8, 4};
/// What a peer may count on over a network, where acknowledgements come late, is proved with them.
constexpr bool are_enough(std::uint32_t slots) { return slots + 1 - messages_per_acknowledgement(slots) >= kSlotsMin; }
static_assert(are_enough(kRealSlots[0]) && are_enough(kRealSlots[1]) && kRealSlots[1] == kSlotsMin);

bool is_point_to_point(Collective c) { return c == Collective::kSend || c == Collective::kReceive; }

/// All requests of a collective and a rank count that differ, with these roots.
std::vector<Request> requests(Collective collective, int ranks, const std::vector<int>& roots) {
  std::vector<Request> all;
  if (!is_rooted(collective) && !is_point_to_point(collective)) return {{collective, ranks, 0, 0}};
  for (const int root : roots) {
    if (!is_point_to_point(collective)) all.push_back({collective, ranks, root, 0});
    // A send to oneself is two calls, each with its half of the message: no schedule of one call.
    for (const int rank : roots) {
      if (is_point_to_point(collective) && rank != root) all.push_back({collective, ranks, root, rank});
    }
  }
  return all;
}
std::vector<Request> requests(Collective collective, int ranks) {
  std::vector<int> roots;
  for (int root = 0; root < ranks; ++root) roots.push_back(root);
  return requests(collective, ranks, roots);
}

/// These send and receive round a cycle of ranks in one step, so that with one slot everybody waits for the next one's.
bool needs_two_slots(const algorithm::Algorithm& row, const Request& request) {
  if (request.collective == Collective::kAllReduce)
    return (row.name == "ring" || row.name == "twoshot" || row.in_groups) && request.ranks > 1;
  return row.name == "ring" && !is_rooted(request.collective) && request.ranks > 2;
}

std::string name_of(const algorithm::Algorithm& row, const Request& request) {
  return std::string(row.name) + " " + std::string(tutti::name_of(request.collective)) + " ranks " +
         std::to_string(request.ranks) + " root " + std::to_string(request.root);
}

/// How often the verifier was asked.
int proofs = 0;

void require_right(const Schedule& schedule, const VerifyOptions& options) {
  ++proofs;
  const Status status = verify(schedule, options);
  if (status.ok()) return;
  INFO((options.in_place ? "in place" : "out of place")
       << (options.direct ? ", direct, " : ", ") << options.slots << " slots");
  INFO(status.error().message);
  CHECK(status.ok());
}

constexpr std::initializer_list<bool> kBothPlaces{false, true};

void prove(const algorithm::Algorithm& row, const Schedule& schedule, int slots,
           std::initializer_list<bool> places = kBothPlaces) {
  INFO(name_of(row, schedule.request));
  for (const bool in_place : places) {
    VerifyOptions options{.slots = slots, .in_place = in_place, .rank_order = row.reproducible};
    options.wide_wire = row.wide_wire;
    require_right(schedule, options);
    if (!(in_place ? row.direct_in_place : row.direct)) continue;
    options.direct = true;
    require_right(schedule, options);
  }
}

void survives_text(const Schedule& schedule) {
  const Result<Schedule> read = parse(to_text(schedule));
  INFO((read.ok() ? "" : read.error().message));
  REQUIRE(read.ok());
  CHECK(read.value() == schedule);
}

/// At the schedules of these rows tests/algorithm/hierarchical_test.cpp and planned_trees_test.cpp look themselves.
bool is_special(const algorithm::Algorithm& row) { return row.name.starts_with("hosts_") || row.planned; }
std::size_t special_rows() {
  return static_cast<std::size_t>(std::ranges::count_if(algorithm::algorithms(), is_special));
}

/// Calls visit(row, request) for every row and every request that it serves, up to `ranks_most` ranks.
template <class Visitor>
void for_each_request(int ranks_most, Visitor visit) {
  for (const algorithm::Algorithm& row : algorithm::algorithms()) {
    for (int c = 0; c < kCollectives; ++c) {
      for (int ranks = 1; ranks <= ranks_most; ++ranks) {
        for (const Request& request : requests(static_cast<Collective>(c), ranks)) {
          if (row.supports(request)) visit(row, request);
        }
      }
    }
  }
}

TEST_CASE("every algorithm is right for 1 to 32 ranks and every root, in every form, with real slot counts",
          "[exhaustive]") {
  proofs = 0;
  std::set<const algorithm::Algorithm*> rows;
  for_each_request(kRanksMost, [&](const algorithm::Algorithm& row, const Request& request) {
    rows.insert(&row);
    const Schedule schedule = algorithm::make_schedule(row, request);
    for (const int slots : kRealSlots) prove(row, schedule, slots);
    prove(row, schedule, needs_two_slots(row, request) ? 2 : 1);
  });
  CHECK(rows.size() + special_rows() == algorithm::algorithms().size());
  CHECK(proofs > kRanksMost * kRanksMost * kRanksMost);
}

TEST_CASE("every algorithm for hosts is right on hosts of two, three and five ranks, the last one smaller",
          "[exhaustive]") {
  constexpr int kHostRanksMost = 17;
  proofs = 0;
  std::set<const algorithm::Algorithm*> rows;
  for (const algorithm::Algorithm& row : algorithm::algorithms()) {
    if (!row.over_hosts) continue;
    for (const int width : {2, 3, 5}) {
      for (int ranks = width + 1; ranks <= kHostRanksMost; ++ranks) {
        Groups hosts;
        for (int rank = 0; rank < ranks; ++rank) hosts.push_back(rank / width);
        for (int c = 0; c < kCollectives; ++c) {
          for (Request request : requests(static_cast<Collective>(c), ranks, {0, ranks / 2, ranks - 1})) {
            request.groups = &hosts;
            if (!row.supports(request)) continue;
            rows.insert(&row);
            const Schedule schedule = algorithm::make_schedule(row, request);
            for (const int slots : kRealSlots) prove(row, schedule, slots);
          }
        }
      }
    }
  }
  const auto for_hosts = std::ranges::count(algorithm::algorithms(), true, &algorithm::Algorithm::over_hosts);
  CHECK(static_cast<std::ptrdiff_t>(rows.size()) == for_hosts);
  CHECK(rows.size() >= 7);
  CHECK(proofs > 1000);
}

TEST_CASE("one slot per channel is enough but for cycles, which are named", "[exhaustive]") {
  for_each_request(8, [](const algorithm::Algorithm& row, const Request& request) {
    if (!needs_two_slots(row, request)) return;  // proved with one slot above
    INFO(name_of(row, request));
    const Status status = verify(algorithm::make_schedule(row, request), {.slots = 1});
    REQUIRE_FALSE(status.ok());
    CHECK_THAT(status.error().message, Catch::Contains("deadlock") && Catch::Contains("waits for a free slot"));
  });
}

TEST_CASE("every algorithm survives its text form", "[exhaustive]") {
  for_each_request(std::min(kRanksMost, 16), [](const algorithm::Algorithm& row, const Request& request) {
    INFO(name_of(row, request));
    survives_text(algorithm::make_schedule(row, request));
  });
}

TEST_CASE("every algorithm is right for samples of rank counts up to 1024", "[samples]") {
  static_assert(kSampleMost <= static_cast<int>(kVerifierRanksMax));
  proofs = 0;
  std::size_t number = 0;
  for (const int ranks : {33, 48, 64, 65, 100, 127, 128, 129, 200, 256, 257, 500, 1024}) {
    if (ranks > kSampleMost) break;
    for (const algorithm::Algorithm& row : algorithm::algorithms()) {
      for (int c = 0; c < kCollectives; ++c) {
        std::vector<int> roots{ranks / 3};
        if (ranks <= 129 || is_point_to_point(static_cast<Collective>(c))) roots = {0, ranks / 2, ranks - 1};
        for (const Request& request : requests(static_cast<Collective>(c), ranks, roots)) {
          if (!row.supports(request)) continue;
          if (ranks > 129 && !test::has_its_turn(number++, 3)) continue;
          const Schedule schedule = algorithm::make_schedule(row, request);
          // The largest take a second each: one of them out of place, the other in place.
          if (ranks <= 257)
            prove(row, schedule, 4);
          else
            prove(row, schedule, 4, {ranks == 1024});
        }
      }
    }
  }
  CHECK(proofs > 300);
}

TEST_CASE("every collective has an algorithm for every rank count", "[exhaustive]") {
  for (int c = 0; c < kCollectives; ++c) {
    for (int ranks = 1; ranks <= kRanksMost; ++ranks) {
      for (const Request& request : requests(static_cast<Collective>(c), ranks)) {
        bool served = false;
        for (const algorithm::Algorithm& row : algorithm::algorithms()) served |= row.supports(request);
        CHECK(served);
      }
    }
  }
}

}  // namespace
}  // namespace tutti::schedule
