#include "topology/hwloc_tree.h"

#include "topology/bandwidths.h"
#include "topology/hwloc_graph.h"
#include "topology/text_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace tutti::topology {

using Kind = HwlocObject::Kind;

std::optional<PciAddress> parse_pci_address(std::string_view text) {
  constexpr std::size_t kLengthMax = 20;
  if (text.size() > kLengthMax || text.find_first_not_of("0123456789abcdefABCDEF:.") != std::string_view::npos)
    return std::nullopt;
  const std::string copy(text);
  PciAddress address;
  int used = 0;
  if (std::sscanf(copy.c_str(), "%x:%x:%x.%x%n", &address.domain, &address.bus, &address.device, &address.function,
                  &used) != 4) {
    address.domain = 0;
    if (std::sscanf(copy.c_str(), "%x:%x.%x%n", &address.bus, &address.device, &address.function, &used) != 3)
      return std::nullopt;
  }
  if (static_cast<std::size_t>(used) != copy.size() || address.bus > 0xff || address.device > 0x1f) return std::nullopt;
  return address;
}

std::string text_of(const PciAddress& address) {
  return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", address.domain, address.bus, address.device, address.function);
}

int HwlocGraph::ancestor(int index, Kind kind) const {
  while (index != kNone && object(index).kind != kind) index = parent_of(index);
  return index;
}

int HwlocGraph::numa_near(int index, const std::string& what) {
  if (only_numa != kNone) return only_numa;
  const auto has_cores = [&](int numa) { return cores[static_cast<std::size_t>(numa)] > 0; };
  if (const int numa = numa_of_object(index); numa != kNone && has_cores(numa)) return node_of_object(numa);
  const int machine = ancestor(index, Kind::kMachine);
  // Below a node that covers several NUMA nodes: the first with cores there, else the first with cores anywhere.
  for (const int below : {index, machine}) {
    const auto first = std::ranges::lower_bound(numas_with_cores, below);
    const auto last = std::ranges::lower_bound(numas_with_cores, end[static_cast<std::size_t>(below)]);
    if (first == last) continue;
    const int node = node_of_object(*first);
    if (last - first > 1)
      builder.warn(fmt::format("{} is near {} NUMA nodes: it is put beside the first, {}", what, last - first,
                               builder.so_far().node(node).name));
    return node;
  }
  return any_numa;
}

namespace {

void index_tree(HwlocGraph& graph) {
  const int count = static_cast<int>(graph.tree.objects.size());
  graph.end.resize(graph.tree.objects.size());
  graph.numa_of.assign(graph.tree.objects.size(), kNone);
  graph.node_of.assign(graph.tree.objects.size(), kNone);
  graph.cores.assign(graph.tree.objects.size(), 0);
  graph.with_xgmi.assign(graph.tree.objects.size(), 0);
  for (int i = count - 1; i >= 0; --i) {
    int& end = graph.end[static_cast<std::size_t>(i)];
    end = std::max(end, i + 1);
    if (const int parent = graph.parent_of(i); parent != kNone) {
      int& outer = graph.end[static_cast<std::size_t>(parent)];
      outer = std::max(outer, end);
    }
  }
  for (int i = 0; i < count; ++i) {
    int& numa = graph.numa_of[static_cast<std::size_t>(i)];
    numa = graph.numa_of_object(graph.parent_of(i));
    if (graph.object(i).kind == Kind::kNuma && !graph.tree.memory_children) numa = i;
    if (!graph.tree.memory_children) continue;
    // The first memory child is the one that cores use by default; hwloc puts memory-side caches above it.
    int at = i;
    for (bool deeper = true; deeper;) {
      deeper = false;
      for (const int child : graph.object(at).children) {
        if (graph.object(child).kind == Kind::kNuma) {
          numa = child;
          break;
        }
        if (graph.object(child).type_text != "MemCache") continue;
        at = child;
        deeper = true;
        break;
      }
    }
  }
  for (const HwlocMatrix& matrix : graph.tree.matrices) {
    if (matrix.kind == HwlocMatrix::Kind::kNvLink) continue;
    for (const int object : matrix.objects) graph.with_xgmi[static_cast<std::size_t>(object)] = 1;
  }
}

/// From the package's own words, or the machine's.
Processor processor_of(const HwlocGraph& graph, int package, int machine) {
  const auto info = [&](const char* key) -> std::string {
    for (const int from : {package, machine}) {
      if (from == kNone) continue;
      const auto& infos = graph.object(from).infos;
      if (const auto found = infos.find(key); found != infos.end() && !found->second.empty()) return found->second;
    }
    return "";
  };
  Processor processor;
  const std::string model = info("CPUModel");
  processor.arch = info("Architecture");
  if (processor.arch == "aarch64") processor.arch = "arm64";
  if (processor.arch.starts_with("ppc64") || model.starts_with("POWER")) processor.arch = "ppc64";
  processor.vendor = info("CPUVendor");
  if (processor.vendor.empty() && model.find("Intel") != std::string::npos) processor.vendor = "GenuineIntel";
  if (processor.vendor.empty() && model.find("AMD") != std::string::npos) processor.vendor = "AuthenticAMD";
  processor.family = number_in(info("CPUFamilyNumber"));
  processor.model = number_in(info("CPUModelNumber"));
  return processor;
}

/// The cores that this process may use; threads where no cores are known.
class CoreCounts {
 public:
  CoreCounts(const HwlocGraph& graph, int machine)
      : first_(machine), before_(static_cast<std::size_t>(graph.end[static_cast<std::size_t>(machine)] - machine) + 1) {
    const int last = graph.end[static_cast<std::size_t>(machine)];
    bool has_cores = false;
    for (int i = machine; i < last; ++i) has_cores = has_cores || graph.object(i).kind == Kind::kCore;
    for (int i = machine; i < last; ++i) {
      const bool counts = graph.object(i).kind == (has_cores ? Kind::kCore : Kind::kPu) && usable(graph, i);
      before_[at(i + 1)] = before_[at(i)] + (counts ? 1 : 0);
    }
  }
  int within(const HwlocGraph& graph, int object) const {
    return before_[at(graph.end[static_cast<std::size_t>(object)])] - before_[at(object)];
  }
  bool is_one(int object) const { return before_[at(object + 1)] > before_[at(object)]; }

 private:
  std::size_t at(int object) const { return static_cast<std::size_t>(object - first_); }
  /// One of its threads is allowed, or nothing is known of its threads.
  static bool usable(const HwlocGraph& graph, int core) {
    bool has_threads = false;
    for (int i = core; i < graph.end[static_cast<std::size_t>(core)]; ++i) {
      if (graph.object(i).kind != Kind::kPu) continue;
      if (graph.object(i).allowed) return true;
      has_threads = true;
    }
    return !has_threads;
  }

  int first_;
  std::vector<int> before_;  ///< among the machine's objects before each
};

Facts numa_facts(const HwlocGraph& graph, int numa, int package, int machine) {
  Facts facts;
  facts.numa = graph.object(numa).os_index;
  facts.bytes = graph.object(numa).bytes;
  facts.memory = graph.object(numa).memory;
  facts.cores = graph.cores[static_cast<std::size_t>(numa)];
  facts.model = to_text(processor_of(graph, package, machine));
  return facts;
}

/// Packages and NUMA nodes of a machine, and which is drawn in which.
class Processors {
 public:
  Processors(HwlocGraph& graph, int machine, const CoreCounts& counts)
      : graph_(graph), machine_(machine), counts_(counts) {
    for (int i = machine; i < graph.end[static_cast<std::size_t>(machine)]; ++i) {
      if (graph.object(i).kind == Kind::kNuma) numas_.push_back(i);
      if (graph.object(i).kind != Kind::kPackage) continue;
      packages_.push_back(i);
      if (const int numa = graph.numa_of_object(i); numa != kNone) beside_[numa].push_back(i);
    }
  }

  void add() {
    for (const int package : packages_) {
      if (!is_inside_numa(package)) add_package(package, kNone);
    }
    if (numas_.empty()) add_only_numa();
    for (const int numa : numas_) add_numa(numa);
    for (const int package : packages_) {
      if (is_inside_numa(package)) add_package(package, graph_.node_of_object(graph_.numa_of_object(package)));
    }
  }

  /// As NCCL has it: every pair of NUMA nodes with cores.
  void join() {
    std::vector<int> nodes;
    Bandwidth bandwidth = 0;
    for (const int numa : numas_) {
      if (graph_.cores[static_cast<std::size_t>(numa)] == 0) continue;
      nodes.push_back(graph_.node_of_object(numa));
      bandwidth = cpu_bandwidth(processor_of(graph_, around(numa), machine_));
    }
    if (nodes.size() > kMeshMax) {
      graph_.builder.warn(fmt::format("{} NUMA nodes: the links between them are left out", nodes.size()));
      return;
    }
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) graph_.builder.connect(nodes[j], nodes[i], LinkKind::kCpu, bandwidth);
    }
  }

 private:
  static constexpr std::size_t kMeshMax = 512;

  /// Several packages share it: x86's own account of a machine, or one NUMA node for all by choice of the firmware.
  bool is_inside_numa(int package) const {
    const auto found = beside_.find(graph_.numa_of_object(package));
    return found != beside_.end() && found->second.size() > 1;
  }
  /// The package object that a NUMA node is drawn in, or kNone.
  int around(int numa) const {
    const int package = graph_.ancestor(numa, Kind::kPackage);
    if (package != kNone) return package;
    const auto found = beside_.find(numa);
    return found != beside_.end() && found->second.size() == 1 ? found->second[0] : kNone;
  }
  void add_package(int package, int parent) {
    Facts facts;
    facts.cores = counts_.within(graph_, package);
    facts.model = to_text(processor_of(graph_, package, machine_));
    graph_.node_of[static_cast<std::size_t>(package)] =
        graph_.builder.add_node(NodeKind::kPackage, graph_.host, parent, "", std::move(facts));
  }
  void add_numa(int numa) {
    const int number = graph_.object(numa).os_index;
    int package = around(numa);
    if (package == kNone && !packages_.empty()) package = packages_[0];  // for its model only
    graph_.node_of[static_cast<std::size_t>(numa)] =
        graph_.builder.add_node(NodeKind::kNuma, graph_.host, graph_.node_of_object(around(numa)),
                                number == kNone ? "" : fmt::format("{}numa{}", graph_.prefix, number),
                                numa_facts(graph_, numa, package, machine_));
  }
  /// Format 1 writes no NUMA node for a machine that has but one.
  void add_only_numa() {
    Facts facts;
    facts.numa = 0;
    facts.bytes = graph_.object(machine_).bytes;
    facts.cores = counts_.within(graph_, machine_);
    const int package = packages_.empty() ? kNone : packages_[0];
    facts.model = to_text(processor_of(graph_, package, machine_));
    const int parent = packages_.size() == 1 ? graph_.node_of_object(package) : kNone;
    graph_.only_numa =
        graph_.builder.add_node(NodeKind::kNuma, graph_.host, parent, graph_.prefix + "numa0", std::move(facts));
  }

  HwlocGraph& graph_;
  int machine_;
  const CoreCounts& counts_;
  std::vector<int> packages_;
  std::vector<int> numas_;
  std::map<int, std::vector<int>> beside_;  ///< NUMA object: packages that have it as their one NUMA node
};

/// The topmost cache on each way down.
void add_caches(HwlocGraph& graph, int machine, const CoreCounts& counts) {
  for (int i = machine; i < graph.end[static_cast<std::size_t>(machine)]; ++i) {
    const HwlocObject& cache = graph.object(i);
    if (cache.kind != Kind::kCache || graph.ancestor(cache.parent, Kind::kCache) != kNone) continue;
    const int numa = graph.numa_of_object(i);
    const int numa_node = numa != kNone ? graph.node_of_object(numa) : graph.only_numa;
    const int package_node = graph.node_of_object(graph.ancestor(i, Kind::kPackage));
    const bool in_package =
        package_node != kNone && (numa_node == kNone || graph.builder.so_far().node(package_node).parent == numa_node);
    const int parent = in_package ? package_node : numa_node;
    Facts facts;
    facts.cores = counts.within(graph, i);
    facts.bytes = cache.bytes;
    if (numa != kNone) facts.numa = graph.object(numa).os_index;
    facts.model = fmt::format("L{}", cache.cache_level);
    graph.node_of[static_cast<std::size_t>(i)] =
        graph.builder.add_node(NodeKind::kCache, graph.host, parent, "", std::move(facts));
  }
}

/// For numa_near().
void note_numas(HwlocGraph& graph, int machine) {
  graph.numas_with_cores.clear();
  graph.any_numa = graph.only_numa;
  for (int i = machine; i < graph.end[static_cast<std::size_t>(machine)]; ++i) {
    if (graph.object(i).kind != Kind::kNuma) continue;
    if (graph.any_numa == kNone) graph.any_numa = graph.node_of_object(i);
    if (graph.cores[static_cast<std::size_t>(i)] > 0) graph.numas_with_cores.push_back(i);
  }
}

void add_machine(HwlocGraph& graph, int machine) {
  const auto& infos = graph.object(machine).infos;
  const auto name = infos.find("HostName");
  graph.host = graph.builder.add_host(
      name != infos.end() ? name->second : fmt::format("host{}", graph.builder.so_far().hosts().size()));
  graph.prefix = graph.host == 0 ? "" : fmt::format("h{}.", graph.host);
  graph.only_numa = kNone;
  graph.nv_switch = kNone;
  const CoreCounts counts(graph, machine);
  for (int i = machine; i < graph.end[static_cast<std::size_t>(machine)]; ++i) {
    const int numa = graph.numa_of_object(i);
    if (numa != kNone && counts.is_one(i)) ++graph.cores[static_cast<std::size_t>(numa)];
  }
  Processors processors(graph, machine, counts);
  processors.add();
  note_numas(graph, machine);
  add_caches(graph, machine, counts);
  processors.join();
  add_devices(graph, machine);
  add_matrices(graph, machine);
}

}  // namespace

Result<Graph> graph_of(const HwlocTree& tree) {
  HwlocGraph graph(tree);
  for (const std::string& warning : tree.warnings) graph.builder.warn(warning);
  index_tree(graph);
  bool has_machine = false;
  for (std::size_t i = 0; i < tree.objects.size(); ++i) {
    if (tree.objects[i].kind != Kind::kMachine) continue;
    has_machine = true;
    add_machine(graph, static_cast<int>(i));
    i = static_cast<std::size_t>(graph.end[i]) - 1;
  }
  if (!has_machine) return error(Code::kInvalidArgument, "hwloc: there is no object of type Machine");
  return std::move(graph.builder).finish();
}

}  // namespace tutti::topology
