// Every protocol as it is, over thousands of seeds: nothing may be found.
#include "schedule/verifier.h"
#include "sim/own_algorithms.h"
#include "sim/runner.h"

#include <catch2/catch.hpp>

#include <set>
#include <string>

using namespace tutti;
using namespace tutti::sim;

namespace {

struct Search {
  std::set<std::string> algorithms;
  std::uint64_t operations = 0;
};

Search search(const Pins& pins, std::uint64_t seeds) {
  static Runner runner;
  Search done;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    const auto scenario = choose_scenario(seed, pins);
    REQUIRE(scenario.ok());
    const Outcome outcome = runner.run(scenario.value());
    done.operations += outcome.operations;
    for (const PlannedCall& c : scenario.value().calls) {
      done.algorithms.insert(std::string(tutti::name_of(c.call.request.collective)) + " " +
                             std::string(c.call.algorithm->name));
    }
    if (outcome.ok && outcome.finished == scenario.value().shape.ranks) continue;
    INFO(describe(scenario.value()));
    INFO(outcome.failure);
    FAIL("seed " << seed);
  }
  return done;
}

}  // namespace

TEST_CASE("every protocol holds", "[clean]") {
  Pins pins;
  const int protocol = GENERATE(range(0, kProtocols));
  pins.protocol = static_cast<Protocol>(protocol);
  const Search done = search(pins, TUTTI_SIM_SEEDS);
  // It was all there: each algorithm of each collective that the protocol can carry.
  const bool any_algorithm = *pins.protocol == Protocol::kSlots || *pins.protocol == Protocol::kLines;
  INFO(name_of(*pins.protocol) << ": " << done.operations << " operations");
  CHECK(done.algorithms.size() >= (any_algorithm ? 25u : *pins.protocol == Protocol::kAnnounce ? 8u : 18u));
  CHECK(done.operations > TUTTI_SIM_SEEDS * 100u);
}

TEST_CASE("the simulator's own schedules are right", "[clean]") {
  const bool in_place = GENERATE(false, true);
  for (const algorithm::Algorithm& own : own_algorithms()) {
    for (int ranks = 2; ranks <= 8; ++ranks) {
      for (int root = 0; root < ranks; ++root) {
        const schedule::Schedule made = algorithm::make_schedule(own, {Collective::kBroadcast, ranks, root, 0});
        schedule::VerifyOptions options;
        options.direct = true;
        options.in_place = in_place;
        const Status verified = schedule::verify(made, options);
        INFO(own.name << " ranks " << ranks << " root " << root);
        INFO((verified.ok() ? "" : verified.error().message));
        REQUIRE(verified.ok());
      }
    }
  }
}

TEST_CASE("calls of all protocols in a row on the same channels hold", "[clean]") {
  Pins pins;
  pins.calls = 8;
  search(pins, TUTTI_SIM_SEEDS / 5);
}

/// Seeds choose whether ranks run ahead (scenario.cpp); here all calls could be one-way.
TEST_CASE("rooted calls that ranks run ahead in hold", "[clean]") {
  Pins pins;
  pins.protocol = Protocol::kAnnounce;
  pins.collective = GENERATE(Collective::kReduce, Collective::kBroadcast, Collective::kGather, Collective::kScatter);
  pins.calls = 4 * static_cast<int>(protocol::kAnnounceDepth);
  search(pins, TUTTI_SIM_SEEDS / 20);
}

TEST_CASE("steps longer than a tile hold, aborted in their middle too", "[clean]") {
  Pins pins;
  pins.protocol = Protocol::kSingleCopy;
  pins.count = 20000;
  pins.ranks = 2;
  pins.calls = 2;
  search(pins, 10);
  pins.abort_at = 22;
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    const auto scenario = choose_scenario(seed, pins);
    REQUIRE(scenario.ok());
    const Outcome outcome = Runner().run(scenario.value());
    INFO(outcome.failure);
    REQUIRE(outcome.ok);
  }
}

TEST_CASE("long runs hold: many rounds, counts far from their start", "[clean]") {
  Pins pins;
  pins.count = 2000;
  pins.slot_bytes = 64;
  search(pins, TUTTI_SIM_SEEDS / 50);
}
