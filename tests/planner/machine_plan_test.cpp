#include "planner/machine_plan.h"
#include "algorithm/algorithm.h"
#include "planner/lane_shares.h"
#include "planner/routes.h"
#include "schedule/verifier.h"
#include "tests/topology/networks.h"
#include "topology/packing.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdio>
#include <random>
#include <set>
#include <tuple>
#include <utility>

using namespace tutti;
using namespace tutti::planner;
using topology::Bandwidth;
using topology::kGigabyte;
using topology::Network;

namespace {

constexpr Collective kPlanned[] = {Collective::kAllReduce, Collective::kAllGather, Collective::kReduceScatter};

void prove(const schedule::Schedule& made) {
  for (const bool in_place : {false, true}) {
    const Status status = verify(made, {.slots = 4, .in_place = in_place});
    INFO(made.algorithm << ": " << (status.ok() ? "" : status.error().message));
    REQUIRE(status.ok());
  }
}

bool is_in_the_table(std::string_view name) {
  return std::ranges::count(algorithm::algorithms(), name, &algorithm::Algorithm::name) +
             std::ranges::count(algorithm::planned_algorithms(), name, &algorithm::PlannedAlgorithm::name) >
         0;
}

MachinePlan planned(const Network& network, const MachineQuestion& question = {}) {
  Result<MachinePlan> plan = plan_machine(network, question);
  INFO((plan.ok() ? "" : plan.error().message));
  REQUIRE(plan.ok());
  add_rings(plan.value(), network);
  return std::move(plan).value();
}

/// Every candidate's schedule is right, and none exceeds the bound.
void check(const MachinePlan& plan) {
  REQUIRE(!plan.candidates.empty());
  for (const MachineCandidate& candidate : plan.candidates) {
    INFO(candidate.algorithm);
    CHECK(is_in_the_table(candidate.algorithm));
    prove(candidate.schedule);
    CHECK(candidate.gbps <= plan.certificate.gbps * (1 + 1e-9));
    CHECK(candidate.lanes <= (plan.question.lanes_max > 0 ? plan.question.lanes_max : kLanesMost));
    CHECK(candidate.lanes == static_cast<int>(candidate.schedule.shape.lanes));
    CHECK(candidate.gbps <= plan.chosen().gbps * 1.0011);
  }
}

/// The planner's ranks come first.
void ranks_first(Network& network) {
  std::vector<int> numbers(static_cast<std::size_t>(network.nodes), -1);
  int next = 0;
  for (const int rank : network.compute) numbers[static_cast<std::size_t>(rank)] = next++;
  for (int& number : numbers) number = number < 0 ? next++ : number;
  for (topology::Arc& arc : network.arcs) {
    arc.from = numbers[static_cast<std::size_t>(arc.from)];
    arc.to = numbers[static_cast<std::size_t>(arc.to)];
  }
  for (std::size_t rank = 0; rank < network.compute.size(); ++rank) network.compute[rank] = static_cast<int>(rank);
}

Network pairs(Bandwidth inside, Bandwidth between) {
  return topology::make_network(4, 0, {{0, 1, inside}, {2, 3, inside}, {0, 2, between}});
}

}  // namespace

TEST_CASE("known machines: bound, plan and rings") {
  struct Known {
    const char* name;
    Network network;
    double bound;
    double rings;
  };
  const Known machines[] = {
      {"star of 8", topology::star(8, 450), 450.0 * 8 / 14, 450.0 * 8 / 14},
      {"mesh of 4", topology::full_mesh(4, 100), 200, 200},
      {"ring of 8", topology::ring(8, 50), 2 * 50 * 8.0 / 14, 2 * 50 * 8.0 / 14},
      {"line of 4", topology::line(4, 50), 50, 0},
      {"a slow fourth", topology::slow_fourth(), 20, 0},
      {"DGX-1V", topology::dgx1v(), 600.0 / 7, 600.0 / 7},
      {"two pairs", pairs(100, 10), 10, 0},
  };
  for (const Known& machine : machines) {
    INFO(machine.name);
    const MachinePlan plan = planned(machine.network);
    CHECK(plan.certificate.gbps == Approx(machine.bound).epsilon(1e-12));
    CHECK(plan.chosen().ratio == 1);
    CHECK(plan.ring_gbps == Approx(machine.rings).epsilon(1e-6));
    CHECK(plan.rings_are_best());
    check(plan);
    prove(full_schedule(plan.chosen()));
  }
}

TEST_CASE("all-gather and reduce-scatter reach their bounds, which differ on one-way links") {
  for (const Collective collective : {Collective::kAllGather, Collective::kReduceScatter}) {
    for (const Network& network : {topology::dgx1v(), topology::star(5, 100), topology::line(4, 50),
                                   topology::slow_fourth(), topology::hosts_of_eight(2)}) {
      const MachinePlan plan = planned(network, {collective});
      CHECK(plan.chosen().ratio >= 0.97);
      check(plan);
    }
    CHECK(planned(topology::line(4, 50), {collective}).certificate.gbps == Approx(200.0 / 3));
  }
  // More leaves rank 0 than enters it.
  const Network uneven = topology::make_network(2, 0, {{0, 1, 30}, {1, 0, 10}}, false);
  CHECK(planned(uneven, {Collective::kAllGather}).certificate.gbps == 20);
  CHECK(planned(uneven, {Collective::kReduceScatter}).certificate.gbps == 20);
  CHECK(planned(uneven).certificate.gbps == 10);
}

TEST_CASE("random networks: every candidate is right and below the bound, and the plan comes near it") {
  const unsigned seed = 51;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  int joined = 0;
  double worst = 1;
  int below = 0;
  for (int trial = 0; trial < 150; ++trial) {
    INFO("trial " << trial);
    Network network = topology::random_network(random, {.compute_max = 7, .switches_max = 3});
    ranks_first(network);
    const bool apart = ranks_apart(network).first >= 0;
    joined += apart ? 0 : 1;
    for (const Collective collective : kPlanned) {
      if (apart) {
        CHECK_THAT(plan_machine(network, {collective}).error().message, Catch::Contains("cannot reach"));
        continue;
      }
      const MachinePlan plan = planned(network, {collective});
      check(plan);
      worst = std::min(worst, plan.chosen().ratio);
      below += plan.chosen().ratio < 0.97 ? 1 : 0;
    }
  }
  CHECK(joined > 75);
  std::printf("%d joined random networks, three collectives: %d plans below 97%% of the bound, the worst %.4f\n",
              joined, below, worst);
  CHECK(worst > 0.95);
}

TEST_CASE("fewer lanes are asked for and given") {
  for (const int lanes_max : {1, 3, 8}) {
    const MachinePlan plan = planned(topology::dgx1v(), {Collective::kAllReduce, lanes_max});
    check(plan);
    CHECK(plan.chosen().ratio > 0.3);
  }
  // The double binary tree has two lanes; where a partition binds that no few trees fill, there is still a plan.
  check(planned(topology::full_mesh(4, 100), {Collective::kAllReduce, 1}));
  const unsigned seed = 52;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int trial = 0; trial < 100; ++trial) {
    INFO("trial " << trial);
    Network network = topology::random_network(random, {.compute_max = 6, .switches_max = 3, .capacity_max = 50});
    ranks_first(network);
    if (ranks_apart(network).first >= 0) continue;
    for (const Collective collective : kPlanned) check(planned(network, {collective, 1 + trial % 3}));
  }
}

TEST_CASE("messages are counted on the links that they cross") {
  // Two ranks on each of two switches; all pairs put (2 x 2) of (4 x 3) messages a phase across, each a quarter, twice.
  const Network network =
      topology::make_network(4, 2, {{0, 4, 100}, {1, 4, 100}, {2, 5, 100}, {3, 5, 100}, {4, 5, 30}});
  const MachinePlan plan = planned(network);
  const MachineCandidate* all_pairs = plan.find("twoshot");
  REQUIRE(all_pairs != nullptr);
  CHECK(all_pairs->gbps == Approx(30 / 2.0));
  const topology::Arc& fullest = network.arcs[static_cast<std::size_t>(all_pairs->fullest)];
  CHECK((fullest.from == 4 || fullest.from == 5));
  CHECK(fullest.capacity == 30 * kGigabyte);
  // A ring crosses twice 2 (n - 1) / n of the data, once in each direction.
  CHECK(plan.find("ring")->gbps == Approx(30 * 4 / 6.0));
  CHECK(plan.find("packed_trees")->gbps == Approx(30));
  CHECK(plan.chosen().algorithm == "packed_trees");
}

TEST_CASE("the shortest way is the widest, and equal ones share") {
  // From 0 to 1: through 2 or 3, both 10 wide, or through 4, 9 wide.
  const Network network =
      topology::make_network(2, 3, {{0, 2, 10}, {2, 1, 10}, {0, 3, 10}, {3, 1, 20}, {0, 4, 9}, {4, 1, 9}});
  Routes routes(network);
  const std::optional<Route> route = routes.shortest(0, 1);
  REQUIRE(route.has_value());
  double through[5] = {};
  for (const auto& [arc, part] : *route) through[network.arcs[static_cast<std::size_t>(arc)].to] += part;
  CHECK(through[2] == 0.5);
  CHECK(through[3] == 0.5);
  CHECK(through[4] == 0);
  CHECK(through[1] == 1);
  // No way leads through a rank.
  const Network line = topology::line(3, 1);
  Routes over_line(line);
  CHECK_FALSE(over_line.shortest(0, 2).has_value());
  CHECK(over_line.shortest(0, 1).has_value());
}

TEST_CASE("rates become whole lanes") {
  CHECK(parts_of({1, 1, 2}, 4) == std::vector<int>{1, 1, 2});
  CHECK(parts_of({1, 1, 1}, 4) == std::vector<int>{2, 1, 1});
  CHECK(parts_of({0.1, 0.1, 0.8}, 2) == std::vector<int>{0, 0, 2});
  const std::vector<int> thirds = parts_of({1.0 / 3, 1.0 / 3, 1.0 / 3}, 3);
  CHECK(thirds == std::vector<int>{1, 1, 1});
}

TEST_CASE("lanes are dealt so that the links they share are used best") {
  // Ranks 0 and 1 have three ways between them: one of 100, two of 34 that the rates say too little of for two lanes.
  const Network network =
      topology::make_network(2, 3, {{0, 2, 50}, {2, 1, 50}, {0, 3, 50}, {3, 1, 50}, {0, 4, 40}, {4, 1, 40}});
  std::vector<topology::Ring> rings;
  for (const int by : {2, 3, 4}) rings.push_back({by == 4 ? 40.0 : 50.0, {0, 1}, {{0, by, 1}, {1, by, 0}}});
  const SharedLanes<topology::Ring> few = share_out(network, rings, 2);
  CHECK(few.lanes == std::vector<const topology::Ring*>{&rings[0], &rings[1]});
  CHECK(few.rate == Approx(100.0 * topology::kGigabyte));
  const SharedLanes<topology::Ring> all = share_out(network, rings, 14);
  CHECK(all.lanes.size() == 14);
  CHECK(all.rate == Approx(140.0 * topology::kGigabyte));

  // A ring that takes all of the others' links: the rates round to one lane of it and one of another, which share a link.
  rings = {
      {45, {0, 1}, {{0, 2, 1}, {1, 3, 0}}}, {50, {0, 1}, {{0, 3, 1}, {1, 3, 0}}}, {30, {0, 1}, {{0, 2, 1}, {1, 2, 0}}}};
  const SharedLanes<topology::Ring> apart = share_out(network, rings, 2);
  CHECK(apart.lanes == std::vector<const topology::Ring*>{&rings[1], &rings[2]});
  CHECK(apart.rate == Approx(100.0 * topology::kGigabyte));
}

TEST_CASE("few lanes of many pairs of trees come near to what any number reaches") {
  std::mt19937_64 random(3);
  double least = 1;
  for (int trial = 0; trial < 40; ++trial) {
    const int ranks = 4 + static_cast<int>(random() % 9);
    std::vector<topology::Arc> arcs;
    for (int from = 0; from < ranks; ++from) {
      for (int to = 0; to < ranks; ++to) {
        if (from != to && (to == (from + 1) % ranks || random() % 3 == 0))
          arcs.push_back({from, to, static_cast<topology::Bandwidth>(3 + random() % 300)});
      }
    }
    for (const Collective collective : {Collective::kAllReduce, Collective::kAllGather}) {
      const Result<MachinePlan> plan =
          plan_machine(topology::make_network(ranks, 0, arcs, false), {.collective = collective});
      REQUIRE(plan.ok());
      const double most = plan.value().chosen().most_gbps;
      if (most > 0) least = std::min(least, plan.value().chosen().gbps / most);
    }
  }
  CHECK(least > 0.95);
}

TEST_CASE("among many ranks pairs of trees are looked for only where trees are far from the bound") {
  for (const int ranks : {4, 20}) {
    std::vector<topology::Arc> arcs;
    for (int rank = 0; rank < ranks; ++rank) {
      arcs.push_back({rank, ranks, 100});
      arcs.push_back({ranks, rank, 99});
    }
    const Result<MachinePlan> plan = plan_machine(topology::make_network(ranks, 1, arcs, false), {});
    REQUIRE(plan.ok());
    CHECK(plan.value().find("packed_trees")->ratio > 0.97);
    CHECK((plan.value().find("packed_pairs") != nullptr) == (ranks == 4));
  }
}

TEST_CASE("one-way links are planned for: pairs of trees for all-reduce, bundles for the others") {
  // A one-way ring joins the ranks in no direction both ways; the bound is 2, pairs of trees reach 4/3.
  const Network ring = topology::make_network(4, 0, {{0, 1, 4}, {1, 2, 2}, {2, 3, 4}, {3, 0, 2}}, false);
  const MachinePlan plan = planned(ring);
  check(plan);
  CHECK(plan.certificate.gbps == 2);
  const MachineCandidate* pairs_of_trees = plan.find("packed_pairs");
  REQUIRE(pairs_of_trees != nullptr);
  CHECK(pairs_of_trees->most_gbps == Approx(4.0 / 3));
  CHECK(pairs_of_trees->most_is_proved);
  CHECK(pairs_of_trees->gbps >= 0.97 * pairs_of_trees->most_gbps);
  CHECK(plan.chosen().gbps >= pairs_of_trees->gbps);
  prove(full_schedule(*pairs_of_trees));
  // A switch that cannot copy, and that more leaves than enters: the bound is 1.5, forests reach 0.75.
  const Network fork = topology::make_network(3, 1, {{0, 3, 1}, {3, 1, 1}, {3, 2, 1}, {1, 0, 9}, {2, 0, 9}}, false);
  for (const Collective collective : {Collective::kAllGather, Collective::kReduceScatter}) {
    Network network = fork;
    if (collective == Collective::kReduceScatter) network = topology::reversed(fork);
    const MachinePlan rooted = planned(network, {collective});
    check(rooted);
    CHECK(rooted.certificate.gbps == 1.5);
    CHECK(rooted.chosen().gbps == Approx(0.75));
  }
}

TEST_CASE("random one-way networks get plans, near what trees can") {
  const unsigned seed = 52;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  int joined = 0;
  int near = 0;
  for (int trial = 0; trial < 100; ++trial) {
    INFO("trial " << trial);
    Network network = topology::random_network(random, {.compute_max = 5, .switches_max = 2, .full_duplex = false});
    ranks_first(network);
    if (ranks_apart(network).first >= 0) continue;
    ++joined;
    for (const Collective collective : kPlanned) {
      const MachinePlan plan = planned(network, {collective});
      check(plan);
      near += plan.chosen().ratio >= 0.97 ? 1 : 0;
      double most = 0;
      for (const MachineCandidate& candidate : plan.candidates) most = std::max(most, candidate.most_gbps);
      CHECK(plan.chosen().gbps >= 0.75 * most);  // of any number of lanes, to 32 of equal shares
    }
  }
  std::printf("%d joined one-way networks, three collectives: %d plans at 97%% of the bound or more\n", joined, near);
  CHECK(joined > 30);
  CHECK(near > joined * 3 * 3 / 4);
}

TEST_CASE("one rank has nothing to move; what cannot be planned says so") {
  const MachinePlan alone = planned(topology::make_network(1, 0, {}));
  CHECK(alone.certificate.unlimited);
  prove(alone.chosen().schedule);
  CHECK_THAT(plan_machine(topology::star(3, 1), {Collective::kBroadcast}).error().message,
             Catch::Contains("broadcast"));
  CHECK_THAT(plan_machine(Network{}, {}).error().message, Catch::Contains("no rank"));
  CHECK_THAT(plan_machine(topology::make_network(3, 0, {{0, 1, 5}}), {}).error().message,
             Catch::Contains("rank 0 cannot reach rank 2"));
  CHECK_THAT(plan_machine(topology::star(kPlannedRanksMax + 1, 1), {}).error().message, Catch::Contains("at most"));
  const Network wide = topology::make_network(2, kPlannedNodesMax, {{0, 2, 1}, {1, 2, 1}});
  CHECK_THAT(plan_machine(wide, {}).error().message, Catch::Contains("at most"));
}

/// Cables of any widths between any nodes, the first ones a tree over all.
Network irregular(int ranks, int switches, int cables_each, unsigned seed) {
  std::mt19937_64 random(seed);
  const int nodes = ranks + switches;
  std::set<std::pair<int, int>> joined;
  std::vector<topology::Arc> cables;
  const auto join = [&](int a, int b) {
    if (a == b || !joined.emplace(std::min(a, b), std::max(a, b)).second) return;
    cables.push_back({a, b, 15 + static_cast<Bandwidth>(random() % 36)});
  };
  for (int node = 1; node < nodes; ++node) join(node, static_cast<int>(random() % static_cast<unsigned>(node)));
  while (static_cast<int>(cables.size()) < nodes * cables_each / 2) {
    const auto any = [&] { return static_cast<int>(random() % static_cast<unsigned>(nodes)); };
    const int a = any();
    join(a, any());
  }
  return topology::make_network(ranks, switches, cables);
}

TEST_CASE("irregular networks come near the bound, soon") {
  for (const auto& [ranks, switches, each] : {std::tuple(8, 2, 4), {16, 3, 8}, {32, 4, 10}, {64, 0, 12}, {64, 8, 10}}) {
    const Network network = irregular(ranks, switches, each, 5);
    for (const Collective collective : kPlanned) {
      INFO(ranks << " ranks, " << name_of(collective));
      const double start = topology::cpu_ms();
      const MachinePlan plan = std::move(plan_machine(network, {collective})).value();
      const double took = topology::cpu_ms() - start;
      std::printf("irregular, %d ranks, %s: %.3f of the bound with %d lanes in %.0f ms\n", ranks,
                  std::string(name_of(collective)).c_str(), plan.chosen().ratio, plan.chosen().lanes, took);
      CHECK(plan.chosen().ratio >= 0.97);
      CHECK(took / topology::kSlowdown < (ranks <= 8 ? 100 : 1000));
    }
  }
}

TEST_CASE("plans come soon") {
  const auto timed = [](const char* name, const Network& network) {
    const double start = topology::cpu_ms();
    const MachinePlan plan = std::move(plan_machine(network, {})).value();
    const double took = topology::cpu_ms() - start;
    std::printf("%s: %s, %.1f of %.1f GB/s in %.1f ms\n", name, std::string(plan.chosen().algorithm).c_str(),
                plan.chosen().gbps, plan.certificate.gbps, took);
    CHECK(plan.chosen().ratio >= 0.97);
    return took / topology::kSlowdown;
  };
  CHECK(timed("DGX-1V", topology::dgx1v()) < 100);
  CHECK(timed("star of 8", topology::star(8, 450)) < 100);
  CHECK(timed("star of 64", topology::star(64, 450)) < 1000);
  CHECK(timed("mesh of 64", topology::full_mesh(64, 10)) < 1000);
  CHECK(timed("8 hosts of 8", topology::hosts_of_eight(8)) < 1000);
}
