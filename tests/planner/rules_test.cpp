#include "planner/rules.h"

#include <catch2/catch.hpp>

using namespace tutti;
using planner::make_rules;

TEST_CASE("an empty NCCL_ALGO admits everything") {
  const auto rules = make_rules("", false);
  REQUIRE(rules.ok());
  CHECK(rules.value().everywhere.admits("ring"));
  CHECK(rules.value().special[0].admits("tree"));
}

TEST_CASE("lists, exclusions and sections, in any case, spaces ignored") {
  const auto rules = make_rules(" Ring, TREE ;allreduce:^tree; reduce_scatter:OneShot", false);
  REQUIRE(rules.ok());
  CHECK(rules.value().everywhere.admits("ring"));
  CHECK(rules.value().everywhere.admits("tree"));
  CHECK_FALSE(rules.value().everywhere.admits("twoshot"));
  const auto& all_reduce = rules.value().special[static_cast<int>(Collective::kAllReduce)];
  CHECK(all_reduce.admits("twoshot"));
  CHECK_FALSE(all_reduce.admits("tree"));
  const auto& reduce_scatter = rules.value().special[static_cast<int>(Collective::kReduceScatter)];
  CHECK(reduce_scatter.admits("oneshot"));
  CHECK_FALSE(reduce_scatter.admits("ring"));
  CHECK_FALSE(rules.value().special[static_cast<int>(Collective::kBroadcast)].present);
}

TEST_CASE("NCCL's names that mean nothing here are allowed beside others") {
  const auto rules = make_rules("nvls,ring", false);
  REQUIRE(rules.ok());
  CHECK(rules.value().everywhere.admits("ring"));
}

TEST_CASE("a wrong word is an error that names it and the words there are") {
  const auto wrong_algorithm = make_rules("ring,rign", false);
  REQUIRE_FALSE(wrong_algorithm.ok());
  CHECK(wrong_algorithm.error().code == Code::kInvalidUsage);
  CHECK_THAT(wrong_algorithm.error().message, Catch::Contains("\"rign\"") && Catch::Contains("halving_doubling"));
  const auto wrong_collective = make_rules("allredcue:ring", false);
  REQUIRE_FALSE(wrong_collective.ok());
  CHECK_THAT(wrong_collective.error().message, Catch::Contains("\"allredcue\"") && Catch::Contains("reducescatter"));
  CHECK_FALSE(make_rules("ring,", false).ok());
}
