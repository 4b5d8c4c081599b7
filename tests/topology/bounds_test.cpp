#include "topology/bounds.h"
#include "tests/topology/networks.h"

#include <catch2/catch.hpp>

#include <cstdio>
#include <limits>
#include <optional>

using namespace tutti::topology;

namespace {

Wide out_of(const Network& network, unsigned set) {
  Wide sum = 0;
  for (const Arc& arc : network.arcs) {
    if ((set >> arc.from & 1U) != 0 && (set >> arc.to & 1U) == 0) sum += arc.capacity;
  }
  return sum;
}

unsigned mask_of(const std::vector<int>& nodes) {
  unsigned mask = 0;
  for (const int node : nodes) mask |= 1U << node;
  return mask;
}

/// w(P) by trying every set of switches.
Wide enumerated_w(const Network& network, unsigned block) {
  const unsigned compute = mask_of(network.compute);
  std::optional<Wide> least;
  for (unsigned set = 0; set < 1U << network.nodes; ++set) {
    if ((set & compute) != block) continue;
    const Wide sum = out_of(network, set);
    if (!least || sum < *least) least = sum;
  }
  return *least;
}

Rational enumerated_all_gather(const Network& network) {
  const unsigned compute = mask_of(network.compute);
  std::optional<Rational> least;
  for (unsigned set = 0; set < 1U << network.nodes; ++set) {
    const int held = __builtin_popcount(set & compute);
    if (held == 0 || (set & compute) == compute) continue;
    const Rational rate(out_of(network, set) * static_cast<Wide>(network.compute.size()), held);
    if (!least || rate < *least) least = rate;
  }
  return *least;
}

/// Every partition, as the block of each compute node, numbered in order of their first.
Rational enumerated_partitions(const Network& network) {
  const std::size_t count = network.compute.size();
  std::vector<Wide> w(1U << network.nodes, 0);
  for (unsigned set = 1; set < 1U << count; ++set) {
    unsigned block = 0;
    for (std::size_t i = 0; i < count; ++i) block |= (set >> i & 1U) << network.compute[i];
    w[set] = enumerated_w(network, block);
  }
  std::optional<Rational> least;
  std::vector<unsigned> blocks;
  const auto extend = [&](const auto& self, std::size_t at) -> void {
    if (at == count) {
      if (blocks.size() < 2) return;
      Wide sum = 0;
      for (const unsigned block : blocks) sum += w[block];
      const Rational rate(sum, 2 * (static_cast<Wide>(blocks.size()) - 1));
      if (!least || rate < *least) least = rate;
      return;
    }
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      blocks[i] |= 1U << at;
      self(self, at + 1);
      blocks[i] &= ~(1U << at);
    }
    blocks.push_back(1U << at);
    self(self, at + 1);
    blocks.pop_back();
  };
  extend(extend, 0);
  return *least;
}

Rational enumerated_cut(const Network& network) {
  const unsigned compute = mask_of(network.compute);
  std::optional<Rational> least;
  for (unsigned set = 0; set < 1U << network.nodes; ++set) {
    if ((set & compute) == 0 || (set & compute) == compute) continue;
    const Rational rate(out_of(network, set), 1);
    if (!least || rate < *least) least = rate;
  }
  return *least;
}

double all_reduce_gbps(const Network& network) { return all_reduce_bound(network).rate.to_double() / kGigabyte; }
double all_gather_gbps(const Network& network) { return all_gather_bound(network).rate.to_double() / kGigabyte; }

/// What is named as binding must give the rate.
void check_binding(const Network& network, const PartitionBound& bound) {
  const Network seen = bound.form == PartitionBound::Form::kIn ? reversed(network) : network;
  const unsigned compute = mask_of(network.compute);
  unsigned together = 0;
  Wide sum = 0;
  REQUIRE(bound.blocks.size() == bound.sets.size());
  for (std::size_t i = 0; i < bound.blocks.size(); ++i) {
    const unsigned block = mask_of(bound.blocks[i]);
    REQUIRE(block != 0);
    REQUIRE((together & block) == 0);
    together |= block;
    REQUIRE((mask_of(bound.sets[i]) & compute) == block);
    sum += out_of(seen, mask_of(bound.sets[i]));
  }
  REQUIRE(together == compute);
  if (bound.form == PartitionBound::Form::kCut) {
    REQUIRE(Rational(out_of(seen, mask_of(bound.sets.front())), 1) == bound.rate);
  } else {
    REQUIRE(Rational(sum, 2 * (static_cast<Wide>(bound.blocks.size()) - 1)) == bound.rate);
  }
}

void check_binding(const Network& network, const CutBound& bound) {
  const unsigned set = mask_of(bound.nodes);
  const int held = __builtin_popcount(set & mask_of(network.compute));
  REQUIRE(held > 0);
  REQUIRE(held < static_cast<int>(network.compute.size()));
  REQUIRE(Rational(out_of(network, set) * static_cast<Wide>(network.compute.size()), held) == bound.rate);
}

}  // namespace

TEST_CASE("fractions are exact and reduced") {
  CHECK(Rational(6, -4) == Rational(-3, 2));
  CHECK(Rational(1, 3) + Rational(1, 6) == Rational(1, 2));
  CHECK(Rational(1, 3) - Rational(1, 2) == Rational(-1, 6));
  CHECK(Rational(2, 3) * Rational(9, 4) == Rational(3, 2));
  CHECK(Rational(2, 3) / Rational(4, 9) == Rational(3, 2));
  CHECK(Rational(1, 3) < Rational(334, 1000));
  CHECK(Rational(7, 2).floor() == 3);
  CHECK(Rational(-7, 2).floor() == -4);
  CHECK(Rational(-4, 2).floor() == -2);
  const std::int64_t big = std::numeric_limits<std::int64_t>::max();
  CHECK(Rational(big, static_cast<Wide>(big) - 1) > Rational(static_cast<Wide>(big) + 1, big));
}

TEST_CASE("bounds of machines whose values are known") {
  CHECK(all_reduce_bound(dgx1v()).rate == Rational(600 * kGigabyte, 7));  // 85.7
  CHECK(all_reduce_gbps(full_mesh(4, 100)) == 200);
  CHECK(all_reduce_bound(star(8, 450)).rate == Rational(1800 * kGigabyte, 7));  // 257.1
  CHECK(all_reduce_bound(ring(8, 50)).rate == Rational(400 * kGigabyte, 7));    // 57.1
  CHECK(all_reduce_gbps(line(4, 50)) == 50);
  CHECK(all_gather_bound(line(4, 50)).rate == Rational(200 * kGigabyte, 3));  // halved by two phases: 33.3
  CHECK(all_reduce_gbps(slow_fourth()) == 20);
  CHECK(all_gather_bound(slow_fourth()).rate == Rational(80 * kGigabyte, 3));  // 13.3
  CHECK(all_gather_gbps(star(8, 450)) == Approx(8 * 450 / 7.0));
}

TEST_CASE("the partition that binds is named") {
  const PartitionBound slow = all_reduce_bound(slow_fourth());
  CHECK(slow.blocks == std::vector<std::vector<int>>{{0, 1, 2}, {3}});
  CHECK(slow.form == PartitionBound::Form::kOut);
  const PartitionBound box = all_reduce_bound(star(8, 450));
  CHECK(box.blocks.size() == 8);
  CHECK(box.sets == box.blocks);  // the switch belongs to none
  const CutBound cut = all_gather_bound(slow_fourth());
  CHECK(cut.nodes == std::vector<int>{0, 1, 2});
  const CutBound entered = reduce_scatter_bound(make_network(3, 0, {{0, 1, 5}, {1, 2, 1}, {2, 0, 5}}, false));
  CHECK(entered.rate == Rational(3 * kGigabyte, 2));
}

TEST_CASE("what is no proper machine has a defined bound") {
  const Network alone = make_network(1, 1, {{0, 1, 5}});
  CHECK(all_reduce_bound(alone).unlimited);
  CHECK(all_gather_bound(alone).unlimited);
  CHECK(all_reduce_bound(Network{}).unlimited);
  CHECK(reduce_scatter_bound(Network{}).unlimited);
  const Network parted = make_network(4, 1, {{0, 1, 5}, {2, 3, 7}});
  CHECK(all_reduce_bound(parted).rate == Rational(0));
  CHECK(all_gather_bound(parted).rate == Rational(0));
  check_binding(parted, all_reduce_bound(parted));
  CHECK(all_reduce_bound(make_network(3, 0, {})).rate == Rational(0));
  const Network one_way = make_network(2, 0, {{0, 1, 5}}, false);
  CHECK(all_reduce_bound(one_way).rate == Rational(0));
  CHECK(all_reduce_bound(one_way).blocks.front() == std::vector<int>{1});  // its bytes cannot leave
}

TEST_CASE("one-way links: the cut is stronger than the partition") {
  const Network network = make_network(3, 0, {{0, 1, 4}, {1, 2, 1}, {2, 0, 4}}, false);
  const PartitionBound bound = all_reduce_bound(network);
  CHECK(bound.rate == Rational(kGigabyte));
  CHECK(bound.form == PartitionBound::Form::kCut);
  check_binding(network, bound);
}

TEST_CASE("bounds of switches that add, of memory and of latency") {
  CHECK(nccl_nvls_rate(450 * kGigabyte, 8) == Rational(400 * kGigabyte));
  CHECK(host_memory_bound(160 * kGigabyte, 4) == Rational(20 * kGigabyte));
  CHECK(block_memory_bound(160 * kGigabyte, 4) == Rational(128 * kGigabyte));
  CHECK(hops_bound(8, true) == 1);
  CHECK(hops_bound(1, true) == 0);
  CHECK(hops_bound(8, false) == 3);
  CHECK(hops_bound(9, false) == 4);
  CHECK(latency_bound_ns(8, false, 700) == 2100);
}

TEST_CASE("bounds are those of enumeration on random networks") {
  const unsigned seed = 20261121;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int trial = 0; trial < 2000; ++trial) {
    INFO("trial " << trial);
    const Network network = random_network(random, {});
    REQUIRE(network.full_duplex());
    const PartitionBound bound = all_reduce_bound(network);
    const Rational expected = enumerated_partitions(network);
    REQUIRE(bound.rate == expected);
    check_binding(network, bound);
    REQUIRE(all_reduce_allows(network, expected));
    REQUIRE_FALSE(all_reduce_allows(network, expected + Rational(1, 1000)));
    const CutBound gather = all_gather_bound(network);
    REQUIRE(gather.rate == enumerated_all_gather(network));
    check_binding(network, gather);
    REQUIRE(reduce_scatter_bound(network).rate == gather.rate);
  }
}

TEST_CASE("bounds are those of enumeration on random one-way networks") {
  const unsigned seed = 7;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int trial = 0; trial < 1000; ++trial) {
    INFO("trial " << trial);
    const Network network = random_network(random, {.full_duplex = false});
    const PartitionBound bound = all_reduce_bound(network);
    const Rational expected =
        std::min({enumerated_partitions(network), enumerated_partitions(reversed(network)), enumerated_cut(network)});
    REQUIRE(bound.rate == expected);
    check_binding(network, bound);
    const CutBound gather = all_gather_bound(network);
    REQUIRE(gather.rate == enumerated_all_gather(network));
    check_binding(network, gather);
    REQUIRE(reduce_scatter_bound(network).rate == enumerated_all_gather(reversed(network)));
  }
}

TEST_CASE("bounds of large machines come soon") {
  const auto timed = [](const char* name, const Network& network) {
    const double start = cpu_ms();
    const PartitionBound reduce = all_reduce_bound(network);
    const CutBound gather = all_gather_bound(network);
    const double took = cpu_ms() - start;
    std::printf("%s: all-reduce %.1f in %zu blocks, all-gather %.1f GB/s, %.1f ms\n", name,
                reduce.rate.to_double() / kGigabyte, reduce.blocks.size(), gather.rate.to_double() / kGigabyte, took);
    return took / kSlowdown;
  };
  CHECK(timed("dgx1v", dgx1v()) < 100);
  CHECK(timed("star of 64", star(64, 450)) < 1000);
  CHECK(timed("mesh of 64", full_mesh(64, 10)) < 1000);
  CHECK(timed("8 hosts of 8", hosts_of_eight(8)) < 1000);
}
