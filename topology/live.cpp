#include "topology/live.h"

#include "topology/bandwidths.h"
#include "topology/hwloc_tree.h"
#include "topology/hwloc_xml.h"
#include "topology/nvml_facts.h"
#include "topology/sysfs.h"

#include "base/config.h"

#include <fmt/format.h>
#include <hwloc.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>

namespace tutti::topology {

namespace {

using Kind = HwlocObject::Kind;
using OsKind = HwlocObject::OsKind;

struct Destroy {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};
using Topology = std::unique_ptr<hwloc_topology, Destroy>;

Result<Topology> load() {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return system_error("hwloc_topology_init");
  Topology topology(raw);
  // Objects that a cgroup forbids stay, so that devices keep their NUMA nodes; what is allowed is asked afterwards.
  hwloc_topology_set_flags(raw, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_ALL);
  // They wake drivers, bind to every core in turn, or ask X: slow, and nothing here needs them.
  for (const char* component : {"x86", "opencl", "cuda", "nvml", "levelzero", "gl"})
    hwloc_topology_set_components(raw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, component);
  if (hwloc_topology_load(raw) != 0) return system_error("hwloc_topology_load");
  return topology;
}

/// hwloc's objects in the shape that its XML has too.
class Importer {
 public:
  Importer(hwloc_topology_t topology, Sysfs sysfs, const std::vector<GpuFacts>& gpus)
      : topology_(topology), sysfs_(std::move(sysfs)), allowed_(hwloc_topology_get_allowed_cpuset(topology)) {
    for (const GpuFacts& gpu : gpus) facts_.try_emplace(gpu.bus_id, &gpu);
  }

  HwlocTree import() {
    add(hwloc_get_root_obj(topology_), kNone);
    add_gpus_without_pci();
    for (const auto& [name, kind] :
         {std::pair("NVLinkBandwidth", HwlocMatrix::Kind::kNvLink),
          std::pair("XGMIBandwidth", HwlocMatrix::Kind::kXgmi), std::pair("XGMIHops", HwlocMatrix::Kind::kXgmiHops)}) {
      add_distances(name, kind);
    }
    add_nvlinks();
    return std::move(tree_);
  }

 private:
  void add(hwloc_obj_t object, int parent) {
    if (object->type == HWLOC_OBJ_MISC) return;
    const int index = push(describe(object, parent));
    indexes_[object] = index;
    if (object->type == HWLOC_OBJ_PCI_DEVICE) {
      const auto facts = facts_.find(text_of(tree_.objects.back().address));
      if (facts != facts_.end()) add_driver_device(*facts->second, index);
    }
    for (hwloc_obj_t child = object->memory_first_child; child != nullptr; child = child->next_sibling)
      add(child, index);
    for (hwloc_obj_t child = object->first_child; child != nullptr; child = child->next_sibling) add(child, index);
    for (hwloc_obj_t child = object->io_first_child; child != nullptr; child = child->next_sibling) add(child, index);
  }
  int push(HwlocObject object) {
    const int index = static_cast<int>(tree_.objects.size());
    if (object.parent != kNone) tree_.objects[static_cast<std::size_t>(object.parent)].children.push_back(index);
    tree_.objects.push_back(std::move(object));
    return index;
  }

  HwlocObject describe(hwloc_obj_t object, int parent) {
    HwlocObject it;
    it.parent = parent;
    it.kind = kind_of(object);
    it.type_text = hwloc_obj_type_string(object->type);
    it.id = object->gp_index;
    if (object->os_index != HWLOC_UNKNOWN_INDEX) it.os_index = static_cast<int>(object->os_index);
    if (object->name != nullptr) it.name = object->name;
    if (object->subtype != nullptr) it.subtype = object->subtype;
    for (unsigned i = 0; i < object->infos_count; ++i)
      it.infos.try_emplace(object->infos[i].name, object->infos[i].value);
    if (it.kind == Kind::kNuma) describe_memory(object, it);
    if (it.kind == Kind::kCache) {
      it.bytes = object->attr->cache.size;
      it.cache_level = static_cast<int>(object->attr->cache.depth);
    }
    if (it.kind == Kind::kPu) it.allowed = hwloc_bitmap_isset(allowed_, object->os_index) != 0;
    if (it.kind == Kind::kPci) describe_pci(object->attr->pcidev, it);
    if (it.kind == Kind::kBridge) describe_pci(object->attr->bridge.upstream.pci, it);
    if (it.kind == Kind::kOs) describe_os_device(object, it);
    return it;
  }
  static Kind kind_of(hwloc_obj_t object) {
    switch (object->type) {
      case HWLOC_OBJ_MACHINE: return Kind::kMachine;
      case HWLOC_OBJ_PACKAGE: return Kind::kPackage;
      case HWLOC_OBJ_NUMANODE: return Kind::kNuma;
      case HWLOC_OBJ_CORE: return Kind::kCore;
      case HWLOC_OBJ_PU: return Kind::kPu;
      case HWLOC_OBJ_PCI_DEVICE: return Kind::kPci;
      case HWLOC_OBJ_OS_DEVICE: return Kind::kOs;
      case HWLOC_OBJ_BRIDGE:
        return object->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_HOST ? Kind::kHostBridge : Kind::kBridge;
      default: return hwloc_obj_type_is_dcache(object->type) != 0 ? Kind::kCache : Kind::kGroup;
    }
  }
  void describe_memory(hwloc_obj_t object, HwlocObject& it) {
    it.bytes = object->attr->numanode.local_memory;
    hwloc_location initiator{};
    initiator.type = HWLOC_LOCATION_TYPE_CPUSET;
    initiator.location.cpuset = object->cpuset;
    hwloc_uint64_t mebibytes = 0;
    constexpr hwloc_uint64_t kMebibytesMax = 1'000'000'000;
    if (hwloc_memattr_get_value(topology_, HWLOC_MEMATTR_ID_BANDWIDTH, object, &initiator, 0, &mebibytes) == 0)
      it.memory = static_cast<Bandwidth>(std::min(mebibytes, kMebibytesMax)) * 1'048'576 / 1000;
  }
  /// sysfs knows the best speed of a link; hwloc the one of the moment.
  void describe_pci(const hwloc_obj_attr_u::hwloc_pcidev_attr_s& pci, HwlocObject& it) {
    it.address = {pci.domain, pci.bus, pci.dev, pci.func};
    it.has_address = true;
    it.pci_class = pci.class_id;
    it.vendor = pci.vendor_id;
    it.device = pci.device_id;
    const Sysfs::PciLink link = sysfs_.pci_link(text_of(it.address));
    it.link = link.bandwidth > 0 ? link.bandwidth : from_gbps(static_cast<double>(pci.linkspeed));
    it.lanes = link.lanes;
  }
  void describe_os_device(hwloc_obj_t object, HwlocObject& it) {
    const auto type = object->attr->osdev.type;
    if (type == HWLOC_OBJ_OSDEV_OPENFABRICS) {
      it.os_kind = OsKind::kFabric;
      const Sysfs::Rate rate = sysfs_.fabric_rate(it.name);
      it.rate = rate.bandwidth;
      it.ports = rate.ports;
    } else if (type == HWLOC_OBJ_OSDEV_NETWORK) {
      it.os_kind = OsKind::kNetwork;
      it.rate = sysfs_.network_rate(it.name).bandwidth;
      it.ports = 1;
    }
    if (names_gpu(it.name)) it.os_kind = OsKind::kGpu;
  }
  /// A GPU's facts become an OS device of its own, as hwloc's backends would add it.
  void add_driver_device(const GpuFacts& facts, int parent) {
    HwlocObject it;
    it.kind = Kind::kOs;
    it.os_kind = OsKind::kGpu;
    it.parent = parent;
    it.type_text = "OSDev";
    it.name = fmt::format("nvml{}", facts.device);
    if (!facts.name.empty()) it.infos["GPUModel"] = facts.name;
    it.sm = facts.sm;
    if (const auto address = parse_pci_address(facts.bus_id)) {
      it.address = *address;
      it.has_address = true;
    }
    drivers_[facts.bus_id] = push(std::move(it));
  }
  /// Containers may hide the PCI tree from those to whom the driver shows GPUs.
  void add_gpus_without_pci() {
    for (const auto& [bus_id, facts] : facts_) {
      if (drivers_.count(bus_id) == 0) add_driver_device(*facts, 0);
    }
  }

  void add_distances(const char* name, HwlocMatrix::Kind kind) {
    unsigned count = 1;
    hwloc_distances_s* distances = nullptr;
    if (hwloc_distances_get_by_name(topology_, name, &count, &distances, 0) != 0 || count == 0) return;
    HwlocMatrix matrix;
    matrix.kind = kind;
    for (unsigned i = 0; i < distances->nbobjs; ++i) {
      const auto found = indexes_.find(distances->objs[i]);
      if (found != indexes_.end()) matrix.objects.push_back(found->second);
    }
    const std::size_t cells = std::size_t{distances->nbobjs} * distances->nbobjs;
    matrix.values.assign(distances->values, distances->values + cells);
    if (matrix.objects.size() == distances->nbobjs) tree_.matrices.push_back(std::move(matrix));
    hwloc_distances_release(topology_, distances);
  }

  /// NVLinks that the driver knows, as a matrix. The switches are one object, which PCI need not show.
  void add_nvlinks() {
    std::map<std::pair<int, int>, std::uint64_t> megabytes;
    HwlocMatrix matrix;
    matrix.kind = HwlocMatrix::Kind::kNvLink;
    int nv_switch = kNone;
    for (const auto& [bus_id, object] : drivers_) {
      const GpuFacts& gpu = *facts_.at(bus_id);
      matrix.megabytes_per_link = static_cast<std::uint64_t>(nvlink_bandwidth(gpu.sm)) / 1000;
      for (const GpuPeer& peer : gpu.peers) {
        if (peer.kind == GpuPeer::Kind::kSwitch && nv_switch == kNone) nv_switch = add_nv_switch();
        const int end = peer.kind == GpuPeer::Kind::kSwitch ? nv_switch
                        : peer.kind == GpuPeer::Kind::kCpu  ? package_of(object)
                                                            : driver_device(peer.bus_id);
        if (end == kNone) continue;
        const std::uint64_t bandwidth = matrix.megabytes_per_link * static_cast<std::uint64_t>(peer.nvlinks);
        megabytes[{object, end}] = bandwidth;
        // What has no facts of its own answers alike.
        if (peer.kind != GpuPeer::Kind::kGpu) megabytes[{end, object}] = bandwidth;
      }
    }
    if (megabytes.empty()) return;
    std::map<int, std::size_t> rows;
    for (const auto& [pair, bandwidth] : megabytes) rows.try_emplace(pair.first, 0);
    for (auto& [object, row] : rows) {
      row = matrix.objects.size();
      matrix.objects.push_back(object);
    }
    matrix.values.assign(rows.size() * rows.size(), 0);
    for (const auto& [pair, bandwidth] : megabytes) {
      const auto column = rows.find(pair.second);
      if (column != rows.end()) matrix.values[rows[pair.first] * rows.size() + column->second] = bandwidth;
    }
    tree_.matrices.push_back(std::move(matrix));
  }
  int driver_device(const std::string& bus_id) const {
    const auto found = drivers_.find(bus_id);
    return found == drivers_.end() ? kNone : found->second;
  }
  int package_of(int object) const {
    while (object != kNone && tree_.objects[static_cast<std::size_t>(object)].kind != Kind::kPackage)
      object = tree_.objects[static_cast<std::size_t>(object)].parent;
    return object;
  }
  int add_nv_switch() {
    HwlocObject it;
    it.kind = Kind::kPci;
    it.type_text = "PCIDev";
    it.subtype = "NVSwitch";
    it.parent = 0;  // the machine, whose last object it is
    return push(std::move(it));
  }

  hwloc_topology_t topology_;
  Sysfs sysfs_;
  hwloc_const_cpuset_t allowed_;
  HwlocTree tree_;
  std::map<std::string, const GpuFacts*> facts_;
  std::map<std::string, int> drivers_;  ///< bus id: the OS device of a GPU with facts
  std::unordered_map<hwloc_obj_t, int> indexes_;
};

}  // namespace

LiveOptions live_options() {
  LiveOptions options;
  options.root = config().hwloc_root;
  options.with_nvml = options.root.empty();
  return options;
}

Result<Graph> discover_live(const LiveOptions& options) {
  std::vector<GpuFacts> gpus = options.gpus;
  if (options.with_nvml) {
    for (GpuFacts& gpu : read_nvml().gpus) gpus.push_back(std::move(gpu));
  }
  TUTTI_TRY_ASSIGN(const Topology topology, load());
  return graph_of(Importer(topology.get(), Sysfs(options.root), gpus).import());
}

}  // namespace tutti::topology
