#include "topology/tree_bundles.h"
#include "networks.h"
#include "topology/bounds.h"
#include "topology/packing.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdio>
#include <random>

using namespace tutti::topology;

namespace {

/// Of all trees together.
Rational rate_of(const Network& network, const std::vector<BundleLane>& lanes) {
  Rational sum(0);
  for (const BundleLane& lane : lanes)
    sum = sum + lane.rate * Rational(static_cast<std::int64_t>(network.compute.size()));
  return sum;
}

double best_of(const Network& network, const BundlePacking& packing) {
  return packing.best * static_cast<double>(network.compute.size());
}

}  // namespace

TEST_CASE("bundles where a switch cannot copy: forests stay below the bound, as known") {
  // a-s, s-b, s-c of 1; b-a, c-a of 9: the bound is 1.5, the best forest 0.75 (bounds of the switch's one way in).
  const Network network = make_network(3, 1, {{0, 3, 1}, {3, 1, 1}, {3, 2, 1}, {1, 0, 9}, {2, 0, 9}}, false);
  CHECK(all_gather_bound(network).rate == Rational(3 * kGigabyte, 2));
  const BundlePacking packing = pack_bundles(network);
  CHECK(packing.exact);
  CHECK(best_of(network, packing) / kGigabyte == Approx(0.75));
  const std::vector<BundleLane> lanes = lanes_of(network, packing, 32);
  CHECK(rate_of(network, lanes).to_double() == Approx(best_of(network, packing)).epsilon(1e-3));
  CHECK(loads(network, lanes).hold);
}

TEST_CASE("bundles reach the bound where as much leaves each switch as enters it") {
  const unsigned seed = 41;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int trial = 0; trial < 150; ++trial) {
    INFO("trial " << trial);
    const Network network = random_network(random, {.compute_max = 5, .switches_max = 2});
    const Rational bound = all_gather_bound(network).rate;
    const BundlePacking packing = pack_bundles(network);
    REQUIRE(packing.exact);
    const std::vector<BundleLane> lanes = lanes_of(network, packing, 64);
    const Rational rate = rate_of(network, lanes);
    REQUIRE(loads(network, lanes).hold);
    REQUIRE(rate <= bound);
    REQUIRE(best_of(network, packing) == Approx(bound.to_double()).epsilon(1e-6));
    REQUIRE(rate.to_double() >= best_of(network, packing) * 0.98);
  }
}

TEST_CASE("bundles on one-way networks hold, and are never worse than trees on what both directions have") {
  const unsigned seed = 42;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  int short_of = 0;
  int joined = 0;
  for (int trial = 0; trial < 200; ++trial) {
    INFO("trial " << trial);
    const Network network = random_network(random, {.compute_max = 5, .switches_max = 2, .full_duplex = false});
    const Rational bound = all_gather_bound(network).rate;
    const BundlePacking packing = pack_bundles(network);
    const std::vector<BundleLane> lanes = lanes_of(network, packing, 64);
    REQUIRE(loads(network, lanes).hold);
    REQUIRE(rate_of(network, lanes) <= bound);
    if (bound == Rational(0)) continue;
    ++joined;
    REQUIRE(best_of(network, packing) >= pack_all_gather(network).rate.to_double() * (1 - 1e-6));
    if (best_of(network, packing) < bound.to_double() * (1 - 1e-6)) ++short_of;
  }
  std::printf("one-way networks: bundles short of the bound on %d of %d\n", short_of, joined);
  CHECK(joined > 60);
  CHECK(short_of < joined / 2);
}

TEST_CASE("what is no proper machine has no bundles") {
  const auto lanes = [](const Network& network) { return lanes_of(network, pack_bundles(network), 8); };
  CHECK(lanes(Network{}).empty());
  CHECK(lanes(make_network(2, 0, {{0, 1, 5}}, false)).empty());
}
