// The live machine, and snapshots of others replayed through HWLOC_FSROOT: hwloc reads that variable itself, so each test
// sets it for itself.
#include "shared_folder.h"

#include "topology/hwloc_xml.h"
#include "topology/live.h"
#include "topology/sysfs.h"

#include <catch2/catch.hpp>

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <regex>

using namespace tutti::topology;
using namespace topology_tests;

namespace {

/// The snapshot unpacked into a folder of its own, and HWLOC_FSROOT set to it, for as long as this lives.
class Snapshot {
 public:
  explicit Snapshot(const std::string& name) {
    // Thousands of small files: in memory where there is a file system in memory.
    const std::filesystem::path memory = "/dev/shm";
    const bool has_memory = access(memory.c_str(), W_OK) == 0;
    std::string pattern =
        ((has_memory ? memory : std::filesystem::temp_directory_path()) / "tutti-snapshot-XXXXXX").string();
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    folder_ = pattern;
    const std::filesystem::path archive = shared_folder() / ("hwloc-" + name + "-sysfs.tar.bz2");
    const std::string command = "tar -xjf '" + archive.string() + "' -C '" + folder_.string() + "' 2>/dev/null";
    static_cast<void>(std::system(command.c_str()));  // tar minds what it may not set, modes of /proc among it
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) root_ = entry.path();
    REQUIRE(!root_.empty());
    REQUIRE(setenv("HWLOC_FSROOT", root_.c_str(), 1) == 0);
  }
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;
  ~Snapshot() {
    unsetenv("HWLOC_FSROOT");
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  const std::filesystem::path& root() const { return root_; }

  /// Lines of a device's file.
  void rewrite(const std::string& device, const std::string& file, const std::string& line) const {
    const std::filesystem::path path = root_ / "sys/bus/pci/devices" / device / file;
    std::filesystem::remove(path);
    std::ofstream(path) << line << '\n';
  }

 private:
  std::filesystem::path folder_, root_;
};

Graph discover(const LiveOptions& options) {
  auto graph = discover_live(options);
  INFO((graph.ok() ? "" : graph.error().message));
  REQUIRE(graph.ok());
  return std::move(graph).value();
}

Graph discover(const Snapshot& snapshot) {
  return discover({.root = snapshot.root().string(), .with_nvml = false, .gpus = {}});
}

int count_of(const Graph& graph, NodeKind kind) { return static_cast<int>(graph.nodes_of(kind).size()); }

int cores_of(const Graph& graph, NodeKind kind) {
  int cores = 0;
  for (const int node : graph.nodes_of(kind)) cores += graph.node(node).facts.cores;
  return cores;
}

int occurrences(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  return static_cast<int>(std::distance(std::sregex_iterator(text.begin(), text.end(), regex), std::sregex_iterator()));
}

}  // namespace

TEST_CASE("snapshots have what hwloc's own XML of them has") {
  if (!has_shared_folder()) return;
  for (const std::string name : {"32em64t-dax-nvme-mic", "40intel64-pcilocality", "dgx-gb10"}) {
    INFO(name);
    const Snapshot snapshot(name);
    const Graph live = discover(snapshot);
    const auto file = read_hwloc_xml(contents_of(shared_folder() / ("hwloc-" + name + ".xml")));
    REQUIRE(file.ok());
    for (const NodeKind kind :
         {NodeKind::kPackage, NodeKind::kNuma, NodeKind::kCache, NodeKind::kGpu, NodeKind::kNic}) {
      INFO(name_of(kind));
      CHECK(count_of(live, kind) == count_of(file.value(), kind));
    }
    CHECK(cores_of(live, NodeKind::kNuma) == cores_of(file.value(), NodeKind::kNuma));
    for (const int nic : file.value().nodes_of(NodeKind::kNic)) {
      const Facts& facts = file.value().node(nic).facts;
      const int same = live.find(file.value().node(nic).name);
      REQUIRE(same != kNone);
      CHECK(live.node(same).facts.bus_id == facts.bus_id);
      CHECK(live.node(same).facts.numa == facts.numa);
    }
  }
}

TEST_CASE("snapshots have what lstopo prints of them") {
  if (!has_shared_folder()) return;
  for (const std::string name : {"48amd64-sparse", "offline-cpu0-node0"}) {
    INFO(name);
    const std::string console = contents_of(shared_folder() / ("hwloc-" + name + ".console"));
    const Snapshot snapshot(name);
    const Graph live = discover(snapshot);
    CHECK(count_of(live, NodeKind::kPackage) == occurrences(console, "Package L#"));
    CHECK(count_of(live, NodeKind::kNuma) == occurrences(console, "NUMANode L#"));
    CHECK(count_of(live, NodeKind::kCache) == occurrences(console, "L3Cache L#"));
    CHECK(cores_of(live, NodeKind::kPackage) == occurrences(console, "Core L#"));
  }
}

TEST_CASE("rates of NICs come from sysfs") {
  if (!has_shared_folder()) return;
  const Snapshot snapshot("32em64t-dax-nvme-mic");
  const Graph live = discover(snapshot);
  const int nic = live.find("mlx4_0");
  REQUIRE(nic != kNone);
  const std::string rate =
      contents_of(snapshot.root() / "sys/devices/pci0000:80/0000:80:02.2/0000:82:00.0/infiniband/mlx4_0/ports/1/rate");
  CHECK(rate.starts_with("56 Gb/sec"));
  const int network = live.find("network");
  REQUIRE(network != kNone);
  const Link* link = live.find_link(nic, network, LinkKind::kNetwork);
  REQUIRE(link != nullptr);
  CHECK(gbps(link->bandwidth) == 7);
  CHECK(live.node(nic).facts.ports >= 1);
}

TEST_CASE("PCI links are the best of device and port, by sysfs") {
  if (!has_shared_folder()) return;
  const Snapshot snapshot("40intel64-pcilocality");
  // Both functions of the device could do 12 GB/s; the port above them does no more than 6.
  const std::string port = std::filesystem::canonical(snapshot.root() / "sys/bus/pci/devices/0000:02:00.0")
                               .parent_path()
                               .filename()
                               .string();
  const auto set = [&](const std::string& address, const char* lanes) {
    snapshot.rewrite(address, "max_link_speed", "16.0 GT/s PCIe");
    snapshot.rewrite(address, "max_link_width", lanes);
  };
  set("0000:02:00.0", "8");
  set("0000:02:00.1", "8");
  set(port, "4");
  const Sysfs sysfs(snapshot.root().string());
  CHECK(gbps(sysfs.pci_link("0000:02:00.0").bandwidth) == 12);
  CHECK(sysfs.pci_link("0000:02:00.0").lanes == 8);
  CHECK(sysfs.pci_link("0000:7f:00.0").bandwidth == 0);
  const Graph live = discover(snapshot);
  const auto nics = live.nodes_of(NodeKind::kNic);
  const auto at = std::ranges::find_if(nics, [&](int nic) { return live.node(nic).facts.bus_id == "0000:02:00.0"; });
  REQUIRE(at != nics.end());
  const int device = live.node(*at).parent;
  CHECK(live.node(device).facts.model == "device");
  const Link* link = live.find_link(device, live.node(device).parent, LinkKind::kPci);
  REQUIRE(link != nullptr);
  CHECK(gbps(link->bandwidth) == 6);
  CHECK(link->count == 4);
}

TEST_CASE("a GPU's facts from a driver become its model and its NVLinks") {
  if (!has_shared_folder()) return;
  const Snapshot snapshot("40intel64-pcilocality");
  for (const char* gpu : {"0000:02:00.0", "0000:03:00.0"}) {
    snapshot.rewrite(gpu, "class", "0x030200");
    snapshot.rewrite(gpu, "vendor", "0x10de");
    snapshot.rewrite(gpu, "device", "0x2330");
  }
  LiveOptions options{.root = snapshot.root().string(), .with_nvml = false, .gpus = {}};
  const Graph without = discover(options);
  CHECK(count_of(without, NodeKind::kGpu) == 2);
  CHECK(count_of(without, NodeKind::kNic) == 2);
  CHECK(std::ranges::any_of(without.warnings(), [](const std::string& w) { return w.find("NVLinks") != w.npos; }));

  GpuFacts first{.bus_id = "0000:02:00.0", .name = "NVIDIA H100", .device = 1, .sm = 90, .peers = {}};
  GpuFacts second = first;
  second.bus_id = "0000:03:00.0";
  second.device = 0;
  SECTION("to each other") {
    first.peers = {{GpuPeer::Kind::kGpu, second.bus_id, 6}};
    second.peers = {{GpuPeer::Kind::kGpu, first.bus_id, 6}};
    options.gpus = {first, second};
    const Graph live = discover(options);
    CHECK(live.node(live.find("gpu0")).facts.bus_id == "0000:03:00.0");
    CHECK(live.node(live.find("gpu0")).facts.model == "NVIDIA H100");
    CHECK(live.node(live.find("gpu1")).facts.sm == 90);
    const Link* link = live.find_link(live.find("gpu1"), live.find("gpu0"), LinkKind::kNvLink);
    REQUIRE(link != nullptr);
    CHECK(link->count == 6);
    CHECK(gbps(link->bandwidth) == Approx(6 * 20.6));
    CHECK(count_of(live, NodeKind::kSwitch) == 0);
  }
  SECTION("to a switch") {
    first.peers = {{GpuPeer::Kind::kSwitch, "", 18}};
    second.peers = {{GpuPeer::Kind::kSwitch, "", 12}};
    options.gpus = {first, second};
    const Graph live = discover(options);
    REQUIRE(count_of(live, NodeKind::kSwitch) == 1);
    const int hub = live.nodes_of(NodeKind::kSwitch)[0];
    CHECK(gbps(live.find_link(live.find("gpu1"), hub, LinkKind::kNvLink)->bandwidth) == Approx(18 * 20.6));
    CHECK(gbps(live.find_link(hub, live.find("gpu0"), LinkKind::kNvLink)->bandwidth) == Approx(12 * 20.6));
  }
}

TEST_CASE("NVLinks to a POWER processor end at its NUMA node") {
  if (!has_shared_folder()) return;
  const Snapshot snapshot("32em64t-dax-nvme-mic");
  snapshot.rewrite("0000:82:00.0", "class", "0x030200");
  snapshot.rewrite("0000:82:00.0", "vendor", "0x10de");
  const GpuFacts gpu{
      .bus_id = "0000:82:00.0", .name = "V100", .device = 0, .sm = 70, .peers = {{GpuPeer::Kind::kCpu, "", 3}}};
  const Graph live = discover({.root = snapshot.root().string(), .with_nvml = false, .gpus = {gpu}});
  const Link* link = live.find_link(live.find("gpu0"), live.find("numa1"), LinkKind::kNvLink);
  REQUIRE(link != nullptr);
  CHECK(link->count == 3);
  CHECK(gbps(link->bandwidth) == 60);
}

TEST_CASE("GPUs that the driver shows and PCI does not are there, with a word about it") {
  if (!has_shared_folder()) return;
  const Snapshot snapshot("48amd64-sparse");
  GpuFacts first{.bus_id = "0000:07:00.0", .name = "A100", .device = 0, .sm = 80, .peers = {}};
  GpuFacts second = first;
  second.bus_id = "0000:0a:00.0";
  second.device = 1;
  first.peers = {{GpuPeer::Kind::kGpu, second.bus_id, 12}};
  second.peers = {{GpuPeer::Kind::kGpu, first.bus_id, 12}};
  const Graph live = discover({.root = snapshot.root().string(), .with_nvml = false, .gpus = {first, second}});
  REQUIRE(count_of(live, NodeKind::kGpu) == 2);
  CHECK(live.node(live.find("gpu1")).facts.bus_id == "0000:0a:00.0");
  CHECK(live.node(live.find("gpu1")).facts.model == "A100");
  const Link* link = live.find_link(live.find("gpu0"), live.find("gpu1"), LinkKind::kNvLink);
  REQUIRE(link != nullptr);
  CHECK(gbps(link->bandwidth) == 240);
  CHECK(std::ranges::any_of(live.warnings(),
                            [](const std::string& w) { return w.find("nvml1 has no PCI device") != w.npos; }));
}

TEST_CASE("in a container the machine stays whole, and only allowed cores count") {
  if (!has_shared_folder()) return;
  const Snapshot snapshot("40intel64-pcilocality");
  const std::string group = "/torque/513099.master.cm.cluster";
  CHECK(contents_of(snapshot.root() / "proc/self/cpuset") == group + "\n");
  const std::filesystem::path folder = snapshot.root() / ("dev/cpuset" + group);
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "cpus") << "0-1,4\n";  // processor p is on package p % 4
  std::ofstream(folder / "mems") << "0-1\n";
  const Graph live = discover(snapshot);
  CHECK(count_of(live, NodeKind::kNuma) == 4);
  CHECK(count_of(live, NodeKind::kPackage) == 4);
  CHECK(count_of(live, NodeKind::kNic) == 4);
  CHECK(live.node(live.find("numa0")).facts.cores == 2);
  CHECK(live.node(live.find("numa1")).facts.cores == 1);
  CHECK(live.node(live.find("numa2")).facts.cores == 0);
}

TEST_CASE("this machine is found, soon, and without a word on stderr") {
  unsetenv("HWLOC_FSROOT");
  std::FILE* caught = std::tmpfile();
  REQUIRE(caught != nullptr);
  const int stderr_copy = dup(STDERR_FILENO);
  REQUIRE(dup2(fileno(caught), STDERR_FILENO) >= 0);
  const auto start = std::chrono::steady_clock::now();
  const auto graph = discover_live({.root = "", .with_nvml = false, .gpus = {}});
  const double milliseconds =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  dup2(stderr_copy, STDERR_FILENO);
  close(stderr_copy);
  CHECK(std::fseek(caught, 0, SEEK_END) == 0);
  CHECK(std::ftell(caught) == 0);
  std::fclose(caught);
  REQUIRE(graph.ok());
  std::cout << "discovery of this machine: " << milliseconds << " ms\n";
  CHECK(milliseconds < 5000);
  CHECK(count_of(graph.value(), NodeKind::kNuma) >= 1);
  // Cores that this process may use: at least one, and no more than the system has processors.
  const int cores = cores_of(graph.value(), NodeKind::kNuma);
  CHECK(cores >= 1);
  CHECK(cores <= sysconf(_SC_NPROCESSORS_CONF));
}
