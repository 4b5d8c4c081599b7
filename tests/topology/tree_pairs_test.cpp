#include "topology/tree_pairs.h"
#include "tests/topology/networks.h"
#include "topology/arborescence.h"
#include "topology/bounds.h"

#include <catch2/catch.hpp>

#include <cmath>
#include <cstdio>
#include <limits>

using namespace tutti::topology;

namespace {

double total(const PriceTable& table, const std::vector<std::size_t>& parents) {
  double sum = 0;
  for (std::size_t node = 0; node < parents.size(); ++node) {
    if (parents[node] != node) sum += table.at(parents[node], node);
  }
  return sum;
}

Rational rate_of(const std::vector<PairLane>& lanes) {
  Rational sum(0);
  for (const PairLane& lane : lanes) sum = sum + lane.rate;
  return sum;
}

/// Every choice of parents that leads to the root.
double enumerated(const PriceTable& table, std::size_t root) {
  double least = std::numeric_limits<double>::infinity();
  std::vector<std::size_t> parents(table.count, 0);
  const auto choose = [&](const auto& self, std::size_t node) -> void {
    if (node < table.count) {
      for (std::size_t parent = 0; parent < table.count; ++parent) {
        if ((parent == node) != (node == root)) continue;
        parents[node] = parent;
        self(self, node + 1);
      }
      return;
    }
    for (std::size_t start = 0; start < table.count; ++start) {
      std::size_t at = start;
      for (std::size_t steps = 0; steps < table.count; ++steps) at = parents[at];
      if (at != root) return;
    }
    least = std::min(least, total(table, parents));
  };
  choose(choose, 0);
  return least;
}

}  // namespace

TEST_CASE("the cheapest arborescence is that of all") {
  std::mt19937_64 random(5);
  for (int trial = 0; trial < 500; ++trial) {
    PriceTable table{1 + random() % 5, {}};
    for (std::size_t i = 0; i < table.count * table.count; ++i)
      table.prices.push_back(random() % 4 == 0 ? std::numeric_limits<double>::infinity()
                                               : static_cast<double>(random() % 20));
    const std::size_t root = random() % table.count;
    const double expected = enumerated(table, root);
    const std::vector<std::size_t> parents = cheapest_arborescence(table, root);
    REQUIRE(parents.empty() == !std::isfinite(expected));
    if (!parents.empty()) REQUIRE(total(table, parents) == expected);
  }
}

TEST_CASE("pairs on one-way networks whose values are known") {
  const auto gbps = [](const Network& network) {
    const PairPacking packing = pack_pairs(network);
    CHECK(packing.exact);
    const std::vector<PairLane> lanes = lanes_of(network, packing, 32);
    CHECK(loads(network, lanes).hold);
    CHECK(rate_of(lanes).to_double() == Approx(packing.best).epsilon(1e-3));
    return packing.best / kGigabyte;
  };
  // A one-way ring: the bound is 2, trees reach 4/3.
  const Network ring = make_network(4, 0, {{0, 1, 4}, {1, 2, 2}, {2, 3, 4}, {3, 0, 2}}, false);
  CHECK(all_reduce_bound(ring).rate == Rational(2 * kGigabyte));
  CHECK(gbps(ring) == Approx(4.0 / 3));
  CHECK(gbps(star(8, 450)) == Approx(1800 / 7.0));
  CHECK(gbps(dgx1v()) == Approx(600 / 7.0));
  CHECK(gbps(line(4, 50)) == Approx(50));
}

TEST_CASE("what is no proper machine has no pairs") {
  const auto lanes = [](const Network& network) { return lanes_of(network, pack_pairs(network), 8); };
  CHECK(lanes(Network{}).empty());
  CHECK(pack_pairs(make_network(1, 0, {})).exact);
  CHECK(lanes(make_network(2, 0, {{0, 1, 5}}, false)).empty());
  CHECK(lanes(make_network(4, 1, {{0, 1, 5}, {2, 3, 7}})).empty());
}

TEST_CASE("pairs reach the bound on full-duplex networks, and mostly on others") {
  const unsigned seed = 19;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  int short_of = 0;
  double least = 1;
  for (int trial = 0; trial < 400; ++trial) {
    INFO("trial " << trial);
    const bool full_duplex = trial % 2 == 0;
    const Network network = random_network(random, {.compute_max = 5, .switches_max = 2, .full_duplex = full_duplex});
    const Rational bound = all_reduce_bound(network).rate;
    const PairPacking packing = pack_pairs(network);
    REQUIRE(packing.exact);
    const std::vector<PairLane> lanes = lanes_of(network, packing, 64);
    const Rational rate = rate_of(lanes);
    REQUIRE(loads(network, lanes).hold);
    REQUIRE(rate <= bound);
    REQUIRE(packing.best <= bound.to_double() * (1 + 1e-6));
    REQUIRE(rate.to_double() >= packing.best * 0.99);
    if (full_duplex) REQUIRE(packing.best == Approx(bound.to_double()).epsilon(1e-6));
    if (bound == Rational(0)) continue;
    least = std::min(least, packing.best / bound.to_double());
    if (packing.best < bound.to_double() * (1 - 1e-6)) ++short_of;
  }
  std::printf("one-way networks: pairs short of the bound on %d of 200, least %.3f\n", short_of, least);
  CHECK(short_of < 40);
  CHECK(least >= 0.4);
}
