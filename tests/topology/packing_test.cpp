#include "topology/packing.h"
#include "tests/topology/networks.h"

#include <catch2/catch.hpp>

#include <cstdio>
#include <map>
#include <random>

using namespace tutti::topology;

namespace {

void check_exact(const Network& network) {
  const TreePacking packing = pack_all_reduce(network);
  REQUIRE(packing.rate == all_reduce_bound(network).rate);
  REQUIRE(loads(network, packing.lanes, TreeUse::kUpAndDown).hold);
}

void check_gather(const Network& network) {
  const TreePacking packing = pack_all_gather(network);
  REQUIRE(packing.rate == all_gather_bound(network).rate);
  REQUIRE(loads(network, packing.lanes, TreeUse::kDown).hold);
  for (const int root : network.compute) {
    Rational from_here(0);
    for (const TreeLane& lane : packing.lanes) {
      if (lane.root == root) from_here = from_here + lane.rate;
    }
    REQUIRE(from_here * Rational(static_cast<std::int64_t>(network.compute.size())) == packing.rate);
  }
}

}  // namespace

TEST_CASE("the check on packings sees what is wrong") {
  const Network network = star(3, 10);
  const TreeEdge there{0, 1, {0, 3, 1}};
  const TreeEdge on{1, 2, {1, 3, 2}};
  TreeLane lane{Rational(5 * kGigabyte), 0, 0, {there, on}};
  CHECK(loads(network, {lane}, TreeUse::kUpAndDown).hold);
  CHECK(headroom(network, loads(network, {lane}, TreeUse::kUpAndDown)) == Rational(1));
  lane.rate = Rational(10 * kGigabyte + 1);
  CHECK(loads(network, {lane}, TreeUse::kDown).connected);
  CHECK_FALSE(loads(network, {lane}, TreeUse::kDown).hold);
  lane.rate = Rational(5 * kGigabyte + 1);
  CHECK(loads(network, {lane}, TreeUse::kDown).hold);
  CHECK_FALSE(loads(network, {lane}, TreeUse::kUpAndDown).hold);  // node 1's link carries both edges
  lane.edges = {there};
  CHECK_FALSE(loads(network, {lane}, TreeUse::kDown).connected);
  lane.edges = {there, {1, 2, {1, 2}}};
  CHECK_FALSE(loads(network, {lane}, TreeUse::kDown).connected);  // no such arc
  lane.edges = {there, {0, 1, {0, 3, 1}}};
  CHECK_FALSE(loads(network, {lane}, TreeUse::kDown).connected);
}

TEST_CASE("a tree is rooted in its middle") {
  TreeLane lane{Rational(1), 0, 0, {{0, 1, {0, 1}}, {1, 2, {1, 2}}, {2, 3, {2, 9, 3}}, {3, 4, {3, 4}}}};
  root_in_the_middle(lane);
  CHECK(lane.root == 2);
  CHECK(depth_of(lane) == 2);
  CHECK(lane.edges.size() == 4);
  for (const TreeEdge& edge : lane.edges) {
    CHECK(edge.path.front() == edge.parent);
    CHECK(edge.path.back() == edge.child);
  }
}

TEST_CASE("packings of known machines reach the bound") {
  for (const Network& network :
       {dgx1v(), full_mesh(4, 100), star(8, 450), ring(8, 50), line(4, 50), slow_fourth(), hosts_of_eight(2)}) {
    check_exact(network);
    check_gather(network);
  }
}

TEST_CASE("what is no proper machine has no trees") {
  CHECK(pack_all_reduce(make_network(1, 0, {})).lanes.empty());
  CHECK(pack_all_reduce(Network{}).lanes.empty());
  CHECK(pack_all_gather(make_network(4, 1, {{0, 1, 5}, {2, 3, 7}})).lanes.empty());
  CHECK(pack_all_reduce(make_network(4, 1, {{0, 1, 5}, {2, 3, 7}})).rate == Rational(0));
}

TEST_CASE("packings reach the bound on random networks") {
  const unsigned seed = 41;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int trial = 0; trial < 1500; ++trial) {
    INFO("trial " << trial);
    const Network network = random_network(random, {.compute_max = 7, .switches_max = 5});
    check_exact(network);
    check_gather(network);
  }
}

namespace {

double check_limited(const Network& network, int lanes_max) {
  const TreePacking packing = pack_all_reduce(network, lanes_max);
  const Rational bound = all_reduce_bound(network).rate;
  REQUIRE(packing.lanes.size() <= static_cast<std::size_t>(lanes_max));
  REQUIRE(loads(network, packing.lanes, TreeUse::kUpAndDown).hold);
  if (bound == Rational(0)) return 1;
  int weights = 0;
  for (const TreeLane& lane : packing.lanes) weights += lane.weight;
  for (const TreeLane& lane : packing.lanes) REQUIRE(lane.rate == packing.rate * Rational(lane.weight, weights));
  return (packing.rate / bound).to_double();
}

}  // namespace

TEST_CASE("few lanes keep 97 in 100 of the bound") {
  for (const Network& network : {dgx1v(), full_mesh(4, 100), star(8, 450), ring(8, 50), line(4, 50), slow_fourth()})
    CHECK(check_limited(network, 16) == 1);
  CHECK(check_limited(hosts_of_eight(2), 16) > 0.97);
  const unsigned seed = 42;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  struct Limit {
    int lanes;
    int below_max;
    double least;
  };
  // Networks of up to 12 nodes and 60 unequal links, which 8 or 16 trees cannot all fill.
  for (const auto& [lanes, below_max, least_allowed] : {Limit{8, 90, 0.6}, Limit{16, 30, 0.85}, Limit{32, 0, 0.97}}) {
    int below = 0;
    double least = 1;
    constexpr int kTrials = 300;
    for (int trial = 0; trial < kTrials; ++trial) {
      const Network network = random_network(random, {.compute_max = 8, .switches_max = 4, .capacity_max = 50});
      const double ratio = check_limited(network, lanes);
      least = std::min(least, ratio);
      if (ratio < 0.97) ++below;
    }
    std::printf("%d lanes: %d of %d random networks below 97%%, least %.4f\n", lanes, below, kTrials, least);
    CHECK(below <= below_max);
    CHECK(least >= least_allowed);
  }
}

TEST_CASE("lanes that are too few for what binds have no trees, or those that fit") {
  const unsigned seed = 43;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  int none = 0;
  for (int trial = 0; trial < 300; ++trial) {
    const Network network = random_network(random, {.compute_max = 6, .switches_max = 3, .capacity_max = 50});
    for (const int lanes_max : {1, 2, 3}) {
      const double ratio = check_limited(network, lanes_max);
      if (ratio == 0) ++none;
    }
  }
  CHECK(none > 0);
}

TEST_CASE("packings of large machines come soon") {
  const auto once = [](const char* name, const Network& network, int lanes_max) {
    const double start = cpu_ms();
    const TreePacking packing = lanes_max == 0 ? pack_all_reduce(network) : pack_all_reduce(network, lanes_max);
    const double took = cpu_ms() - start;
    int deepest = 0;
    for (const TreeLane& lane : packing.lanes) deepest = std::max(deepest, depth_of(lane));
    std::printf("%s, lanes %d: %.1f GB/s, %zu trees, at most %d deep, %.1f ms\n", name, lanes_max,
                packing.rate.to_double() / kGigabyte, packing.lanes.size(), deepest, took);
    CHECK(loads(network, packing.lanes, TreeUse::kUpAndDown).hold);
    return took / kSlowdown;
  };
  // What else runs takes caches and memory away, also from a processor that is this one's alone: the best of three.
  const auto timed = [&](const char* name, const Network& network, int lanes_max) {
    double least = once(name, network, lanes_max);
    for (int again = 0; again < 2 && least > 100; ++again) least = std::min(least, once(name, network, lanes_max));
    return least;
  };
  for (const int lanes_max : {0, 16, 32}) {
    CHECK(timed("dgx1v", dgx1v(), lanes_max) < 100);
    CHECK(timed("star of 8", star(8, 450), lanes_max) < 100);
    CHECK(timed("star of 16", star(16, 450), lanes_max) < 1000);
    CHECK(timed("star of 64", star(64, 450), lanes_max) < 1000);
    CHECK(timed("mesh of 64", full_mesh(64, 10), lanes_max) < 1000);
    CHECK(timed("2 hosts of 8", hosts_of_eight(2), lanes_max) < 1000);
    CHECK(timed("8 hosts of 8", hosts_of_eight(8), lanes_max) < 1000);
  }
}

TEST_CASE("all-gather in few lanes: as many trees from each rank as there are lanes, near the bound") {
  struct Known {
    const char* name;
    Network network;
    int lanes;
    double least;
  };
  const Known known[] = {
      {"DGX-1V", dgx1v(), 4, 0.9},
      {"DGX-1V", dgx1v(), 6, 0.97},
      {"star", star(8, 450), 1, 1},
      {"line", line(4, 50), 1, 1},
      {"slow fourth", slow_fourth(), 4, 0.97},
      {"two hosts", hosts_of_eight(2), 8, 0.97},
  };
  for (const Known& machine : known) {
    INFO(machine.name << ", " << machine.lanes << " lanes");
    const Rational bound = all_gather_bound(machine.network).rate;
    const TreePacking packing = pack_all_gather(machine.network, machine.lanes);
    const Loads carried = loads(machine.network, packing.lanes, TreeUse::kDown);
    CHECK(carried.connected);
    CHECK(carried.hold);
    CHECK(packing.rate <= bound);
    CHECK(packing.rate.to_double() >= machine.least * bound.to_double());
    std::map<int, int> weights;
    for (const TreeLane& lane : packing.lanes) weights[lane.root] += lane.weight;
    CHECK(weights.size() == machine.network.compute.size());
    for (const auto& [root, weight] : weights) CHECK((weight == weights.begin()->second && weight <= machine.lanes));
  }
}

TEST_CASE("all-gather in few lanes on random networks holds, and gains with more of them") {
  const unsigned seed = 61;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  double sum_few = 0;
  double sum_many = 0;
  int joined = 0;
  for (int trial = 0; trial < 150; ++trial) {
    INFO("trial " << trial);
    const Network network = random_network(random, {.compute_max = 7, .switches_max = 3});
    const Rational bound = all_gather_bound(network).rate;
    const TreePacking few = pack_all_gather(network, 4);
    const TreePacking many = pack_all_gather(network, 32);
    if (bound == Rational(0)) {
      CHECK(few.lanes.empty());
      continue;
    }
    ++joined;
    for (const TreePacking* packing : {&few, &many}) {
      REQUIRE(loads(network, packing->lanes, TreeUse::kDown).hold);
      REQUIRE(loads(network, packing->lanes, TreeUse::kDown).connected);
      REQUIRE(packing->rate <= bound);
    }
    sum_few += few.rate.to_double() / bound.to_double();
    sum_many += many.rate.to_double() / bound.to_double();
    CHECK(many.rate.to_double() >= 0.9 * bound.to_double());
  }
  std::printf("all-gather of random networks: %.3f of the bound with 4 lanes, %.3f with 32\n", sum_few / joined,
              sum_many / joined);
  CHECK(sum_few / joined > 0.85);
  CHECK(sum_many / joined > 0.98);
}
