// A seed is a run: the same text every time, whatever ran before, and nothing in it that depends on the machine.
#include "sim/runner.h"

#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <string>

using namespace tutti;
using namespace tutti::sim;

namespace {

std::string text_of(Runner& runner, std::uint64_t seed, const Pins& pins) {
  const auto scenario = choose_scenario(seed, pins);
  REQUIRE(scenario.ok());
  const Outcome outcome = runner.run(scenario.value(), true);
  return describe(scenario.value()) + outcome.trace + outcome.failure;
}

}  // namespace

TEST_CASE("a seed gives the same text every time", "[replay]") {
  Runner one;
  Runner other;
  Pins pins;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    pins.fault = seed % 2 == 0 ? Fault::kNone : Fault::kAnnounceFlagEarly;
    const std::string text = text_of(one, seed, pins);
    CHECK(text_of(other, 1000 - seed, pins) != text);
    CHECK(text_of(other, seed, pins) == text);
    CHECK(text_of(one, seed, pins) == text);
  }
}

TEST_CASE("tracing changes nothing", "[replay]") {
  Runner runner;
  Pins pins;
  pins.fault = Fault::kHeadWithoutRelease;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    const auto scenario = choose_scenario(seed, pins);
    REQUIRE(scenario.ok());
    const Outcome quiet = runner.run(scenario.value());
    const Outcome told = runner.run(scenario.value(), true);
    CHECK(quiet.failure == told.failure);
    CHECK(quiet.operations == told.operations);
    CHECK(quiet.trace.empty());
  }
}

TEST_CASE("a trace holds no addresses", "[replay]") {
  Runner runner;
  const std::string text = text_of(runner, 5, {});
  // Values have 8 hexadecimal digits, words up to 16; pointers of this process begin like that of any object here.
  const auto here = reinterpret_cast<std::uintptr_t>(&runner);
  CHECK(text.find(fmt::format("{:x}", here >> 24)) == std::string::npos);
  CHECK(text.find("0x7f") == std::string::npos);
}

TEST_CASE("a pin changes its part alone", "[replay]") {
  Pins pins;
  const auto free = choose_scenario(11, pins);
  pins.calls = static_cast<int>(free.value().calls.size()) + 1;
  const auto longer = choose_scenario(11, pins);
  REQUIRE(longer.ok());
  for (std::size_t c = 0; c < free.value().calls.size(); ++c) {
    CHECK(describe(longer.value().calls[c].call) == describe(free.value().calls[c].call));
  }
}

TEST_CASE("pins that exclude each other are refused with the reason", "[replay]") {
  Pins pins;
  pins.ranks = 99;
  CHECK(choose_scenario(1, pins).error().message == "99 ranks; a simulation has 1 to 16");
  pins = {};
  pins.algorithm = "ring";
  pins.collective = Collective::kAllToAll;
  CHECK(choose_scenario(1, pins).error().message ==
        "no call has all that is pinned --collective all_to_all --algorithm ring; try with fewer options");
  pins = {};
  pins.ranks = 8;
  pins.slots = 64;
  pins.slot_bytes = 16384;
  CHECK_THAT(choose_scenario(1, pins).error().message,
             Catch::Matchers::StartsWith("seed 1: 8 ranks with 64 slots of 16384 bytes and these calls take ") &&
                 Catch::Matchers::EndsWith(
                     " bytes of simulated memory, of which there are 33554432: pin fewer or smaller ones"));
  pins.ranks = 2;
  CHECK(choose_scenario(1, pins).ok());
  pins = {};
  pins.fault = Fault::kLineFlagEarly;
  pins.protocol = Protocol::kSlots;
  CHECK(choose_scenario(1, pins).error().message ==
        "the fault line-flag-early is none of slots: --list-faults says where it applies");
}
