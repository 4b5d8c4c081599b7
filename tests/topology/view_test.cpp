#include "topology/view.h"
#include "topology/bounds.h"
#include "topology/text_form.h"

#include <catch2/catch.hpp>

#include <string>

using namespace tutti;
using namespace tutti::topology;

namespace {

/// Two pairs with NVLink inside each socket, PCI between all.
const char* const kPairs = R"(tutti-topology 1
numa numa0 cores=8
numa numa1 cores=8
gpu gpu2 in=numa1 device=2
gpu gpu3 in=numa1 device=3
gpu gpu0 in=numa0 device=0
gpu gpu1 in=numa0 device=1
pci empty in=numa0
nic nic0 in=numa0
network net
link gpu0 <-> numa0 pci 12
link gpu1 <-> numa0 pci 12
link gpu2 <-> numa1 pci 12
link gpu3 <-> numa1 pci 12
link numa0 <-> numa1 cpu 10
link gpu0 <-> gpu1 nvlink 40
link gpu2 <-> gpu3 nvlink 40
link empty <-> numa0 pci 12
link nic0 <-> numa0 pci 12
link nic0 <-> net network 25
)";

Graph graph_of(const std::string& text) {
  Result<Graph> graph = parse_text(text);
  INFO((graph.ok() ? "" : graph.error().message));
  REQUIRE(graph.ok());
  return std::move(graph).value();
}

View view(const Graph& graph, const ViewOptions& options = {}) {
  Result<View> made = view_of(graph, options);
  INFO((made.ok() ? "" : made.error().message));
  REQUIRE(made.ok());
  return std::move(made).value();
}

std::string names(const Graph& graph, const View& view) {
  std::string text;
  for (const int node : view.nodes) text += (text.empty() ? "" : " ") + graph.node(node).name;
  return text;
}

double bound(const View& view) { return all_reduce_bound(view.network).rate.to_double() / kGigabyte; }

Bandwidth capacity(const View& view, int from, int to) {
  for (const Arc& arc : view.network.arcs) {
    if (arc.from == from && arc.to == to) return arc.capacity;
  }
  return 0;
}

}  // namespace

TEST_CASE("GPUs come in the order of their numbers, and where NVLink does not join them all links count") {
  const Graph graph = graph_of(kPairs);
  const View all = view(graph);
  CHECK(all.compute == ComputeKind::kGpu);
  CHECK(all.counted == LinksCounted::kAll);
  CHECK(all.network.compute == std::vector<int>{0, 1, 2, 3});
  CHECK(names(graph, all) == "gpu0 gpu1 gpu2 gpu3 numa0 numa1");  // no dead ends, no NIC
  CHECK(capacity(all, 0, 1) == 40 * kGigabyte);
  CHECK(capacity(all, 0, 4) == 12 * kGigabyte);
  CHECK(all.network.full_duplex());
  CHECK(bound(all) == 10);
}

TEST_CASE("NVLink alone counts where it joins the chosen GPUs") {
  const Graph graph = graph_of(kPairs);
  const View pair = view(graph, {.chosen = {3, 2}});
  CHECK(pair.counted == LinksCounted::kNvLink);
  CHECK(names(graph, pair) == "gpu2 gpu3");
  CHECK(bound(pair) == 40);
  const View counted_all = view(graph, {.chosen = {2, 3}, .all_links = true});
  CHECK(counted_all.counted == LinksCounted::kAllAsked);
  CHECK(bound(counted_all) == 52);
  const View apart = view(graph, {.chosen = {0, 2}});
  CHECK(apart.counted == LinksCounted::kAll);
  CHECK(names(graph, apart) == "gpu0 gpu2 numa0 numa1");  // GPUs that were not chosen relay nothing
  CHECK(bound(apart) == 10);
}

TEST_CASE("links of several kinds between the same nodes add up") {
  const Graph graph =
      graph_of("tutti-topology 1\ngpu gpu0\ngpu gpu1\nlink gpu0 <-> gpu1 nvlink 40\nlink gpu0 <-> gpu1 pci 12\n");
  CHECK(bound(view(graph)) == 40);
  CHECK(bound(view(graph, {.all_links = true})) == 52);
}

TEST_CASE("an NVLink in one direction does not join") {
  const Graph graph =
      graph_of("tutti-topology 1\ngpu gpu0\ngpu gpu1\nlink gpu0 -> gpu1 nvlink 40\nlink gpu0 <-> gpu1 pci 12\n");
  const View both = view(graph);
  CHECK(both.counted == LinksCounted::kAll);
  CHECK(capacity(both, 0, 1) == 52 * kGigabyte);
  CHECK(capacity(both, 1, 0) == 12 * kGigabyte);
}

TEST_CASE("between hosts NICs and networks relay") {
  const Graph graph = graph_of(R"(tutti-topology 1
host a
host b
gpu gpu0 host=0 device=0
gpu h1.gpu0 host=1 device=0
nic nic0 host=0
nic h1.nic0 host=1
network net
link gpu0 <-> nic0 pci 24
link h1.gpu0 <-> h1.nic0 pci 24
link nic0 <-> net network 12.5
link h1.nic0 <-> net network 25
)");
  const View both = view(graph);
  CHECK(both.ranks() == 2);
  CHECK(bound(both) == 12.5);
}

TEST_CASE("without GPUs the NUMA nodes with cores compute") {
  const Graph graph = graph_of(R"(tutti-topology 1
numa numa0 cores=8
numa hbm0 bytes=1000
numa numa1 cores=8
link numa0 <-> numa1 cpu 20
link hbm0 <-> numa0 memory 100
warning "the file has no bandwidths"
)");
  const View both = view(graph);
  CHECK(both.compute == ComputeKind::kNuma);
  CHECK(name_of(both.compute) == "numa");
  CHECK(names(graph, both) == "numa0 numa1");
  CHECK(bound(both) == 20);
  CHECK(both.warnings == std::vector<std::string>{"the file has no bandwidths"});
  // A source that knows no cores means all of them.
  CHECK(compute_nodes(graph_of("tutti-topology 1\nnuma numa0\nnuma numa1\n")).nodes.size() == 2);
}

TEST_CASE("one GPU is a network of one rank") {
  const View one = view(graph_of(kPairs), {.chosen = {1}});
  CHECK(one.ranks() == 1);
  CHECK(all_reduce_bound(one.network).unlimited);
}

TEST_CASE("what cannot be chosen is refused with the reason") {
  const Graph graph = graph_of(kPairs);
  CHECK_THAT(view_of(graph, {.chosen = {0, 4}}).error().message,
             Catch::Contains("gpu 4 is not there") && Catch::Contains("0 to 3"));
  CHECK_THAT(view_of(graph, {.chosen = {0, -1}}).error().message, Catch::Contains("-1"));
  CHECK_THAT(view_of(graph, {.chosen = {2, 2}}).error().message, Catch::Contains("gpu 2 is chosen twice"));
  CHECK_THAT(view_of(graph_of("tutti-topology 1\npci p\n")).error().message,
             Catch::Contains("nothing on this machine computes"));
}
