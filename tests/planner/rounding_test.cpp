// All ranks come to the same plan, however their threads round.
#include "planner/plan_cache.h"
#include "planner/rules.h"

#include <catch2/catch.hpp>

#include <cfenv>
#include <cstdint>
#include <string>

using namespace tutti;
using planner::Access;
using planner::Question;
using planner::Rules;

namespace {

std::string plan_in_mode(int rounding, const Rules& rules, const Question& question) {
  planner::PlanCache plans(rules);
  REQUIRE(std::fesetround(rounding) == 0);
  const auto plan = plans.find(question, 0);
  const int left = std::fegetround();
  std::fesetround(FE_TONEAREST);
  CHECK(left == rounding);
  REQUIRE(plan.ok());
  return std::string(plan.value()->algorithm->name) + (plan.value()->direct ? " direct" : " slots");
}

}  // namespace

TEST_CASE("plans do not depend on how a rank's thread rounds") {
  Rules rules = planner::make_rules("", false).value();
  rules.slots = {8, 64 << 10};
  // Not measured, and figures of one machine, with which prices of two algorithms are next to each other.
  for (const planner::MeasuredCosts& measured :
       {planner::MeasuredCosts{},
        planner::MeasuredCosts{
            .slot_gbps = 10.2075, .call_us = 1.28615, .call_gbps = 27.1201, .streamed_gbps = 16.4666}}) {
    rules.measured = measured;
    for (const int ranks : {4, 5, 6, 7, 8, 12}) {
      rules.crowding = ranks / 2.0;
      for (const Collective collective : {Collective::kReduce, Collective::kBroadcast, Collective::kAllToAll}) {
        for (std::uint64_t count = 64; count <= 16 << 20; count *= 2) {
          Question question;
          question.request = {collective, ranks, 0, 0};
          question.count = count;
          question.element_bytes = 4;
          question.access = Access::kSingleCopy;
          question.in_place = true;
          CAPTURE(measured.slot_gbps, ranks, name_of(collective), count);
          const std::string usual = plan_in_mode(FE_TONEAREST, rules, question);
          for (const int rounding : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO})
            CHECK(plan_in_mode(rounding, rules, question) == usual);
        }
      }
    }
  }
}
