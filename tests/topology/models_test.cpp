// The machines that are shipped: each loads without a warning and has what its data sheet says.
#include "topology/source.h"

#include "topology/nccl_xml.h"
#include "topology/text_form.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <filesystem>
#include <string>

using namespace tutti::topology;

namespace {

struct Machine {
  const char* name;
  int hosts, numa_nodes, gpus, nics, switches;
  /// Of every GPU: NVLink or xGMI to other GPUs and switches, one direction; -1: not the same for all.
  double fabric_gbps;
};

// GPUs, NICs and links of a GPU by the data sheets: a DGX-1V's V100 has six NVLinks of 25 GB/s, an H100 eighteen, ...
constexpr Machine kMachines[] = {
    {"dgx-1v", 1, 2, 8, 4, 0, 150},          {"dgx-2", 1, 2, 16, 8, 1, 150},
    {"dgx-a100", 1, 8, 8, 8, 1, 300},        {"dgx-a100-pair", 2, 16, 16, 16, 2, 300},
    {"hgx-h100", 1, 2, 8, 8, 1, 450},        {"hgx-b200", 1, 2, 8, 8, 1, 900},
    {"gb200-nvl72", 18, 36, 72, 72, 1, 900}, {"hgx-a100-4gpu", 1, 2, 4, 0, 0, 300},
    {"pcie-8gpu-1socket", 1, 1, 8, 0, 0, 0}, {"pcie-8gpu-2socket", 1, 2, 8, 1, 0, 0},
    {"mi250x", 1, 4, 8, 4, 0, -1},           {"mi300x", 1, 2, 8, 8, 0, 448},
    {"dgx-spark-pair", 2, 2, 2, 4, 0, 0},    {"power9-ac922", 1, 2, 4, 2, 0, 75},
    {"rtx3090-pair", 1, 1, 2, 0, 0, 56.25},  {"epyc-2socket", 1, 2, 0, 0, 0, 0},
};

int count_of(const Graph& graph, NodeKind kind) { return static_cast<int>(graph.nodes_of(kind).size()); }

Bandwidth fabric_of(const Graph& graph, int gpu) {
  Bandwidth sum = 0;
  for (const Link& link : graph.links()) {
    const bool in_fabric = link.kind == LinkKind::kNvLink || link.kind == LinkKind::kXgmi;
    if (link.from == gpu && in_fabric && graph.node(link.to).kind != NodeKind::kNuma) sum += link.bandwidth;
  }
  return sum;
}

std::filesystem::path folder() { return TUTTI_MODELS; }

Graph loaded(const char* name) {
  auto graph = read_file(folder() / (std::string(name) + ".topo"));
  if (!graph.ok()) FAIL(graph.error().message);
  return std::move(graph).value();
}

}  // namespace

TEST_CASE("each shipped machine has its hosts, NUMA nodes, GPUs, NICs, switches and links") {
  for (const Machine& machine : kMachines) {
    CAPTURE(machine.name);
    const Graph graph = loaded(machine.name);
    CHECK(graph.warnings().empty());
    CHECK(static_cast<int>(graph.hosts().size()) == machine.hosts);
    CHECK(count_of(graph, NodeKind::kNuma) == machine.numa_nodes);
    CHECK(count_of(graph, NodeKind::kGpu) == machine.gpus);
    CHECK(count_of(graph, NodeKind::kNic) == machine.nics);
    CHECK(count_of(graph, NodeKind::kSwitch) == machine.switches);
    for (const int gpu : graph.nodes_of(NodeKind::kGpu)) {
      if (machine.fabric_gbps >= 0) CHECK(gbps(fabric_of(graph, gpu)) == machine.fabric_gbps);
    }
    for (const Link& link : graph.links()) {
      const Link* back = graph.find_link(link.to, link.from, link.kind);
      REQUIRE(back != nullptr);
      CHECK(back->bandwidth == link.bandwidth);
    }
  }
}

TEST_CASE("ranks of a shipped machine count from 0, and devices on each host") {
  for (const Machine& machine : kMachines) {
    CAPTURE(machine.name);
    const Graph graph = loaded(machine.name);
    int rank = 0;
    std::vector<int> devices(graph.hosts().size());
    for (const int gpu : graph.nodes_of(NodeKind::kGpu)) {
      CHECK(graph.node(gpu).facts.rank == rank++);
      CHECK(graph.node(gpu).facts.device == devices[static_cast<std::size_t>(graph.node(gpu).host)]++);
    }
  }
}

TEST_CASE("the folder has no machine that the table above does not have") {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder())) {
    CAPTURE(entry.path());
    const std::string name = entry.path().stem();
    CHECK(std::ranges::any_of(kMachines, [&](const Machine& machine) { return machine.name == name; }));
    ++files;
  }
  CHECK(files == static_cast<int>(std::size(kMachines)));
}

TEST_CASE("a MI250X node's links differ from GPU to GPU, as its diagram has them") {
  const Graph graph = loaded("mi250x");
  CHECK(gbps(graph.find_link(graph.find("gpu0"), graph.find("gpu1"), LinkKind::kXgmi)->bandwidth) == 200);
  CHECK(gbps(graph.find_link(graph.find("gpu0"), graph.find("gpu6"), LinkKind::kXgmi)->bandwidth) == 100);
  CHECK(gbps(graph.find_link(graph.find("gpu1"), graph.find("gpu5"), LinkKind::kXgmi)->bandwidth) == 50);
  CHECK(graph.find_link(graph.find("gpu1"), graph.find("gpu6"), LinkKind::kXgmi) == nullptr);
}

TEST_CASE("shipped machines with GPUs survive NCCL's XML: GPUs, NICs, and their links as fast as before") {
  for (const Machine& machine : kMachines) {
    if (machine.gpus == 0) continue;
    CAPTURE(machine.name);
    const Graph graph = loaded(machine.name);
    for (const std::string& lost : lost_in_nccl_xml(graph, to_nccl_xml(graph))) FAIL_CHECK(lost);
    const auto again = read_nccl_xml(to_nccl_xml(graph));
    if (!again.ok()) FAIL(again.error().message);
    CHECK(count_of(again.value(), NodeKind::kGpu) == machine.gpus);
    CHECK(count_of(again.value(), NodeKind::kNic) == machine.nics);
    CHECK(count_of(again.value(), NodeKind::kNuma) == machine.numa_nodes);
    const auto fabric = [](const Graph& of) {
      std::vector<Bandwidth> all;
      for (const int gpu : of.nodes_of(NodeKind::kGpu)) all.push_back(fabric_of(of, gpu));
      std::ranges::sort(all);
      return all;
    };
    CHECK(count_of(again.value(), NodeKind::kSwitch) == machine.switches);
    CHECK(fabric(again.value()) == fabric(graph));
  }
}
