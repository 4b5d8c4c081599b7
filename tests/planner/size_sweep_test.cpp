// Simulated machines against published figures, and the plans of all machines against their bounds.
#include "planner/size_sweep.h"
#include "planner/machine_plan.h"
#include "tests/topology/networks.h"
#include "tests/turn.h"
#include "topology/source.h"
#include "topology/synthetic.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

using namespace tutti;
using namespace tutti::planner;

namespace {

constexpr std::uint64_t kGiga = std::uint64_t{1} << 30;

struct Machine {
  topology::Graph graph;
  topology::View view;
  MachinePlan plan;

  Arena arena() const { return Arena::of_machine(view.network, link_table(graph, view), plan); }
};

Machine machine_of(topology::Graph graph, Collective collective = Collective::kAllReduce) {
  Machine machine;
  machine.graph = std::move(graph);
  machine.view = std::move(topology::view_of(machine.graph)).value();
  // As tutti-topo asks: with the hosts, so that plans by host are among the candidates.
  const MachineQuestion question{collective, 0, topology::ranks_by_host(machine.graph, machine.view),
                                 may_be_direct(link_table(machine.graph, machine.view))};
  machine.plan = machine.view.ranks() > kPlannedRanksMax
                     ? rows_alone(machine.view.network, question)
                     : std::move(plan_machine(machine.view.network, question)).value();
  if (machine.view.ranks() <= kPlannedRanksMax) add_rings(machine.plan, machine.view.network);
  return machine;
}
Machine synthetic(const char* line) { return machine_of(std::move(topology::parse_synthetic(line)).value()); }

const MachineCandidate& candidate_of(const Arena& arena, std::string_view name) {
  const auto found = std::ranges::find(arena.candidates(), name, &MachineCandidate::algorithm);
  REQUIRE(found != arena.candidates().end());
  return *found;
}

enum Protocol : std::size_t { kLines, kSlots, kDirect };
double simulated_us(const Arena& arena, std::string_view name, Protocol protocol, std::uint64_t bytes) {
  const auto run = arena.run(candidate_of(arena, name), arena.protocols()[protocol], bytes, {}, false);
  INFO((run.ok() ? "" : run.error().message));
  REQUIRE(run.ok());
  return run.value().us;
}

void compare(const char* what, double simulated, double published, double within) {
  std::printf("%-55s %9.1f us, published %9.1f: %+.1f%%\n", what, simulated, published,
              100 * (simulated / published - 1));
  INFO(what);
  CHECK(simulated == Approx(published).epsilon(within));
}

/// The part of the bound that the chosen plan reaches with large messages: long enough that starting a call is nothing.
double reached(const Machine& machine) {
  constexpr double kLongUs = 1e4;
  const Arena arena = machine.arena();
  const MachineCandidate& chosen = arena.candidates().front();
  const double bound = machine.plan.certificate.gbps * 1e3;  // bytes per us
  const std::uint64_t bytes = arena.whole_bytes(std::max(kGiga, static_cast<std::uint64_t>(bound * kLongUs)));
  const auto& protocol = arena.protocols()[kDirect];
  const auto run = arena.run(chosen, arena.allows(chosen, protocol) ? protocol : arena.protocols()[kSlots], bytes,
                             {100'000, 0, {}}, false);
  INFO((run.ok() ? "" : run.error().message));
  REQUIRE(run.ok());
  return static_cast<double>(bytes) / (run.value().us * bound);
}

/// Files of machines with several ranks that can be planned for; of those whose links are the same the first one.
std::vector<std::filesystem::path> machines_in(const char* folder) {
  std::set<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files.insert(entry.path());
  std::vector<std::filesystem::path> machines;
  std::set<std::vector<std::tuple<int, int, topology::Bandwidth>>> seen;
  for (const std::filesystem::path& path : files) {
    const Result<topology::Graph> graph = topology::read_file(path.string(), {});
    if (!graph.ok()) continue;
    const Result<topology::View> view = topology::view_of(graph.value());
    if (!view.ok() || view.value().ranks() < 2 || ranks_apart(view.value().network).first >= 0) continue;
    std::vector<std::tuple<int, int, topology::Bandwidth>> links;
    for (const topology::Arc& arc : view.value().network.arcs) links.emplace_back(arc.from, arc.to, arc.capacity);
    if (seen.insert(links).second) machines.push_back(path);
  }
  return machines;
}

/// Plans for each machine and simulates; the plan must come near its bound.
void check(const std::vector<std::filesystem::path>& machines, Collective collective) {
  double worst = 1;
  std::string worst_name;
  for (const std::filesystem::path& path : machines) {
    const Machine machine = machine_of(std::move(topology::read_file(path.string(), {})).value(), collective);
    const double part = reached(machine);
    INFO(path.filename() << ": " << name_of(collective) << " by " << machine.plan.chosen().algorithm << " of "
                         << machine.plan.chosen().lanes << " lanes");
    CHECK(part >= 0.97);
    CHECK(part <= 1 + 1e-9);
    if (part < worst) worst_name = path.filename().string();
    worst = std::min(worst, part);
  }
  std::printf("%zu machines: simulated %s plans reach %.4f of the bound or more (%s)\n", machines.size(),
              std::string(name_of(collective)).c_str(), worst, worst_name.c_str());
}

/// A reduce-scatter is an all-gather backwards: for the sake of time each is looked at on one machine in `share`, by turns.
void check_halves(const std::vector<std::filesystem::path>& machines, std::size_t share) {
  std::vector<std::filesystem::path> gathers, scatters;
  for (std::size_t i = 0; i < machines.size(); ++i) {
    if (test::has_its_turn(i, share)) gathers.push_back(machines[i]);
    if (test::has_its_turn(i + share / 2, share)) scatters.push_back(machines[i]);
  }
  check(gathers, Collective::kAllGather);
  check(scatters, Collective::kReduceScatter);
}

}  // namespace

TEST_CASE("published latencies of small messages") {
  const Machine h100 = synthetic("switch:1 gpu:8 nvlink:450");
  compare("ring, lines, 8 GPUs on NVLink (NCCL LL, measured)", simulated_us(h100.arena(), "ring", kLines, 8), 15.0,
          0.02);
  const Machine pcie = machine_of(std::move(topology::read_text("tutti-topology 1\npci p\ngpu a\ngpu b\ngpu c\ngpu d\n"
                                                                "link a <-> p pci 12\nlink b <-> p pci 12\n"
                                                                "link c <-> p pci 12\nlink d <-> p pci 12\n",
                                                                {}))
                                      .value());
  compare("ring, lines, 4 GPUs on PCIe (NCCL's model)", simulated_us(pcie.arena(), "ring", kLines, 8), 12.6, 0.02);
}

TEST_CASE("published latencies of 1024 ranks, in seconds") {
  const Machine pod = synthetic("host:128 switch:1 gpu:8 nvlink:450 nic:8x50");
  REQUIRE(pod.plan.ranks == 1024);
  const double start = topology::cpu_ms();
  const Arena arena = pod.arena();
  compare("tree, lines, 1024 ranks on 128 hosts (NCCL's model)", simulated_us(arena, "tree", kLines, 8), 85, 0.1);
  compare("ring, slots, 1024 ranks on 128 hosts (NCCL's model)", simulated_us(arena, "ring", kSlots, 8), 9700, 0.05);
  const double large_us = simulated_us(arena, "tree", kSlots, kGiga);
  CHECK(large_us > static_cast<double>(kGiga) / 400e3);  // what the NICs of a host have
  std::printf("three all-reduces of 1024 ranks simulated in %.1f s of this core\n", (topology::cpu_ms() - start) / 1e3);
}

TEST_CASE("sizes: the fastest at each, crossovers, and lines that give way") {
  const Machine h100 = synthetic("switch:1 gpu:8 nvlink:450");
  const Arena arena = h100.arena();
  SweepQuestion question{8, kGiga, 8};
  double told = 0;
  question.progress = [&](double part) {
    told = part;
    return true;
  };
  const Result<SizeSweep> result = sweep(arena, question);
  REQUIRE(result.ok());
  const SizeSweep& found = result.value();
  REQUIRE(found.sizes.size() == 10);
  CHECK(told > 0);
  for (std::size_t i = 0; i < found.sizes.size(); ++i) {
    const double best = found.algorithms[found.fastest[i]].points[i].us;
    for (const SweptAlgorithm& algorithm : found.algorithms) {
      CHECK(algorithm.points[i].us >= best);
      CHECK(algorithm.points[i].us >= static_cast<double>(found.sizes[i]) / (h100.plan.certificate.gbps * 1e3));
      if (i > 0) CHECK(algorithm.points[i].us >= algorithm.points[i - 1].us * 0.999);
    }
  }
  CHECK(found.algorithms[found.fastest[0]].points[0].protocol == "lines");
  CHECK(found.algorithms[found.fastest[9]].points[9].protocol == "direct");
  REQUIRE(found.crossovers.size() >= 2);
  CHECK(found.crossovers.front().bytes == 8);
  CHECK(arena.candidates()[found.crossovers.front().candidate].algorithm == "oneshot");
  CHECK(found.crossovers[1].bytes > 1024);
  CHECK(found.crossovers[1].bytes <= 1 << 20);
}

TEST_CASE("messages of several hosts go through slots, and hosts' memory has its own figures") {
  const Machine hosts = synthetic("host:2 switch:1 gpu:4 nvlink:450 nic:4x50");
  const Arena arena = hosts.arena();
  CHECK_FALSE(arena.allows(candidate_of(arena, "packed_trees"), arena.protocols()[kDirect]));
  CHECK(arena.allows(candidate_of(arena, "packed_trees"), arena.protocols()[kSlots]));
  const Arena host = Arena::of_host(Collective::kAllReduce, 2, {10, 30});
  // Two shares of three copies' work each: 1.5 blocks at 10 GB/s.
  CHECK(simulated_us(host, "twoshot", kDirect, 10'000'000) == Approx(1500).epsilon(0.01));
  CHECK(simulated_us(host, "oneshot", kLines, 8) < 1);
}

TEST_CASE("large messages on the machines that ship with Tutti") {
  const std::vector<std::filesystem::path> machines = machines_in(TUTTI_MODELS);
  CHECK(machines.size() >= 15);
  check(machines, Collective::kAllReduce);
  check_halves(machines, 8);
}

TEST_CASE("large messages across hosts: plans whose rounds wait are not taken for a thousandth or a few") {
  for (const char* line : {"host:4 gpu:5+1+5+1 nic:4x12.5 switch:1 nvlink:450 numa:1 cpu:10",
                           "host:4 gpu:2+3+4+4 nic:3x12.5 switch:1 nvlink:450", "host:2 gpu:4 nic:2x25"}) {
    for (const Collective collective : {Collective::kAllReduce, Collective::kAllGather, Collective::kReduceScatter}) {
      const Machine machine = machine_of(std::move(topology::parse_synthetic(line)).value(), collective);
      INFO(line << ": " << name_of(collective) << " by " << machine.plan.chosen().label());
      CHECK_FALSE(machine.plan.chosen().waits);
      CHECK(machine.plan.chosen().ratio >= 0.97);
      CHECK(reached(machine) >= 0.93);
    }
  }
}

TEST_CASE("large messages over few links that are fast: one lane's slots would not keep them busy") {
  for (const char* line : {"gpu:3 line:900", "gpu:8 line:300", "gpu:5 ring:900"}) {
    for (const Collective collective : {Collective::kAllReduce, Collective::kAllGather, Collective::kReduceScatter}) {
      const double part = reached(machine_of(std::move(topology::parse_synthetic(line)).value(), collective));
      INFO(line << ": " << name_of(collective));
      CHECK(part >= 0.97);
      CHECK(part <= 1 + 1e-9);
    }
  }
}

TEST_CASE("large messages on all machines beside the repository", "[files]") {
  if (!std::filesystem::is_directory(TUTTI_SHARED_TOPOLOGIES)) {
    std::printf("skipped: there is no folder %s\n", TUTTI_SHARED_TOPOLOGIES);
    return;
  }
  const std::vector<std::filesystem::path> all = machines_in(TUTTI_SHARED_TOPOLOGIES);
  CHECK(all.size() >= 80);
  std::vector<std::filesystem::path> machines;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (test::has_its_turn(i, 8)) machines.push_back(all[i]);
  }
  check(machines, Collective::kAllReduce);
  check_halves(all, 16);
}
