// What slots and single copies are priced at where a core's own caches hold a call's data, and where they do not.
#include "planner/plan.h"
#include "planner/rules.h"

#include <catch2/catch.hpp>

#include <cstdint>

using namespace tutti;
using planner::Access;
using planner::Question;
using planner::Rules;

namespace {

/// As two cores of a Xeon with AMX measure them.
Rules measured_rules() {
  Rules rules = planner::make_rules("", false).value();
  rules.slots = {8, 64 << 10};
  rules.last_cache_bytes = 260 << 20;
  rules.measured = {.slot_gbps = 10.4, .call_us = 0.9, .call_gbps = 8.2, .streamed_gbps = 8.3};
  return rules;
}

Question question(Collective collective, std::uint64_t bytes, Access access = Access::kSingleCopy, int ranks = 2) {
  Question q;
  q.request = {.collective = collective, .ranks = ranks, .root = 1, .rank = 0};
  q.count = bytes / 4;
  q.element_bytes = 4;
  q.access = access;
  return q;
}

bool is_direct(const Question& q) {
  const auto found = planner::candidates(q, measured_rules());
  REQUIRE(found.ok());
  return found.value().front().direct;
}

}  // namespace

TEST_CASE("single copies take over from slots where a rank's own caches do not hold the data") {
  for (const Collective collective : {Collective::kAllReduce, Collective::kAllGather, Collective::kAllToAll}) {
    CAPTURE(name_of(collective));
    const std::uint64_t blocks = collective == Collective::kAllReduce ? 1 : 2;
    CHECK_FALSE(is_direct(question(collective, (128 << 10) / blocks)));
    CHECK(is_direct(question(collective, (4 << 20) / blocks)));
  }
  CHECK(is_direct(question(Collective::kAllToAll, 2 << 20, Access::kSingleCopy, 4)));
  CHECK_FALSE(is_direct(question(Collective::kAllReduce, 8 << 20, Access::kSingleCopy, 4)));
  // Added up from slots while they come.
  CHECK_FALSE(is_direct(question(Collective::kReduce, 16 << 20)));
}

TEST_CASE("past them, in an exchange, each rank's core copies twice through slots, and once by a single copy") {
  for (const std::uint64_t bytes : {std::uint64_t{32} << 10, std::uint64_t{1} << 20, std::uint64_t{8} << 20}) {
    CAPTURE(bytes);
    Question q = question(Collective::kSend, bytes);
    CHECK_FALSE(is_direct(q));
    q.exchange = true;
    CHECK(is_direct(q) == (bytes >= 1 << 20));
  }
}

TEST_CASE("where there are no single copies, prices of slots are as measured") {
  const auto us = [](Access access) {
    return planner::candidates(question(Collective::kAllToAll, 4 << 20, access), measured_rules())
        .value()
        .front()
        .predicted_us;
  };
  const double by_slots = us(Access::kSlots);
  CHECK(us(Access::kSingleCopy) > by_slots);
  CHECK(by_slots < 700);
}
