// Every mistake that can be planted is found, in every protocol in which it is one, within few seeds, by a message that says
// what is missing.
#include "sim/runner.h"

#include <catch2/catch.hpp>

#include <map>
#include <string>

using namespace tutti;
using namespace tutti::sim;

namespace {

Runner& runner() {
  static Runner one;
  return one;
}

struct Found {
  std::uint64_t seed = 0;  ///< 0: not found
  std::string failure;
};

Found first_failure(const Pins& pins, std::uint64_t seeds) {
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    const auto scenario = choose_scenario(seed, pins);
    REQUIRE(scenario.ok());
    Outcome outcome = runner().run(scenario.value());
    if (!outcome.ok) return {seed, std::move(outcome.failure)};
  }
  return {};
}

/// Seeds within which each is found, in each of its protocols.
constexpr std::uint64_t kSeedsMax = 20;

/// Seeds within which one shows it as the race that it is: others find the same fault as a deadlock or a wrong result first.
constexpr std::uint64_t kExplainedMax = 100;

/// A part of the explanation of the race.
const std::map<Fault, std::string> kExplanations = {
    {Fault::kTailWithoutRelease, "the store was no release"},
    {Fault::kHeadWithoutRelease, "the store was no release"},
    {Fault::kAnnounceWithoutRelease, "the store was no release"},
    {Fault::kTailWithoutAcquire, "a load that was no acquire"},
    {Fault::kHeadWithoutAcquire, "a load that was no acquire"},
    {Fault::kAnnounceWithoutAcquire, "a load that was no acquire"},
    {Fault::kTailAhead, "it did not wait for it"},
    {Fault::kAnnounceAhead, "it did not wait for it"},
    {Fault::kCreditTooMany, ""},
    {Fault::kLineFlagEarly, ""},
    {Fault::kAnnounceFlagEarly, ""},
    {Fault::kRoomWithoutAcquire, "a load that was no acquire"},
    {Fault::kRoomAhead, "it did not wait for it"},
    {Fault::kRoomTooMuch, "it did not wait for it"},
    {Fault::kNoDrain, "it did not wait for it"},
};

}  // namespace

TEST_CASE("every planted fault is found, and explained", "[fault]") {
  for (const FaultRow& row : faults()) {
    for (int p = 0; p < kProtocols; ++p) {
      const auto protocol = static_cast<Protocol>(p);
      if (!applies(row.fault, protocol)) continue;
      Pins pins;
      pins.fault = row.fault;
      pins.protocol = protocol;
      const Found found = first_failure(pins, kSeedsMax);
      INFO(row.name << " over " << name_of(protocol));
      REQUIRE(found.seed != 0);
      std::string all;
      const std::string& explanation = kExplanations.at(row.fault);
      for (std::uint64_t seed = 1; seed <= kExplainedMax && all.find(explanation) == std::string::npos; ++seed) {
        const auto scenario = choose_scenario(seed, pins);
        all += runner().run(scenario.value()).failure + "\n";
      }
      INFO(all);
      CHECK(all.find(explanation) != std::string::npos);
    }
  }
}

TEST_CASE("without reports of races, the races show as wrong results", "[fault]") {
  const Fault fault = GENERATE(Fault::kTailWithoutRelease, Fault::kTailWithoutAcquire, Fault::kTailAhead,
                               Fault::kNoDrain, Fault::kHeadWithoutAcquire);
  const Protocol protocol = fault == Fault::kNoDrain ? Protocol::kDirect : Protocol::kSlots;
  // A reader that is overwritten has read already, in this machine: only a later write can be seen too early.
  const bool may_hide = fault == Fault::kHeadWithoutAcquire;
  Pins pins;
  pins.fault = fault;
  pins.protocol = protocol;
  pins.report_races = false;
  const Found found = first_failure(pins, 200);
  INFO(row_of(fault).name << " seed " << found.seed << ": " << found.failure);
  if (!may_hide) CHECK(found.seed != 0);
  CHECK(found.failure.find("data race") == std::string::npos);
}

TEST_CASE("a rank whose program ends too early leaves the others waiting, and the report says who for whom",
          "[fault]") {
  Pins pins;
  pins.protocol = Protocol::kSlots;
  pins.collective = Collective::kReduce;
  pins.algorithm = "chain";
  pins.ranks = 3;
  pins.calls = 1;
  auto scenario = choose_scenario(1, pins);
  REQUIRE(scenario.ok());
  PlannedCall& call = scenario.value().calls[0];
  const int root = call.call.request.root;
  const int next = (root + 1) % 3;  // where the chain begins; it ends at the root
  const int last = (root + 2) % 3;
  auto program = std::make_shared<schedule::RankProgram>(*call.plans[static_cast<std::size_t>(next)].program);
  program->lanes[0].steps.clear();
  call.plans[static_cast<std::size_t>(next)].program = program;
  const Outcome outcome = runner().run(scenario.value());
  INFO(outcome.failure);
  REQUIRE_FALSE(outcome.ok);
  const std::string who = "rank " + std::to_string(last) + " waits for rank " + std::to_string(next);
  CHECK(outcome.failure.find("deadlock: no rank can go on: ") == 0);
  CHECK(outcome.failure.find(who) != std::string::npos);
  CHECK(outcome.failure.find("  rank " + std::to_string(last) + ":  waits for rank " + std::to_string(next) +
                             ", call 0, lane 0, round 0, step 0 (") != std::string::npos);
  CHECK(outcome.failure.find("  rank " + std::to_string(next) + ":  has made all its calls") != std::string::npos);
}
