// Merging what ranks see: every machine of topology/models cut into partial looks, and odd placements by hand.
#include "topology/merge.h"
#include "topology/bandwidths.h"
#include "topology/bounds.h"
#include "topology/source.h"
#include "topology/synthetic.h"
#include "topology/text_form.h"
#include "topology/view.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <filesystem>
#include <random>
#include <set>
#include <string>

using namespace tutti::topology;

namespace {

Graph parsed(const std::string& text) {
  auto graph = parse_text("tutti-topology 1\n" + text);
  INFO((graph.ok() ? "" : graph.error().message));
  REQUIRE(graph.ok());
  return std::move(graph).value();
}

Merged merged(std::vector<Look> looks) {
  auto result = merge(std::move(looks));
  INFO((result.ok() ? "" : result.error().message));
  REQUIRE(result.ok());
  return std::move(result).value();
}

bool warns(const Graph& graph, const std::string& part) {
  return std::ranges::any_of(graph.warnings(),
                             [&](const std::string& warning) { return warning.find(part) != std::string::npos; });
}

/// The lines of the text form but for warnings, in any order.
std::multiset<std::string> lines_of(const Graph& graph) {
  std::multiset<std::string> lines;
  const std::string text = to_text(graph);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    const std::string line = text.substr(at, end - at);
    if (!line.starts_with("warning")) lines.insert(line);
    at = end + 1;
  }
  return lines;
}

/// The part of a graph without some nodes, their links and what is below them.
Graph without(const Graph& whole, const std::set<int>& hidden) {
  GraphBuilder builder;
  for (const std::string& host : whole.hosts()) builder.add_host(host);
  std::vector<int> at(whole.nodes().size(), kNone);
  for (std::size_t i = 0; i < whole.nodes().size(); ++i) {
    bool shown = true;
    for (int up = static_cast<int>(i); up != kNone; up = whole.node(up).parent) shown &= !hidden.contains(up);
    const Node& node = whole.nodes()[i];
    if (shown) at[i] = builder.add_node(node.kind, node.host, kNone, node.name, node.facts);
  }
  for (std::size_t i = 0; i < whole.nodes().size(); ++i) {
    const int parent = whole.nodes()[i].parent;
    if (at[i] != kNone && parent != kNone) builder.set_parent(at[i], at[static_cast<std::size_t>(parent)]);
  }
  for (const Link& link : whole.links()) {
    const int from = at[static_cast<std::size_t>(link.from)];
    const int to = at[static_cast<std::size_t>(link.to)];
    if (from != kNone && to != kNone)
      builder.add_link(from, to, link.kind, link.bandwidth, link.count, link.latency_ns);
  }
  auto graph = std::move(builder).finish();
  REQUIRE(graph.ok());
  return std::move(graph).value();
}

std::vector<std::pair<std::string, Graph>> models_of_one_host() {
  std::vector<std::pair<std::string, Graph>> models;
  for (const auto& entry : std::filesystem::directory_iterator(TUTTI_MODELS)) {
    auto graph = read_file(entry.path().string());
    REQUIRE(graph.ok());
    if (graph.value().hosts().size() == 1) models.emplace_back(entry.path().filename().string(), graph.value());
  }
  std::ranges::sort(models, {}, &std::pair<std::string, Graph>::first);
  return models;
}

constexpr const char* kTwoGpus =
    "host box\nnuma numa0 numa=0 cores=4\nnuma numa1 numa=1 cores=4\n"
    "gpu gpu0 bus=0000:01:00.0 device=0\ngpu gpu1 bus=0000:02:00.0 device=1\n"
    "link numa0 <-> numa1 cpu 16\nlink gpu0 <-> numa0 pci 12\nlink gpu1 <-> numa1 pci 12\n";

}  // namespace

TEST_CASE("what all ranks see alike is the graph as it is", "[merge]") {
  for (const auto& [name, model] : models_of_one_host()) {
    INFO(name);
    std::vector<Look> looks;
    for (int rank = 0; rank < 3; ++rank) looks.push_back({rank, "node", kNone, "", model});
    const Merged all = merged(std::move(looks));
    CHECK(lines_of(all.graph) == lines_of(model));
  }
}

TEST_CASE("containers that see one GPU each see together what the host sees", "[merge]") {
  for (const auto& [name, model] : models_of_one_host()) {
    INFO(name);
    const std::vector<int> gpus = model.nodes_of(NodeKind::kGpu);
    if (gpus.size() < 2) continue;
    std::vector<Look> looks;
    for (std::size_t mine = 0; mine < gpus.size(); ++mine) {
      // All but this rank's GPU and the one after: direct links are seen by both of their ends.
      std::set<int> hidden(gpus.begin(), gpus.end());
      hidden.erase(gpus[mine]);
      looks.push_back({static_cast<int>(mine), "node", kNone, "", without(model, hidden)});
    }
    looks.push_back({static_cast<int>(gpus.size()), "node", kNone, "", model});
    const Merged all = merged(looks);
    CHECK(lines_of(all.graph) == lines_of(model));
    CHECK(all.graph.nodes_of(NodeKind::kGpu).size() == gpus.size());
  }
}

TEST_CASE("the order in which looks come does not matter", "[merge]") {
  std::mt19937 random(7);
  const Graph model = parsed(kTwoGpus);
  std::vector<Look> looks;
  for (int rank = 0; rank < 15; ++rank) {
    const std::set<int> hidden{2 + rank % 2};
    looks.push_back({rank, rank < 7 ? "a" : "b", rank % 2, "", without(model, hidden)});
  }
  const std::string first = to_text(merged(looks).graph);
  for (int round = 0; round < 20; ++round) {
    std::ranges::shuffle(looks, random);
    CHECK(to_text(merged(looks).graph) == first);
  }
}

TEST_CASE("seven ranks on one host and eight on another are one graph of two hosts", "[merge]") {
  std::vector<Look> looks;
  // Only the lowest rank of each host has looked.
  for (int rank = 0; rank < 15; ++rank) {
    Look look{rank, rank % 2 == 0 ? "even 1111" : "odd 2222", rank / 8, "", std::nullopt};
    if (rank < 2) look.graph = parsed(kTwoGpus);
    looks.push_back(std::move(look));
  }
  const Merged all = merged(looks);
  REQUIRE(all.graph.hosts().size() == 2);
  CHECK(all.graph.hosts()[0] == "box");
  CHECK(all.graph.hosts()[1] == "box.2");
  CHECK(all.graph.nodes_of(NodeKind::kGpu).size() == 4);
  CHECK(all.graph.find("h1.gpu1") != kNone);
  REQUIRE(all.places.size() == 15);
  for (int rank = 0; rank < 15; ++rank) {
    const Place& place = all.places[static_cast<std::size_t>(rank)];
    CHECK(place.host == rank % 2);
    REQUIRE(place.numa != kNone);
    const Node& node = all.graph.node(place.numa);
    CHECK(node.host == rank % 2);
    CHECK(node.facts.numa == rank / 8);
  }
}

TEST_CASE("several ranks share a GPU, others have none, and one has a GPU that nobody sees", "[merge]") {
  std::vector<Look> looks;
  const std::string gpus[] = {"0000:02:00.0", "0000:02:00.0", "", "0000:09:00.0"};
  for (int rank = 0; rank < 4; ++rank) looks.push_back({rank, "n", 0, gpus[rank], std::nullopt});
  looks[0].graph = parsed(kTwoGpus);
  const Merged all = merged(looks);
  const int gpu1 = all.graph.find("gpu1");
  CHECK(all.places[0].gpu == gpu1);
  CHECK(all.places[1].gpu == gpu1);
  CHECK(all.places[2].gpu == kNone);
  CHECK(all.places[3].gpu == kNone);
  CHECK(all.graph.node(gpu1).facts.rank == 0);
  CHECK(warns(all.graph, "the GPUs of rank 3 are not among those of host \"box\""));
}

TEST_CASE("containers that call their GPUs by the same name and number have two GPUs", "[merge]") {
  const auto container = [](int number) {
    const std::string bus = "0000:0" + std::to_string(number) + ":00.0";
    return parsed("host box\nnuma numa0 numa=0 cores=" + std::to_string(number) + "\ngpu gpu0 bus=" + bus +
                  " device=0\nlink gpu0 <-> numa0 pci 12\n");
  };
  const Merged all = merged({{0, "box", 0, "0000:03:00.0", container(3)}, {1, "box", 0, "0000:07:00.0", container(7)}});
  const std::vector<int> gpus = all.graph.nodes_of(NodeKind::kGpu);
  REQUIRE(gpus.size() == 2);
  CHECK(all.places[0].gpu == gpus[0]);
  CHECK(all.places[1].gpu == gpus[1]);
  for (const int gpu : gpus) {
    CHECK(all.graph.node(gpu).facts.device == kNone);
    CHECK(all.graph.find_link(gpu, all.graph.find("numa0"), LinkKind::kPci) != nullptr);
  }
  // Each may use some of its cores.
  CHECK(all.graph.node(all.graph.find("numa0")).facts.cores == 7);
  CHECK(compute_nodes(all.graph).nodes == gpus);
}

TEST_CASE("a host that nobody has looked at has the nodes that its ranks sit on", "[merge]") {
  const Merged all = merged({{0, "a", 0, "", parsed(kTwoGpus)},
                             {1, "b", 3, "", std::nullopt},
                             {2, "b", 1, "", std::nullopt},
                             {3, "c", kNone, "", std::nullopt}});
  CHECK(all.graph.hosts().size() == 3);
  CHECK(all.graph.node(all.places[1].numa).name == "h1.numa3");
  CHECK(all.graph.node(all.places[2].numa).name == "h1.numa1");
  CHECK(all.places[3].numa == kNone);
  CHECK(all.graph.find("h2.numa0") != kNone);
  CHECK(warns(all.graph, "no rank of host \"b\" has looked at it"));
}

TEST_CASE("a rank that sits where the graph has no node is told so, and the rest stands", "[merge]") {
  const Merged all = merged({{0, "a", 5, "", parsed(kTwoGpus)}, {1, "a", 1, "", std::nullopt}});
  CHECK(all.places[0].numa == kNone);
  CHECK(all.graph.node(all.places[1].numa).name == "numa1");
  CHECK(warns(all.graph, "the NUMA nodes of rank 0 are not among those of host \"box\""));
}

TEST_CASE("of two bandwidths of a link the larger counts, and it is said", "[merge]") {
  const std::string nodes = "host h\nnuma numa0 numa=0 cores=1\ngpu g bus=0000:01:00.0\n";
  const Merged all = merged({{0, "h", 0, "", parsed(nodes + "link g <-> numa0 pci 12 count=8\n")},
                             {1, "h", 0, "", parsed(nodes + "link g <-> numa0 pci 24 count=16\n")}});
  const Link* link = all.graph.find_link(all.graph.find("g"), all.graph.find("numa0"), LinkKind::kPci);
  REQUIRE(link != nullptr);
  CHECK(link->bandwidth == 24 * kGigabyte);
  CHECK(link->count == 16);
  CHECK(warns(all.graph, "rank 1 sees 24 GB/s by pci from g to numa0, others 12"));
}

TEST_CASE("a short way through PCI that another rank sees is no second way", "[merge]") {
  const Graph whole = parsed(
      "host h\nnuma numa0 numa=0 cores=1\npci pci0 bus=0000:01:00.0\ngpu g in=pci0 "
      "bus=0000:02:00.0\nlink g <-> pci0 pci 24\nlink pci0 <-> numa0 pci 24\n");
  const Graph flat = parsed("host h\nnuma numa0 numa=0 cores=1\ngpu g bus=0000:02:00.0\nlink g <-> numa0 pci 24\n");
  const Merged all = merged({{0, "h", 0, "", whole}, {1, "h", 0, "", flat}});
  CHECK(lines_of(all.graph) == lines_of(whole));
}

TEST_CASE("what only a later rank sees of known nodes is added: NVLinks, latencies, models", "[merge]") {
  const std::string gpus = "host h\nnuma numa0 numa=0 cores=1\ngpu a bus=0000:01:00.0\ngpu b bus=0000:02:00.0";
  const Merged all =
      merged({{0, "h", 0, "", parsed(gpus + "\nlink a <-> numa0 pci 12\nlink b <-> numa0 pci 12\n")},
              {1, "h", 0, "",
               parsed(gpus + " model=X sm=90\nlink a <-> b nvlink 100\nlink a <-> numa0 pci 12 latency_ns=9\n")}});
  const int a = all.graph.find("a");
  const int b = all.graph.find("b");
  REQUIRE(all.graph.find_link(a, b, LinkKind::kNvLink) != nullptr);
  CHECK(all.graph.node(b).facts.model == "X");
  CHECK(all.graph.node(b).facts.sm == 90);
  CHECK(all.graph.find_link(a, all.graph.find("numa0"), LinkKind::kPci)->latency_ns == 9);
}

TEST_CASE("a file of several hosts stands for the one of the rank's name or place", "[merge]") {
  const auto pod = parse_synthetic("host:2 switch:1 gpu:2 nvlink:100 nic:1x50");
  REQUIRE(pod.ok());
  const Graph& both = pod.value();
  const Merged all = merged({{0, "x", kNone, "", both}, {1, "y", kNone, "", both}, {2, "x", kNone, "", std::nullopt}});
  CHECK(all.graph.hosts().size() == 2);
  CHECK(all.graph.nodes_of(NodeKind::kGpu).size() == 4);
  CHECK(all.graph.nodes_of(NodeKind::kNetwork).size() == 1);
  CHECK(warns(all.graph, "rank 0 describes 2 hosts"));
  // Both hosts' NICs are in the one network: all GPUs are joined.
  const auto view = view_of(all.graph);
  REQUIRE(view.ok());
  CHECK(all_reduce_bound(view.value().network).rate > Rational(0));
}

namespace {

constexpr const char* kNoNic =
    "host box\nnuma numa0 numa=0 cores=4\nnuma numa1 numa=1 cores=4\nlink numa0 <-> numa1 cpu 16\n";

Look at_host(int rank, const std::string& host, const std::string& graph, Port port) {
  Look look{.rank = rank, .host = host, .numa = 0};
  if (!graph.empty()) look.graph = parsed(graph);
  look.port = std::move(port);
  return look;
}

Bandwidth speed_of(const Graph& graph, const std::string& nic) {
  const std::vector<int> networks = graph.nodes_of(NodeKind::kNetwork);
  REQUIRE(networks.size() == 1);
  const int node = graph.find(nic);
  REQUIRE(node != kNone);
  const Link* out = graph.find_link(node, networks.front(), LinkKind::kNetwork);
  const Link* in = graph.find_link(networks.front(), node, LinkKind::kNetwork);
  REQUIRE(out != nullptr);
  REQUIRE(in != nullptr);
  CHECK(in->bandwidth == out->bandwidth);
  return out->bandwidth;
}

}  // namespace

TEST_CASE("hosts without a NIC of known speed are joined by the interface that their ranks use", "[merge]") {
  const Merged all = merged({at_host(0, "a", kNoNic, {"eth0", 25 * kGigabyte / 8, false}),
                             at_host(1, "b", kNoNic, {"bond0.7", 0, false}), at_host(2, "c", "", {"eth0", 0, false}),
                             at_host(3, "a", "", {"eth1", kGigabyte, false}), at_host(4, "a", "", {"eth0", 0, false})});
  CHECK(speed_of(all.graph, "eth0") == 25 * kGigabyte / 8);
  CHECK(speed_of(all.graph, "eth1") == kGigabyte);
  CHECK(speed_of(all.graph, "h1.bond0_7") == kUnknownNetworkBandwidth);
  CHECK(speed_of(all.graph, "h2.eth0") == kUnknownNetworkBandwidth);
  CHECK(!warns(all.graph, "speed of interface eth0 of host \"box\""));
  CHECK(warns(all.graph, "the speed of interface bond0.7 of host \"box.2\": it counts as 1.25 GB/s"));
  CHECK(warns(all.graph, "the speed of interface eth0 of host \"c\""));
  // As near to every NUMA node, of hosts that nobody has looked at too.
  for (const char* numa : {"numa0", "numa1"})
    CHECK(all.graph.find_link(all.graph.find(numa), all.graph.find("eth0"), LinkKind::kPci) != nullptr);
  CHECK(all.graph.find_link(all.graph.find("h2.numa0"), all.graph.find("h2.eth0"), LinkKind::kPci) != nullptr);
  CHECK(all_reduce_bound(view_of(all.graph).value().network).rate > Rational(0));
  CHECK(parse_text(to_text(all.graph)).value() == all.graph);
}

TEST_CASE("NICs that a look joins to the network count as they are; the interface is then not added", "[merge]") {
  const std::string fast =
      std::string(kNoNic) +
      "network fabric\nnic mlx5_0 bus=0000:05:00.0\nlink mlx5_0 <-> numa0 pci 24\nlink mlx5_0 <-> fabric network 25\n";
  const std::string silent = std::string(kNoNic) + "nic eth0 bus=0000:06:00.0\nlink eth0 <-> numa1 pci 12\n";
  const Merged all = merged(
      {at_host(0, "a", fast, {"eth0", kGigabyte, false}), at_host(1, "b", silent, {"eth0", 2 * kGigabyte, false})});
  CHECK(speed_of(all.graph, "mlx5_0") == 25 * kGigabyte);
  CHECK(all.graph.find("eth0") == kNone);
  // The NIC that is there gets the speed, and stays where it is plugged in.
  CHECK(speed_of(all.graph, "h1.eth0") == 2 * kGigabyte);
  CHECK(all.graph.find_link(all.graph.find("h1.numa0"), all.graph.find("h1.eth0"), LinkKind::kPci) == nullptr);
  CHECK(all.graph.nodes_of(NodeKind::kNic).size() == 2);
}

TEST_CASE("hosts that are made up on one machine have no limit between them, and it is said", "[merge]") {
  const Merged all = merged({at_host(0, "a", kNoNic, {"eth0", 1, true}), at_host(1, "b", kNoNic, {"eth0", 1, true})});
  CHECK(speed_of(all.graph, "h1.lo") == kDeviceBandwidth);
  // A NIC that is there is not on the way.
  const std::string nic = std::string(kNoNic) + "nic eth0\nlink eth0 <-> numa0 pci 12\n";
  const Merged with_nic = merged({at_host(0, "a", nic, {"eth0", 1, true}), at_host(1, "b", nic, {"eth0", 1, true})});
  CHECK(speed_of(with_nic.graph, "lo") == kDeviceBandwidth);
  CHECK(all_reduce_bound(view_of(with_nic.graph).value().network).rate > Rational(12 * kGigabyte));
  CHECK(warns(all.graph, "host \"box.2\" is on the same machine as others"));
}

TEST_CASE("one host needs no network, whatever its ranks say of interfaces", "[merge]") {
  const Merged all = merged({at_host(0, "a", kNoNic, {"eth0", 1, false}), at_host(1, "a", "", {"eth0", 1, false})});
  CHECK(lines_of(all.graph) == lines_of(parsed(kNoNic)));
}

TEST_CASE("a rank whose look is not known is named with the reason, and its host has what others see", "[merge]") {
  Look lost = at_host(1, "b", "", {"eth0", kGigabyte, false});
  lost.problem = "line 3: nonsense";
  const Merged all = merged({at_host(0, "a", kNoNic, {"eth0", kGigabyte, false}), lost});
  CHECK(warns(all.graph, "what rank 1 sees of host \"b\" is left out: line 3: nonsense"));
  CHECK(all.graph.find("h1.numa0") != kNone);
  CHECK(all.places[1].numa == all.graph.find("h1.numa0"));
}

TEST_CASE("ranks that are missing or there twice are refused", "[merge]") {
  const Look look{0, "h", 0, "", std::nullopt};
  Look second = look;
  CHECK(!merge({}).ok());
  auto twice = merge({look, second});
  REQUIRE(!twice.ok());
  CHECK(twice.error().message.find("rank 0 is there twice") != std::string::npos);
  second.rank = 2;
  auto missing = merge({look, second});
  REQUIRE(!missing.ok());
  CHECK(missing.error().message.find("rank 1 is missing") != std::string::npos);
}
