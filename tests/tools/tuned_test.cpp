// What --tune makes of its times: winners, merged rules, the table.
#include "../../bench/tuned.h"

#include <catch2/catch.hpp>

using tutti::bench::TunedCalls;
using tutti::bench::TunedSize;
using tutti::bench::tuning_table;
using tutti::bench::tuning_text;

namespace {

/// At every size the cost model's choice is the first.
TunedCalls calls(std::vector<TunedSize> sizes) {
  return {"all_reduce ranks 2 access slots in_place", std::move(sizes)};
}

TunedSize size(const char* name, double ring, double tree, double twoshot) {
  return {name, {{"ring slots", ring}, {"tree slots", tree}, {"twoshot slots", twoshot}}};
}

}  // namespace

TEST_CASE("the cost model's choice stays unless another is 5% faster, and so does the choice of the size before") {
  const TunedCalls found = calls({size("1K", 1.00, 0.96, 2), size("2K", 1.00, 0.94, 0.98), size("4K", 2.00, 1.03, 1.00),
                                  size("8K", 2.00, 1.10, 1.00), size("16K", 1.02, 1.01, 1.00)});
  CHECK(found.winners() == std::vector<std::size_t>{0, 1, 1, 2, 0});
  CHECK(
      tuning_text({found}, {"by hand"}) ==
      "tutti-tuning 1\n# by hand\nall_reduce ranks 2 access slots in_place: from 1K model, from 2K tree slots, from 8K "
      "twoshot slots, from 16K model\n");
}

TEST_CASE("sizes with one winner are one rule; the winner bears a star and the cost model's choice an m") {
  const TunedCalls found = calls({size("64K", 3, 1, 2), size("128K", 3, 1, 2)});
  CHECK(tuning_text({found, calls({})}, {}) ==
        "tutti-tuning 1\nall_reduce ranks 2 access slots in_place: from 64K tree slots\n");
  const std::string table = tuning_table(found);
  CHECK_THAT(table, Catch::Contains("3.00m") && Catch::Contains("1.00*") && Catch::Contains("128K"));
  CHECK_THAT(tuning_table(calls({size("1K", 1, 2, 3)})), Catch::Contains("1.00*m"));
}

TEST_CASE("sizes grow, and each is there once, in whatever order they are measured") {
  TunedCalls found = calls({});
  for (const char* name : {"64K", "1M", "512", "64K", "1G", "0", "2K", "1M"}) found.add(size(name, 1, 2, 3));
  std::vector<std::string> names;
  for (const TunedSize& each : found.sizes) names.push_back(each.size);
  CHECK(names == std::vector<std::string>{"0", "512", "2K", "64K", "1M", "1G"});
  CHECK(found.has("2K"));
  CHECK_FALSE(found.has("2M"));
}

TEST_CASE("the library's rules are taken apart, and one alone is a tuning") {
  const auto rules = tutti::bench::split_rules(
      "send ranks 3 access direct out_of_place: from 512 p2p slots\nsend ranks 3 access direct out_of_place: from 512 "
      "p2p "
      "direct\n");
  REQUIRE(rules.size() == 2);
  CHECK(rules[1].key == "send ranks 3 access direct out_of_place");
  CHECK(rules[1].size == "512");
  CHECK(rules[1].choice == "p2p direct");
  CHECK(forcing_text(rules[1]) == "tutti-tuning 1\nsend ranks 3 access direct out_of_place: from 512 p2p direct\n");
  CHECK(tutti::bench::split_rules("").empty());
}
