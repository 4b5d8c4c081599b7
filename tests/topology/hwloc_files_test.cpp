// Every hwloc XML file against counts that were not made by the reader: a script over the bare XML counted GPUs (PCI devices
// of class 0x03 and 0x12 of NVIDIA and AMD without the console chip 1002:515e, times their cuda, nvml or rsmi devices), NICs
// (class 0x02), NUMA nodes, those of them that are the smallest to hold some core's cpuset, packages, caches with no cache
// above them, cores, and the cells of the link matrices, NVSwitches taken as one and logical GPUs by their device. They agree
// with the folder's README, which counts the console chip as a GPU.
#include "shared_folder.h"

#include "topology/hwloc_xml.h"

#include <catch2/catch.hpp>

#include <cmath>
#include <set>

using namespace tutti::topology;
using namespace topology_tests;
using Catch::Contains;

namespace {

struct Expected {
  const char* file;
  int gpus, nics, numa_nodes;
  int numas_with_cores;
  int packages, caches, cores;
  int nvlinks;  ///< one direction each
  double nvlink_gbps;
  int xgmis;
  double xgmi_gbps;
};

constexpr Expected kFiles[] = {
    {"16amd64-4distances", 0, 0, 8, 8, 8, 16, 16, 0, 0, 0, 0},
    {"16intel64-manyVFs", 0, 18, 2, 2, 2, 2, 16, 0, 0, 0, 0},
    {"192em64t-24n", 0, 7, 24, 24, 24, 24, 192, 0, 0, 0, 0},
    {"24em64t-pci", 3, 2, 2, 2, 2, 2, 12, 0, 0, 0, 0},
    {"32em64t-dax-nvme-mic", 0, 3, 2, 2, 2, 2, 16, 0, 0, 0, 0},
    {"32em64t-pci-noio", 0, 0, 2, 2, 2, 2, 16, 0, 0, 0, 0},
    {"32em64t-pci-normalio", 4, 3, 2, 2, 2, 2, 16, 0, 0, 0, 0},
    {"40intel64-pcilocality", 0, 4, 4, 4, 4, 4, 40, 0, 0, 0, 0},
    {"64intel64-heteromem", 0, 0, 8, 4, 1, 4, 16, 0, 0, 0, 0},
    {"96em64t-4n4d3ca2co-pci", 0, 8, 4, 4, 16, 16, 96, 0, 0, 0, 0},
    {"butte-4n-0", 4, 10, 6, 2, 2, 16, 32, 0, 0, 0, 0},
    {"cascadelake-ap-v1", 0, 0, 4, 4, 4, 4, 96, 0, 0, 0, 0},
    {"coral-ea-v1", 4, 4, 2, 2, 2, 20, 20, 0, 0, 0, 0},
    {"corona", 8, 3, 2, 2, 2, 16, 48, 0, 0, 0, 0},
    {"dgx-gb10-nomidr", 0, 0, 1, 1, 1, 2, 20, 0, 0, 0, 0},
    {"dgx-gb10", 0, 0, 1, 1, 1, 2, 20, 0, 0, 0, 0},
    {"epyc-corona-p2", 8, 3, 2, 2, 2, 16, 48, 0, 0, 0, 0},
    {"heteromem-doc", 0, 0, 5, 2, 2, 0, 8, 0, 0, 0, 0},
    {"knl-snc4-flat-v1", 0, 4, 8, 4, 1, 34, 68, 0, 0, 0, 0},
    {"lassen-flux", 4, 6, 2, 2, 2, 20, 40, 0, 0, 0, 0},
    {"memattrs", 0, 0, 4, 4, 0, 0, 8, 0, 0, 0, 0},
    {"nvidia-dgx2", 16, 0, 2, 2, 2, 2, 4, 32, 4800, 0, 0},
    {"pascal", 2, 3, 2, 2, 2, 2, 36, 0, 0, 0, 0},
    {"ppc64-full-smt", 0, 0, 2, 2, 4, 4, 8, 0, 0, 0, 0},
    {"prrte-topo2", 1, 2, 4, 4, 1, 8, 24, 0, 0, 0, 0},
    {"sample-osdev", 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0},
    {"sierra", 4, 6, 6, 2, 2, 23, 44, 0, 0, 0, 0},
    {"synthetic-01N-02P-04C-04PU", 0, 0, 1, 1, 2, 0, 8, 0, 0, 0, 0},
    {"synthetic-02N-04P-06C-02PU", 0, 0, 2, 2, 8, 0, 48, 0, 0, 0, 0},
    {"tioga", 8, 5, 4, 4, 1, 8, 64, 0, 0, 56, 5600},
    {"tuo-CPX", 24, 5, 4, 4, 4, 12, 96, 0, 0, 60, 241200},
    {"tuo-SPX", 4, 5, 4, 4, 4, 12, 96, 0, 0, 12, 1200},
    {"turin-4gpu-nvml", 4, 7, 8, 8, 2, 16, 128, 12, 1800, 0, 0},
    {"turin-4gpu", 4, 7, 8, 8, 2, 16, 128, 0, 0, 0, 0},
    {"x86-epyc7451-2s", 0, 0, 1, 1, 2, 16, 48, 0, 0, 0, 0},
    {"x86-epyc7763-2s", 0, 0, 1, 1, 2, 16, 128, 0, 0, 0, 0},
    {"x86-spr-max9460-2s", 0, 0, 1, 1, 2, 2, 80, 0, 0, 0, 0},
};

int count_of(const Graph& graph, NodeKind kind) { return static_cast<int>(graph.nodes_of(kind).size()); }

std::pair<int, double> links_of(const Graph& graph, LinkKind kind) {
  int count = 0;
  double sum = 0;
  for (const Link& link : graph.links()) {
    if (link.kind != kind) continue;
    ++count;
    sum += gbps(link.bandwidth);
  }
  return {count, sum};
}

/// GB/s of the narrowest PCI link between a device and its NUMA node; 0 if there is a gap.
double pci_gbps(const Graph& graph, int device) {
  double narrowest = 1e9;
  for (int at = device; graph.node(at).kind != NodeKind::kNuma; at = graph.node(at).parent) {
    const int above = graph.node(at).parent;
    if (above == kNone) return 0;
    const Link* link = graph.find_link(above, at, LinkKind::kPci);
    if (link == nullptr) link = graph.find_link(above, at, LinkKind::kXgmi);  // logical GPUs
    if (link == nullptr) return 0;
    narrowest = std::min(narrowest, gbps(link->bandwidth));
  }
  return narrowest;
}

Graph graph_of_file(const std::string& name) {
  const auto read = read_hwloc_xml(contents_of(shared_folder() / ("hwloc-" + name + ".xml")));
  INFO(name << ": " << (read.ok() ? "" : read.error().message));
  REQUIRE(read.ok());
  return read.value();
}

bool has_warning(const Graph& graph, const std::string& part) {
  return std::ranges::any_of(graph.warnings(), [&](const std::string& w) { return w.find(part) != std::string::npos; });
}

}  // namespace

TEST_CASE("every hwloc file has the counts that a script over its XML has") {
  if (!has_shared_folder()) return;
  for (const Expected& expected : kFiles) {
    INFO(expected.file);
    const Graph graph = graph_of_file(expected.file);
    CHECK(count_of(graph, NodeKind::kGpu) == expected.gpus);
    CHECK(count_of(graph, NodeKind::kNic) == expected.nics);
    CHECK(count_of(graph, NodeKind::kNuma) == expected.numa_nodes);
    CHECK(count_of(graph, NodeKind::kPackage) == expected.packages);
    CHECK(count_of(graph, NodeKind::kCache) == expected.caches);
    int cores = 0;
    int with_cores = 0;
    for (const int numa : graph.nodes_of(NodeKind::kNuma)) {
      cores += graph.node(numa).facts.cores;
      with_cores += graph.node(numa).facts.cores > 0 ? 1 : 0;
    }
    CHECK(cores == expected.cores);
    CHECK(with_cores == expected.numas_with_cores);
    CHECK(links_of(graph, LinkKind::kCpu).first ==
          expected.numas_with_cores * std::max(expected.numas_with_cores - 1, 0));
    const auto [nvlinks, nvlink_gbps] = links_of(graph, LinkKind::kNvLink);
    CHECK(nvlinks == expected.nvlinks);
    CHECK(nvlink_gbps == Approx(expected.nvlink_gbps));
    const auto [xgmis, xgmi_gbps] = links_of(graph, LinkKind::kXgmi);
    CHECK(xgmis == expected.xgmis);
    CHECK(xgmi_gbps == Approx(expected.xgmi_gbps));
    for (const NodeKind kind : {NodeKind::kGpu, NodeKind::kNic}) {
      for (const int device : graph.nodes_of(kind)) CHECK(pci_gbps(graph, device) > 0);
    }
  }
}

TEST_CASE("the table of hwloc files is complete") {
  if (!has_shared_folder()) return;
  std::set<std::string> known;
  for (const Expected& expected : kFiles) known.insert(std::string("hwloc-") + expected.file + ".xml");
  for (const auto& entry : std::filesystem::directory_iterator(shared_folder())) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("hwloc-") && name.ends_with(".xml")) CHECK(known.count(name) == 1);
  }
}

TEST_CASE("devices of hwloc files have the links that pci_link_speed gives them") {
  if (!has_shared_folder()) return;
  struct Device {
    const char* file;
    const char* node;
    const char* bus_id;
    int numa;
    double gbps;
  };
  // By hand from the files; the two ports of 0000:61:00 share a link of 7.876923.
  constexpr Device kDevices[] = {
      {"turin-4gpu-nvml", "gpu0", "0000:06:00.0", 1, 63.015385},
      {"turin-4gpu-nvml", "gpu3", "0000:e6:00.0", 7, 63.015385},
      {"turin-4gpu-nvml", "mlx5_1", "0000:61:00.0", 3, 7.876923},
      {"turin-4gpu-nvml", "mlx5_2", "0000:61:00.1", 3, 7.876923},
      {"nvidia-dgx2", "gpu0", "0000:34:00.0", 0, 15.753846},
      {"nvidia-dgx2", "gpu15", "0000:e7:00.0", 1, 15.753846},
      {"lassen-flux", "gpu2", "0035:03:00.0", 8, 1.969231},
      {"lassen-flux", "mlx5_0", "0003:01:00.0", 0, 15.753846},
      {"tuo-SPX", "gpu1", "0001:02:00.0", 1, 63.015385},
      {"tuo-CPX", "gpu23", "0003:02:00.0", 3, 63.015385},
      {"tuo-CPX", "hsi2", "0002:01:00.0", 2, 31.507692},
      {"tioga", "gpu4", "0000:d1:00.0", 0, 31.507692},
      {"coral-ea-v1", "gpu0", "0002:01:00.0", 0, 12},
      {"pascal", "mlx5_0", "0000:08:00.0", 0, 15.753846},
  };
  for (const Device& device : kDevices) {
    INFO(device.file << " " << device.node);
    const Graph graph = graph_of_file(device.file);
    const int node = graph.find(device.node);
    REQUIRE(node != kNone);
    CHECK(graph.node(node).facts.bus_id == device.bus_id);
    CHECK(graph.node(node).facts.numa == device.numa);
    CHECK(pci_gbps(graph, node) == Approx(device.gbps));
  }
}

TEST_CASE("DGX-2: every GPU has six NVLinks to one switch, and hangs two levels below its processor") {
  if (!has_shared_folder()) return;
  const Graph graph = graph_of_file("nvidia-dgx2");
  REQUIRE(count_of(graph, NodeKind::kSwitch) == 1);
  const int nv_switch = graph.nodes_of(NodeKind::kSwitch)[0];
  for (const int gpu : graph.nodes_of(NodeKind::kGpu)) {
    const Link* link = graph.find_link(gpu, nv_switch, LinkKind::kNvLink);
    REQUIRE(link != nullptr);
    CHECK(link->bandwidth == 150 * kGigabyte);
    CHECK(link->count == 6);
    CHECK(graph.node(gpu).facts.model == "Tesla V100-SXM3-32GB-H");
    const int near = graph.node(gpu).parent;
    const int far = graph.node(near).parent;
    CHECK(graph.node(near).facts.model == "switch 10b5:9781");
    CHECK(graph.node(far).facts.model.starts_with("switch 10b5:97"));
    CHECK(graph.node(graph.node(far).parent).kind == NodeKind::kNuma);
  }
}

TEST_CASE("MI300A in mode CPX: six logical GPUs share the links of their device") {
  if (!has_shared_folder()) return;
  const Graph graph = graph_of_file("tuo-CPX");
  const int gpu0 = graph.find("gpu0");
  const int gpu5 = graph.find("gpu5");
  const int gpu6 = graph.find("gpu6");
  CHECK(graph.node(gpu0).parent == graph.node(gpu5).parent);
  CHECK(graph.node(gpu0).parent != graph.node(gpu6).parent);
  CHECK(graph.node(gpu0).facts.gcn == "gfx942");
  const Link* link = graph.find_link(graph.node(gpu0).parent, graph.node(gpu6).parent, LinkKind::kXgmi);
  REQUIRE(link != nullptr);
  CHECK(link->bandwidth == 100 * kGigabyte);
  CHECK(graph.find_link(gpu0, gpu6, LinkKind::kXgmi) == nullptr);
}

TEST_CASE("what hwloc files leave open is said") {
  if (!has_shared_folder()) return;
  CHECK(has_warning(graph_of_file("24em64t-pci"), "1002:515e"));
  CHECK(has_warning(graph_of_file("24em64t-pci"), "InfiniBand adapter of the old class 0c06"));
  CHECK(has_warning(graph_of_file("32em64t-pci-normalio"), "line 247: there is a device at 0000:04:00.0 already"));
  CHECK(has_warning(graph_of_file("lassen-flux"), "4 NVIDIA GPUs and no NVLinkBandwidth matrix"));
  CHECK(has_warning(graph_of_file("lassen-flux"), "idle ones slow theirs down"));
  CHECK(has_warning(graph_of_file("40intel64-pcilocality"), "is near 2 NUMA nodes"));
  CHECK(has_warning(graph_of_file("sample-osdev"), "4 PCI devices have no pci_type"));
  CHECK(has_warning(graph_of_file("tioga"), "every XGMIBandwidth is 100000 MB/s"));
  CHECK(graph_of_file("turin-4gpu-nvml").warnings().empty());
}

TEST_CASE("hwloc's processors keep their names, memory and what lies in what") {
  if (!has_shared_folder()) return;
  const Graph turin = graph_of_file("turin-4gpu");
  CHECK(turin.hosts()[0] == "h200-1001");
  CHECK(turin.node(turin.find("numa5")).facts.model == "AuthenticAMD 26/2");
  CHECK(turin.node(turin.node(turin.find("numa5")).parent).kind == NodeKind::kPackage);
  CHECK(turin.node(turin.find("numa5")).facts.memory == 115200LL * 1048576 / 1000);
  CHECK(gbps(turin.find_link(turin.find("numa0"), turin.find("numa7"), LinkKind::kCpu)->bandwidth) == 16);
  const Graph power = graph_of_file("sierra");
  CHECK(power.node(power.find("numa252")).facts.cores == 0);
  CHECK(power.node(power.find("numa8")).facts.cores == 22);
  CHECK(gbps(power.find_link(power.find("numa0"), power.find("numa8"), LinkKind::kCpu)->bandwidth) == 32);
  // One NUMA node for two packages: they are inside it.
  const Graph epyc = graph_of_file("x86-epyc7451-2s");
  for (const int package : epyc.nodes_of(NodeKind::kPackage)) CHECK(epyc.node(package).parent == epyc.find("numa0"));
}
