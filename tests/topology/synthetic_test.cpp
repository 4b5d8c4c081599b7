#include "topology/synthetic.h"

#include "graph_questions.h"
#include "topology/text_form.h"

#include <catch2/catch.hpp>

using namespace tutti::topology;
using Catch::Contains;

namespace {

Graph machine(std::string_view line) {
  auto graph = parse_synthetic(line);
  if (!graph.ok()) FAIL(graph.error().message);
  return std::move(graph).value();
}

std::string refusal_of(std::string_view line) {
  const auto graph = parse_synthetic(line);
  REQUIRE_FALSE(graph.ok());
  CHECK(graph.error().code == tutti::Code::kInvalidArgument);
  return graph.error().message;
}

std::size_t count_of(const Graph& graph, NodeKind kind) { return graph.nodes_of(kind).size(); }

}  // namespace

TEST_CASE("four hosts with a switch and eight NICs each") {
  const Graph graph = machine("host:4 switch:1 gpu:8 nvlink:450 nic:8x50");
  CHECK(graph.hosts().size() == 4);
  CHECK(count_of(graph, NodeKind::kGpu) == 32);
  CHECK(count_of(graph, NodeKind::kSwitch) == 4);
  CHECK(count_of(graph, NodeKind::kNic) == 32);
  CHECK(count_of(graph, NodeKind::kNuma) == 4);
  CHECK(count_of(graph, NodeKind::kNetwork) == 1);
  CHECK(gbps_of(graph, "h3.gpu7", "h3.switch0", LinkKind::kNvLink) == 450);
  CHECK(gbps_of(graph, "h3.switch0", "h3.gpu7", LinkKind::kNvLink) == 450);
  CHECK(gbps_of(graph, "h2.nic0", "network0", LinkKind::kNetwork) == 50);
  CHECK(gbps_of(graph, "gpu0", "numa0", LinkKind::kPci) == 50);  // its share of the NICs
  CHECK(graph.node(graph.find("h3.gpu7")).facts.rank == 31);
  CHECK(graph.node(graph.find("h3.gpu7")).facts.device == 7);
}

TEST_CASE("meshes, rings and lines of GPUs have nothing but their links") {
  const Graph mesh = machine("gpu:4 mesh:100");
  CHECK(mesh.nodes().size() == 4);
  CHECK(mesh.links().size() == 12);
  CHECK(gbps_of(mesh, "gpu3", "gpu1", LinkKind::kNvLink) == 100);
  const Graph ring = machine("ring:50 gpu:8 kind:xgmi");
  CHECK(ring.links().size() == 16);
  CHECK(gbps_of(ring, "gpu7", "gpu0", LinkKind::kXgmi) == 50);
  CHECK(gbps_of(ring, "gpu0", "gpu2", LinkKind::kXgmi) == 0);
  CHECK(machine("gpu:4 line:50").links().size() == 6);
  CHECK(machine("gpu:2 ring:50").links().size() == 2);
}

TEST_CASE("PCI machines: GPUs on their NUMA nodes, or below bridges") {
  const Graph plain = machine("gpu:8 numa:2 pci:12 cpu:10");
  CHECK(gbps_of(plain, "gpu3", "numa0", LinkKind::kPci) == 12);
  CHECK(gbps_of(plain, "gpu4", "numa1", LinkKind::kPci) == 12);
  CHECK(gbps_of(plain, "numa0", "numa1", LinkKind::kCpu) == 10);
  const Graph bridged = machine("gpu:8 numa:2 bridge:4x20 pci:24 nic:4x25");
  CHECK(count_of(bridged, NodeKind::kPci) == 4);
  CHECK(gbps_of(bridged, "gpu5", "pci2", LinkKind::kPci) == 24);
  CHECK(gbps_of(bridged, "pci2", "numa1", LinkKind::kPci) == 20);
  CHECK(gbps_of(bridged, "nic3", "pci3", LinkKind::kPci) == 25);
  CHECK(bridged.node(bridged.find("gpu5")).parent == bridged.find("pci2"));
  CHECK(machine("gpu:3").links().size() == 6);  // joined by PCI, as nothing else joins them
}

TEST_CASE("uneven hosts, a pod, several switches, a machine without GPUs") {
  const Graph uneven = machine("gpu:7+8 switch:1 nvlink:450 nic:2x50 sm:90");
  CHECK(uneven.hosts().size() == 2);
  CHECK(count_of(uneven, NodeKind::kGpu) == 15);
  CHECK(uneven.find("gpu7") == kNone);
  CHECK(uneven.find("h1.gpu7") != kNone);
  CHECK(uneven.node(uneven.find("gpu6")).facts.sm == 90);
  const Graph pod = machine("host:18 gpu:4 switch:pod nvlink:721.8");
  CHECK(count_of(pod, NodeKind::kSwitch) == 1);
  CHECK(gbps_of(pod, "h17.gpu3", "switch0", LinkKind::kNvLink) == 721.8);
  const Graph planes = machine("gpu:2 switch:3 nvlink:100");
  CHECK(gbps_of(planes, "gpu0", "switch0", LinkKind::kNvLink) +
            2 * gbps_of(planes, "gpu0", "switch2", LinkKind::kNvLink) ==
        Approx(100));
  const Graph cpus = machine("numa:4 cores:16 memory:150");
  CHECK(count_of(cpus, NodeKind::kNuma) == 4);
  CHECK(cpus.node(0).facts.cores == 16);
  CHECK(gbps(cpus.node(3).facts.memory) == 150);
  CHECK(cpus.links().size() == 12);
}

TEST_CASE("a synthetic machine is the same after a trip through the text form") {
  for (const char* line :
       {"host:4 switch:1 gpu:8 nvlink:450 nic:8x50", "gpu:7+8 mesh:33.3 nic:1x12.5 numa:3 bridge:2"}) {
    const Graph graph = machine(line);
    const auto again = parse_text(to_text(graph));
    REQUIRE(again.ok());
    CHECK(again.value() == graph);
  }
}

TEST_CASE("errors point at the word and say what was expected") {
  CHECK_THAT(refusal_of(""), Contains("there is no word"));
  CHECK_THAT(refusal_of("gpu:8 gup:3"),
             Contains("word 2, \"gup:3\": no such key; expected one of host, gpu, sm, switch"));
  CHECK_THAT(refusal_of("gpu:8 mesh"), Contains("word 2, \"mesh\": expected KEY:VALUE"));
  CHECK_THAT(refusal_of("gpu:8 mesh:fast"), Contains("word 2, \"mesh:fast\": expected GB/s above 0"));
  CHECK_THAT(refusal_of("gpu:0"), Contains("word 1, \"gpu:0\": expected a number from 1 to 1024"));
  CHECK_THAT(refusal_of("gpu:99999999999"), Contains("expected a number from 1 to 1024"));
  CHECK_THAT(refusal_of("gpu:4 nic:8"), Contains("word 2, \"nic:8\": expected NUMBERxGB/s"));
  CHECK_THAT(refusal_of("gpu:4 ring:50 gpu:5"), Contains("word 3, \"gpu:5\": a second time"));
  CHECK_THAT(refusal_of("gpu:4 nvlink:100"), Contains("nvlink without switch:1"));
  CHECK_THAT(refusal_of("gpu:4 switch:1"), Contains("switch without nvlink"));
  CHECK_THAT(refusal_of("host:2 gpu:4 mesh:50"), Contains("nothing joins the hosts"));
  CHECK_THAT(refusal_of("host:3 gpu:7+8 nic:1x50"), Contains("host:3 and gpu: with 2 numbers"));
  CHECK_THAT(refusal_of("nic:1x50"), Contains("nothing computes"));
  CHECK_THAT(refusal_of("gpu:2 kind:xgmi"), Contains("kind without mesh"));
  CHECK_THAT(refusal_of("host:16384 gpu:1024 nic:1x50"), Contains("at most 65536"));
  CHECK_THAT(refusal_of("host:1000 gpu:64 mesh:1 nic:1x1"), Contains("links; at most"));
}
