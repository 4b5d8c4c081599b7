// Networks that tests of bounds and packings share: known shapes and seeded random ones.
#pragma once

#include "topology/network.h"

#include <algorithm>
#include <ctime>
#include <random>
#include <utility>
#include <vector>

namespace tutti::topology {

/// compute nodes 0..compute-1, then the switches; cables of whole GB/s.
inline Network make_network(int compute, int switches, const std::vector<Arc>& cables, bool both_ways = true) {
  Network network;
  network.nodes = compute + switches;
  for (int i = 0; i < compute; ++i) network.compute.push_back(i);
  for (const Arc& cable : cables) {
    network.arcs.push_back({cable.from, cable.to, cable.capacity * kGigabyte});
    if (both_ways) network.arcs.push_back({cable.to, cable.from, cable.capacity * kGigabyte});
  }
  return network;
}

inline Network full_mesh(int compute, Bandwidth capacity) {
  std::vector<Arc> cables;
  for (int a = 0; a < compute; ++a) {
    for (int b = a + 1; b < compute; ++b) cables.push_back({a, b, capacity});
  }
  return make_network(compute, 0, cables);
}

inline Network star(int compute, Bandwidth capacity) {
  std::vector<Arc> cables;
  for (int a = 0; a < compute; ++a) cables.push_back({a, compute, capacity});
  return make_network(compute, 1, cables);
}

inline Network line(int compute, Bandwidth capacity) {
  std::vector<Arc> cables;
  for (int a = 0; a + 1 < compute; ++a) cables.push_back({a, a + 1, capacity});
  return make_network(compute, 0, cables);
}

inline Network ring(int compute, Bandwidth capacity) {
  std::vector<Arc> cables;
  for (int a = 0; a < compute; ++a) cables.push_back({a, (a + 1) % compute, capacity});
  return make_network(compute, 0, cables);
}

/// NVLink of a DGX-1 with V100s: six links a GPU, doubled where written so.
inline Network dgx1v() {
  constexpr Bandwidth kLink = 25;
  const std::vector<std::pair<int, int>> doubles{{0, 3}, {0, 4}, {1, 2}, {1, 5}, {2, 3}, {4, 7}, {5, 6}, {6, 7}};
  const std::vector<std::pair<int, int>> singles{{0, 1}, {0, 2}, {1, 3}, {2, 6}, {3, 7}, {4, 5}, {4, 6}, {5, 7}};
  std::vector<Arc> cables;
  for (const auto& [a, b] : doubles) cables.push_back({a, b, 2 * kLink});
  for (const auto& [a, b] : singles) cables.push_back({a, b, kLink});
  return make_network(8, 0, cables);
}

/// Three nodes at 100 a pair and a fourth on a 20 GB/s link.
inline Network slow_fourth() { return make_network(4, 0, {{0, 1, 100}, {0, 2, 100}, {1, 2, 100}, {2, 3, 20}}); }

/// Hosts of eight GPUs: NVSwitch, four PCI switches with two NICs each, two NUMA nodes, and a network over all NICs.
inline Network hosts_of_eight(int hosts) {
  constexpr int kGpus = 8;
  const int compute = hosts * kGpus;
  const int per_host = 1 + 4 + 8 + 2;
  const int network = compute + hosts * per_host;
  std::vector<Arc> cables;
  for (int host = 0; host < hosts; ++host) {
    const int nvswitch = compute + host * per_host;
    const int pci = nvswitch + 1;
    const int nic = pci + 4;
    const int numa = nic + 8;
    for (int gpu = 0; gpu < kGpus; ++gpu) {
      cables.push_back({host * kGpus + gpu, nvswitch, 450});
      cables.push_back({host * kGpus + gpu, pci + gpu / 2, 48});
      cables.push_back({nic + gpu, pci + gpu / 2, 48});
      cables.push_back({nic + gpu, network, 50});
    }
    for (int i = 0; i < 4; ++i) cables.push_back({pci + i, numa + i / 2, 48});
    cables.push_back({numa, numa + 1, 22});
  }
  return make_network(compute, hosts * per_host + 1, cables);
}

/// This process' time, which does not grow when others use the machine.
inline double cpu_ms() { return 1000.0 * static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }
/// How much slower than the goals for planning a build may be.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr double kSlowdown = 30;
#else
inline constexpr double kSlowdown = 1;
#endif

struct RandomShape {
  int compute_max = 6;
  int switches_max = 3;
  int capacity_max = 9;
  bool full_duplex = true;
};

/// Small and odd: sparse or dense, perhaps disconnected, node numbers mixed.
inline Network random_network(std::mt19937_64& random, const RandomShape& shape) {
  const auto pick = [&](int least, int most) { return std::uniform_int_distribution<int>(least, most)(random); };
  Network network;
  const int compute = pick(2, shape.compute_max);
  network.nodes = compute + pick(0, shape.switches_max);
  std::vector<int> order(network.nodes);
  for (int i = 0; i < network.nodes; ++i) order[i] = i;
  std::ranges::shuffle(order, random);
  network.compute.assign(order.begin(), order.begin() + compute);
  std::ranges::sort(network.compute);
  const int density = pick(3, 10);
  for (int a = 0; a < network.nodes; ++a) {
    for (int b = a + 1; b < network.nodes; ++b) {
      const Bandwidth there = pick(1, 10) <= density ? pick(1, shape.capacity_max) : 0;
      Bandwidth back = there;
      if (!shape.full_duplex) back = pick(1, 10) <= density ? pick(1, shape.capacity_max) : 0;
      if (there > 0) network.arcs.push_back({a, b, there});
      if (back > 0) network.arcs.push_back({b, a, back});
    }
  }
  return network;
}

}  // namespace tutti::topology
