// Grouped schedules, proved for every way in which up to seven ranks can be in groups, and for machines' ways.
#include "algorithm/algorithm.h"
#include "schedule/verifier.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>

using namespace tutti;
using schedule::Groups;
using schedule::Request;

namespace {

const algorithm::Algorithm& row() {
  for (const algorithm::Algorithm& a : algorithm::algorithms())
    if (a.name == "grouped") return a;
  FAIL("there is no such row");
  return algorithm::algorithms().front();
}

std::string text_of(const Groups& groups) {
  std::string text;
  for (const int group : groups) text += std::to_string(group) + " ";
  return text;
}

Request request_for(const Groups& groups) {
  return {Collective::kAllReduce, static_cast<int>(groups.size()), 0, 0, &groups};
}

/// In every form, with the slots that communicators have and the fewest.
void prove(const Groups& groups) {
  INFO(text_of(groups));
  const Request request = request_for(groups);
  REQUIRE(row().supports(request));
  const schedule::Schedule made = algorithm::make_schedule(row(), request);
  CHECK(made.request.groups == nullptr);
  for (const int slots : {2, 4, 8}) {
    for (const bool in_place : {false, true}) {
      for (const bool direct : {false, true}) {
        schedule::VerifyOptions options{.slots = slots, .in_place = in_place};
        options.direct = direct;
        options.wide_wire = !direct;
        const Status status = schedule::verify(made, options);
        INFO((status.ok() ? "" : status.error().message));
        CHECK(status.ok());
      }
    }
  }
}

/// All partitions of `ranks` ranks, groups numbered by their first ranks.
void for_each_partition(int ranks, const std::function<void(const Groups&)>& visit) {
  Groups groups(static_cast<std::size_t>(ranks), 0);
  const std::function<void(std::size_t, int)> fill = [&](std::size_t at, int used) {
    if (at == groups.size()) {
      visit(groups);
      return;
    }
    for (int group = 0; group <= used; ++group) {
      groups[at] = group;
      fill(at + 1, std::max(used, group + 1));
    }
  };
  fill(0, 0);
}

Groups sized(const std::vector<int>& sizes) {
  Groups groups;
  for (std::size_t group = 0; group < sizes.size(); ++group)
    groups.insert(groups.end(), static_cast<std::size_t>(sizes[group]), static_cast<int>(group));
  return groups;
}

/// Messages between ranks of different groups that one rank sends, in units.
std::size_t crossing(const schedule::Schedule& made, const Groups& groups, int rank) {
  std::size_t units = 0;
  const schedule::LaneProgram& lane = made.ranks[static_cast<std::size_t>(rank)].lanes.front();
  for (const schedule::Step& step : lane.steps) {
    for (const schedule::Endpoint& sink : lane.sinks(step)) {
      const bool sends = sink.place == schedule::Place::kPeer;
      if (sends && groups[sink.peer] != groups[static_cast<std::size_t>(rank)]) units += sink.width;
    }
  }
  return units;
}

}  // namespace

TEST_CASE("grouped all-reduce is right for every grouping of up to seven ranks", "[grouped][exhaustive]") {
  int partitions = 0;
  for (int ranks = 1; ranks <= 7; ++ranks) {
    for_each_partition(ranks, [&](const Groups& groups) {
      ++partitions;
      prove(groups);
    });
  }
  CHECK(partitions == 1 + 2 + 5 + 15 + 52 + 203 + 877);
}

TEST_CASE("grouped all-reduce is right for groupings that machines have", "[grouped][samples]") {
  for (const auto& sizes : std::vector<std::vector<int>>{{7, 8},
                                                         {8, 7},
                                                         {8, 8},
                                                         {1, 15},
                                                         {16, 16},
                                                         {4, 4, 4, 4},
                                                         {3, 5, 1, 7},
                                                         {2, 2, 2, 2, 2, 2, 2, 2},
                                                         {8, 8, 8, 8}})
    prove(sized(sizes));
  std::mt19937 random(11);
  for (int round = 0; round < 20; ++round) {
    // As launchers deal ranks out: in turns, or as it happens.
    Groups groups = sized({4, 4, 4});
    if (round == 0) {
      for (std::size_t rank = 0; rank < groups.size(); ++rank) groups[rank] = static_cast<int>(rank) % 3;
    } else {
      std::ranges::shuffle(groups, random);
    }
    prove(groups);
  }
}

TEST_CASE("between groups goes what one rank of each has, not what all have", "[grouped]") {
  const Groups groups = sized({4, 4});
  const Request request = request_for(groups);
  const schedule::Schedule made = algorithm::make_schedule(row(), request);
  const algorithm::Algorithm& flat = *algorithm::find("twoshot", request);
  const schedule::Schedule twoshot = algorithm::make_schedule(flat, request);
  REQUIRE(made.shape.units == twoshot.shape.units);
  for (int rank = 0; rank < 8; ++rank) {
    CHECK(crossing(made, groups, rank) == 2);
    CHECK(crossing(twoshot, groups, rank) == 8);
  }
}

TEST_CASE("requests that do not name a group for each rank are not served", "[grouped]") {
  const Groups groups{0, 0, 1};
  CHECK(!row().supports({Collective::kAllReduce, 4, 0, 0, &groups}));
  CHECK(!row().supports({Collective::kReduce, 3, 0, 0, &groups}));
  CHECK(row().supports({Collective::kAllReduce, 3, 0, 0, &groups}));
  CHECK(row().supports({Collective::kAllReduce, 4, 0, 0}));
}
