#include "planner/hierarchical_candidates.h"
#include "planner/machine_plan.h"
#include "planner/machine_price.h"
#include "planner/many_ranks.h"
#include "schedule/verifier.h"
#include "tests/topology/networks.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdio>

using namespace tutti;
using namespace tutti::planner;
using topology::Network;

namespace {

constexpr Collective kPlanned[] = {Collective::kAllReduce, Collective::kAllGather, Collective::kReduceScatter};

std::vector<std::vector<int>> hosts_of(const std::vector<int>& sizes) {
  std::vector<std::vector<int>> hosts;
  int rank = 0;
  for (const int size : sizes) {
    hosts.emplace_back();
    for (int i = 0; i < size; ++i) hosts.back().push_back(rank++);
  }
  return hosts;
}

MachinePlan planned(const Network& network, const MachineQuestion& question) {
  Result<MachinePlan> plan = plan_machine(network, question);
  INFO((plan.ok() ? "" : plan.error().message));
  REQUIRE(plan.ok());
  return std::move(plan).value();
}

void prove(const schedule::Schedule& made) {
  for (const bool in_place : {false, true}) {
    const Status status = verify(made, {.slots = 2, .in_place = in_place});
    INFO((status.ok() ? "" : status.error().message));
    REQUIRE(status.ok());
  }
}

/// Two hosts, each a switch at 100 a rank; only the first rank of each is beside the NIC, which has 10.
Network one_nic_each(int per_host) {
  std::vector<topology::Arc> cables;
  const int ranks = 2 * per_host;
  for (int rank = 0; rank < ranks; ++rank) cables.push_back({rank, ranks + rank / per_host, 100});
  for (const int host : {0, 1}) {
    const int nic = ranks + 2 + 2 * host;
    const int bridge = nic + 1;
    cables.push_back({host * per_host, nic, 20});
    for (int rank = 1; rank < per_host; ++rank) cables.push_back({host * per_host + rank, bridge, 2});
    cables.push_back({bridge, nic, 2});
  }
  cables.push_back({ranks + 2, ranks + 4, 10});
  return topology::make_network(ranks, 6, cables);
}

}  // namespace

TEST_CASE("several hosts: hierarchical plans are right and reach the bound where the network binds") {
  for (const int hosts : {2, 3, 8}) {
    const Network network = topology::hosts_of_eight(hosts);
    const auto groups = hosts_of(std::vector<int>(static_cast<std::size_t>(hosts), 8));
    for (const Collective collective : kPlanned) {
      INFO(name_of(collective) << " on " << hosts << " hosts");
      const MachinePlan plan = planned(network, {collective, 0, groups});
      const MachineCandidate* candidate = plan.find("hierarchical");
      REQUIRE(candidate != nullptr);
      CHECK(candidate->gbps <= plan.certificate.gbps * (1 + 1e-9));
      CHECK(candidate->ratio > 0.9);
      if (hosts < 8) prove(candidate->schedule);
      CHECK(plan.chosen().ratio >= 0.97);
    }
    // Nothing is told apart without hosts.
    if (hosts == 2) CHECK(planned(network, {}).find("hierarchical") == nullptr);
  }
}

TEST_CASE("uneven hosts share what leaves them, and are planned for") {
  for (const std::vector<int>& sizes : std::vector<std::vector<int>>{{7, 8}, {1, 8}, {3, 5, 2}}) {
    // A switch for each host, a network of 50 a host.
    const auto hosts = hosts_of(sizes);
    const int ranks = hosts.back().back() + 1;
    std::vector<topology::Arc> cables;
    const int network_node = ranks + static_cast<int>(sizes.size());
    for (std::size_t host = 0; host < hosts.size(); ++host) {
      for (const int rank : hosts[host]) cables.push_back({rank, ranks + static_cast<int>(host), 400});
      cables.push_back({ranks + static_cast<int>(host), network_node, 50});
    }
    const Network network = topology::make_network(ranks, static_cast<int>(sizes.size()) + 1, cables);
    for (const Collective collective : kPlanned) {
      const MachinePlan plan = planned(network, {collective, 0, hosts});
      INFO(name_of(collective) << " of " << ranks);
      REQUIRE(plan.find("hierarchical") != nullptr);
      prove(plan.find("hierarchical")->schedule);
      CHECK(plan.find("hierarchical")->ratio == Approx(1).epsilon(0.01));
    }
  }
}

TEST_CASE("the ranks beside a NIC carry where the others are further from it") {
  const Network network = one_nic_each(4);
  const MachinePlan plan = planned(network, {Collective::kAllReduce, 0, hosts_of({4, 4})});
  const auto best = [&](bool nearest) {
    double most = 0;
    for (const MachineCandidate& candidate : plan.candidates) {
      if (candidate.algorithm == "hierarchical" && candidate.hierarchy.carriers.empty() != nearest)
        most = std::max(most, candidate.gbps);
    }
    return most;
  };
  CHECK(best(true) == Approx(10));
  CHECK(best(false) < 4);
  for (const MachineCandidate& candidate : plan.candidates) {
    if (candidate.hierarchy.carriers.empty()) continue;
    CHECK(candidate.hierarchy.carriers == std::vector<std::vector<int>>{{0}, {4}});
    prove(candidate.schedule);
  }
}

TEST_CASE("hosts must have every rank once") {
  const Network network = topology::star(4, 10);
  for (const auto& hosts : std::vector<std::vector<std::vector<int>>>{
           {{0, 1}, {2}}, {{0, 1}, {1, 2, 3}}, {{0, 1, 2, 3}, {}}, {{0, 1, 2}, {7}}}) {
    CHECK_THAT(plan_machine(network, {Collective::kAllReduce, 0, hosts}).error().message,
               Catch::Contains("do not have each of 4 ranks once"));
  }
}

TEST_CASE("the bound of many ranks is never below the exact one, and equal where hosts or ranks bind") {
  for (const int hosts : {2, 3, 6}) {
    const Network network = topology::hosts_of_eight(hosts);
    const auto groups = hosts_of(std::vector<int>(static_cast<std::size_t>(hosts), 8));
    for (const Collective collective : kPlanned) {
      const Certificate exact = planned(network, {collective}).certificate;
      const Certificate coarse = certify_by_hosts(network, groups, collective);
      CHECK(coarse.by_hosts);
      CHECK(coarse.gbps >= exact.gbps * (1 - 1e-12));
      if (hosts == 6) CHECK(coarse.gbps == Approx(exact.gbps));
      if (collective == Collective::kAllReduce) continue;
      // The cut that it names allows just that much.
      std::vector<char> inside(static_cast<std::size_t>(network.nodes), 0);
      for (const int node : coarse.cut.nodes) inside[static_cast<std::size_t>(node)] = 1;
      topology::Bandwidth crosses = 0;
      for (const topology::Arc& arc : network.arcs) {
        const bool from = inside[static_cast<std::size_t>(arc.from)] != 0;
        const bool to = inside[static_cast<std::size_t>(arc.to)] != 0;
        if (collective == Collective::kAllGather ? from && !to : !from && to) crosses += arc.capacity;
      }
      const auto ranks = std::ranges::count_if(coarse.cut.nodes, [&](int node) { return node < 8 * hosts; });
      CHECK(coarse.gbps == Approx(topology::gbps(crosses) * 8 * hosts / static_cast<double>(ranks)));
    }
  }
}

TEST_CASE("a thousand ranks are planned by hosts, soon") {
  const Network network = topology::hosts_of_eight(128);
  const auto groups = hosts_of(std::vector<int>(128, 8));
  for (const Collective collective : kPlanned) {
    const double start = topology::cpu_ms();
    const MachinePlan plan = planned(network, {collective, 0, groups});
    const double took = topology::cpu_ms() - start;
    std::printf("%s of 1024: %s, %.1f of %.1f GB/s in %.0f ms\n", std::string(name_of(collective)).c_str(),
                plan.chosen().label().c_str(), plan.chosen().gbps, plan.certificate.gbps, took);
    CHECK(plan.certificate.by_hosts);
    CHECK(plan.chosen().ratio >= 0.97);
    CHECK(plan.chosen().schedule.ranks.empty());
    CHECK(took / topology::kSlowdown < 2000);
  }
  CHECK_THAT(plan_machine(network, {}).error().message, Catch::Contains("at most 256 on a host"));
}

TEST_CASE("by size: few hops for small messages, bandwidth for large ones") {
  const MachinePlan plan = planned(topology::hosts_of_eight(4), {Collective::kAllReduce, 0, hosts_of({8, 8, 8, 8})});
  const std::vector<WireCosts> costs = wire_costs(Wire::kPci);
  const std::vector<SizeChoice> choices = choices_by_size(plan, costs);
  REQUIRE(choices.size() >= 3);
  CHECK(choices.front().from_bytes == kLeastBytes);
  for (std::size_t i = 1; i < choices.size(); ++i) {
    const MachineCandidate& before = plan.candidates[choices[i - 1].candidate];
    const MachineCandidate& now = plan.candidates[choices[i].candidate];
    CHECK(choices[i].from_bytes > choices[i - 1].from_bytes);
    CHECK(now.gbps > before.gbps);
  }
  CHECK(plan.candidates[choices.front().candidate].hops == 1);
  CHECK(plan.candidates[choices.back().candidate].gbps >= 0.99 * plan.chosen().gbps);
  // At every size the cheapest of all.
  for (std::uint64_t bytes = kLeastBytes; bytes <= kMostBytes; bytes *= 2) {
    auto choice = choices.begin();
    while (choice + 1 != choices.end() && (choice + 1)->from_bytes <= bytes) ++choice;
    const double taken = price_us(plan.candidates[choice->candidate], static_cast<double>(bytes), costs);
    for (const MachineCandidate& other : plan.candidates)
      CHECK(taken <= price_us(other, static_cast<double>(bytes), costs) * (1 + 1e-12));
  }
  // One hop of 2.7 us over the network and what a call takes.
  CHECK(price_us(plan.candidates[choices.front().candidate], 0, costs) == Approx(6.6 + 2.7));
}
