// Bounds of ranks on several hosts: against closed forms, for uneven hosts, ranks that share seats, and ranks whose seats are not known.
#include "planner/between_hosts.h"
#include "topology/text_form.h"

#include <catch2/catch.hpp>

#include <fmt/format.h>

#include <string>

using namespace tutti;
using namespace tutti::planner;
using topology::Graph;

namespace {

/// Hosts of two NUMA nodes with 100 GB/s between them, and a NIC beside the first one.
Graph hosts_with(const std::vector<double>& nics, const std::string& more = "") {
  std::string text = "tutti-topology 1\n";
  for (std::size_t host = 0; host < nics.size(); ++host) text += fmt::format("host box{}\n", host);
  text += "network net\n";
  for (std::size_t host = 0; host < nics.size(); ++host) {
    const std::string h = host == 0 ? "" : fmt::format("h{}.", host);
    for (int numa = 0; numa < 2; ++numa)
      text += fmt::format("numa {}numa{} host={} numa={} cores=8 memory=80\n", h, numa, host, numa);
    text += fmt::format("nic {}eth0 host={}\nlink {}numa0 <-> {}numa1 cpu 100\n", h, host, h, h);
    text += fmt::format("link {}numa0 <-> {}eth0 pci 200\nlink {}eth0 <-> net network {}\n", h, h, h, nics[host]);
  }
  auto graph = topology::parse_text(text + more);
  INFO((graph.ok() ? "" : graph.error().message));
  REQUIRE(graph.ok());
  return std::move(graph).value();
}

/// So many ranks on each host, by turns on its NUMA nodes.
std::vector<RankLook> ranks_on(const std::vector<int>& counts) {
  std::vector<RankLook> looks;
  for (std::size_t host = 0; host < counts.size(); ++host) {
    for (int i = 0; i < counts[host]; ++i) {
      RankLook& look = looks.emplace_back();
      look.rank = static_cast<int>(looks.size()) - 1;
      look.host = fmt::format("box{} 1111", host);
      look.numa = i % 2;
    }
  }
  return looks;
}

BetweenHosts bounds(const Graph& graph, const std::vector<RankLook>& looks,
                    Collective collective = Collective::kAllReduce) {
  auto found = between_hosts(graph, looks, collective);
  INFO((found.ok() ? "" : found.error().message));
  REQUIRE(found.ok());
  return std::move(found).value();
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("seven ranks on one host and eight on another are bound by what joins the hosts", "[between]") {
  const Graph graph = hosts_with({25, 50});
  const BetweenHosts found = bounds(graph, ranks_on({7, 8}));
  // Two blocks: what leaves the one enters the other, by the thinner NIC.
  CHECK(found.gbps == Approx(25));
  INFO(found.binding);
  CHECK(has(found.binding, "{ranks 0-6} | {ranks 7-14}"));
  CHECK(has(found.binding, "eth0 -> net 25, net -> eth0 25"));
  REQUIRE(found.hosts.size() == 2);
  CHECK(found.hosts[0].name == "box0");
  CHECK(found.hosts[0].out_gbps == Approx(25));
  CHECK(found.hosts[1].in_gbps == Approx(25));  // the others have no more
  // Both NUMA nodes' memories.
  CHECK(found.hosts[1].memory_gbps == Approx(160));
}

TEST_CASE("an all-gather counts how many ranks a host has", "[between]") {
  const Graph graph = hosts_with({25, 25});
  // 8 of 15 blocks leave the second host.
  const BetweenHosts gather = bounds(graph, ranks_on({7, 8}), Collective::kAllGather);
  CHECK(gather.gbps == Approx(25.0 * 15 / 8));
  CHECK(has(gather.binding, "{ranks 7-14} to {ranks 0-6}: h1.eth0 -> net 25"));
  // As many enter it backwards.
  const BetweenHosts scatter = bounds(graph, ranks_on({7, 8}), Collective::kReduceScatter);
  CHECK(scatter.gbps == Approx(25.0 * 15 / 8));
  INFO(scatter.binding);
  CHECK(has(scatter.binding, "{ranks 0-6} to {ranks 7-14}: "));
}

TEST_CASE("three hosts are three blocks", "[between]") {
  CHECK(bounds(hosts_with({10, 10, 10}), ranks_on({2, 1, 4})).gbps == Approx(30.0 / 4));
  // A host with less than the others is one block, the rest together the other.
  const BetweenHosts slow = bounds(hosts_with({40, 1, 40}), ranks_on({2, 2, 2}));
  CHECK(slow.gbps == Approx(1));
}

TEST_CASE("links inside a host bind where they are thinner than the network", "[between]") {
  const Graph graph = hosts_with({400, 400});
  const BetweenHosts found = bounds(graph, ranks_on({2, 2}));
  // Ranks 1 and 3 have 100 to the first nodes, whatever else there is.
  CHECK(found.gbps == Approx(100));
  INFO(found.binding);
  CHECK(has(found.binding, "numa1 -> "));
}

TEST_CASE("ranks on one NUMA node have no limit between them", "[between]") {
  std::vector<RankLook> looks = ranks_on({4, 4});
  for (RankLook& look : looks) look.numa = 0;
  CHECK(bounds(hosts_with({25, 25}), looks).gbps == Approx(25));
}

TEST_CASE("a rank whose seat is not known, or not in the graph, may be anywhere on its host", "[between]") {
  std::vector<RankLook> looks = ranks_on({3, 3});
  looks[1].numa = -1;
  looks[4].numa = 7;
  const auto network = rank_network(hosts_with({25, 25}), looks);
  REQUIRE(network.ok());
  for (const int loose : {1, 4}) {
    int seats = 0;
    for (const topology::Arc& arc : network.value().network.arcs) seats += arc.from == loose;
    CHECK(seats == 2);
  }
  CHECK(bounds(hosts_with({25, 25}), looks).gbps == Approx(25));
}

TEST_CASE("several ranks share a GPU, and GPUs without ranks carry nothing", "[between]") {
  const std::string gpus =
      "gpu gpu0 bus=0000:c1:00.0 numa=0\ngpu gpu1 bus=0000:c2:00.0 numa=1\nlink gpu0 <-> numa0 pci 12\nlink gpu1 <-> "
      "numa1 pci 12\nlink gpu0 <-> gpu1 nvlink 300\n";
  const Graph graph = hosts_with({25, 25}, gpus);
  std::vector<RankLook> looks = ranks_on({2, 1});
  // Both on the GPU that driver and graph spell differently: nothing but its PCI link leads out of it.
  for (const int rank : {0, 1}) looks[static_cast<std::size_t>(rank)].gpu = "0000:C1:00.0";
  const BetweenHosts shared = bounds(graph, looks);
  CHECK(shared.gbps == Approx(12));
  CHECK(has(shared.binding, "{ranks 0-1} | {rank 2}: gpu0 -> numa0 12, numa0 -> gpu0 12"));
  looks[1].gpu = "0000:c2:00.0";
  CHECK(bounds(graph, looks).gbps == Approx(24));
}

TEST_CASE("hosts that nothing joins, or that are one machine, have no known limit", "[between]") {
  const Graph apart = hosts_with({5000, 5000});
  const BetweenHosts unlimited = bounds(apart, ranks_on({1, 1}), Collective::kAllGather);
  CHECK(unlimited.gbps == Approx(200 * 2));  // the NICs' PCI links
  auto parsed = topology::parse_text(
      "tutti-topology 1\nhost a\nhost b\nnuma numa0 numa=0 cores=1\nnuma h1.numa0 host=1 numa=0 cores=1\n");
  REQUIRE(parsed.ok());
  const BetweenHosts nothing = bounds(parsed.value(), ranks_on({1, 1}));
  CHECK(nothing.gbps == 0);
  CHECK(nothing.binding.empty());
  CHECK(nothing.hosts[0].out_gbps == 0);
  CHECK(nothing.hosts[0].memory_gbps == 0);
}

TEST_CASE("other collectives have what each host has, and no partition", "[between]") {
  const BetweenHosts found = bounds(hosts_with({25, 50, 50}), ranks_on({2, 2, 1}), Collective::kAllToAll);
  CHECK(found.gbps == 0);
  CHECK(found.hosts[1].out_gbps == Approx(50));
}

TEST_CASE("of many ranks the bound by hosts is the same where the hosts' links bind", "[between]") {
  std::vector<double> nics(20, 25.0);
  const Graph graph = hosts_with(nics);
  const double exact = bounds(graph, ranks_on(std::vector<int>(20, 6))).gbps;
  const double by_hosts = bounds(graph, ranks_on(std::vector<int>(20, 8))).gbps;
  CHECK(exact == Approx(20.0 * 25 / (2 * 19)));
  CHECK(by_hosts == Approx(exact));
}

TEST_CASE("a graph of other hosts than the ranks' is refused, and ranks out of order", "[between]") {
  CHECK(!between_hosts(hosts_with({1, 1}), ranks_on({1, 1, 1}), Collective::kAllReduce).ok());
  std::vector<RankLook> looks = ranks_on({1, 1});
  std::swap(looks[0].rank, looks[1].rank);
  CHECK(!between_hosts(hosts_with({1, 1}), looks, Collective::kAllReduce).ok());
}
