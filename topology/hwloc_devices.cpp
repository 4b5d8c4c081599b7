// PCI devices of hwloc's tree in the machine graph.
//
// Ports alternate on the way down: a bridge below a host bridge is a root port, a bridge below a port is the upstream
// port of a switch, and the bridges below that are its downstream ports. The speed that hwloc notes at a root or
// downstream port is that of the link below it, at an upstream port or a device that of the link above.
#include "topology/bandwidths.h"
#include "topology/device_kinds.h"
#include "topology/hwloc_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <iterator>
#include <set>
#include <utility>

namespace tutti::topology {

using Kind = HwlocObject::Kind;
using OsKind = HwlocObject::OsKind;

namespace {

/// What of a device becomes one node.
struct Leaf {
  int object = kNone;       ///< the PCI device
  std::vector<int> os;      ///< its OS devices: "cuda0", "nvml0"
  int above = kNone;        ///< the node that it is joined to
  Bandwidth bandwidth = 0;  ///< 0: unknown
  int lanes = 0;
  LinkKind kind = LinkKind::kPci;
  bool is_gpu = false;
  int number = kNone;  ///< that CUDA or HIP, else NVML, gives it
  int numa = kNone;    ///< node
};

int number_at_the_end(const std::string& name) {
  const std::size_t first = name.find_last_not_of("0123456789") + 1;
  int number = kNone;
  std::from_chars(name.data() + first, name.data() + name.size(), number);
  return number;
}

/// The logical GPUs of a device: as many as its backend with the most OS devices shows.
std::vector<Leaf> logical_gpus(const HwlocGraph& graph, int device) {
  constexpr std::array<std::string_view, 5> kBackends = {"cuda", "rsmi", "nvml", "ze", "opencl"};
  std::vector<Leaf> gpus(1);
  for (const std::string_view backend : kBackends) {
    std::size_t which = 0;
    for (const int child : graph.object(device).children) {
      const HwlocObject& os = graph.object(child);
      if (os.kind != Kind::kOs || os.os_kind != OsKind::kGpu || !os.name.starts_with(backend)) continue;
      if (which == gpus.size() && backend != "opencl") gpus.emplace_back();
      if (which >= gpus.size()) break;
      gpus[which].os.push_back(child);
      if (gpus[which].number == kNone && backend != "opencl") gpus[which].number = number_at_the_end(os.name);
      ++which;
    }
  }
  for (Leaf& gpu : gpus) gpu.object = device;
  return gpus;
}

class Devices {
 public:
  Devices(HwlocGraph& graph, int machine) : graph_(graph), machine_(machine) {}

  void add() {
    const int last = graph_.end[static_cast<std::size_t>(machine_)];
    find_wanted(last);
    for (int i = machine_; i < last; ++i) {
      if (graph_.object(i).kind == Kind::kHostBridge && is_wanted(i)) place_host_bridge(i);
      const bool stray = graph_.object(i).kind == Kind::kPci && is_wanted(i) && !has_bridge_above(i);
      if (!stray) continue;
      numa_ = graph_.numa_near(graph_.parent_of(i), name_of_device(i));
      place_slot({i}, numa_, i);
    }
    place_gpus_without_pci(last);
    add_gpus();
    add_nics();
    warn_of_unknown_links();
    warn_of_idle_links();
  }

 private:
  bool is_wanted(int object) const { return wanted_[static_cast<std::size_t>(object - machine_)] != 0; }
  bool has_bridge_above(int object) const {
    const int parent = graph_.parent_of(object);
    return parent != kNone &&
           (graph_.object(parent).kind == Kind::kHostBridge || graph_.object(parent).kind == Kind::kBridge);
  }
  std::string name_of_device(int object) const {
    const HwlocObject& device = graph_.object(object);
    if (device.has_address) return text_of(device.address);
    return device.line > 0 ? fmt::format("the {} of line {}", device.type_text, device.line) : device.type_text;
  }

  /// Marks GPUs, NICs and every bridge that leads to one.
  void find_wanted(int last) {
    wanted_.assign(static_cast<std::size_t>(last - machine_), 0);
    int without_type = 0;
    for (int i = machine_; i < last; ++i) {
      const HwlocObject& object = graph_.object(i);
      if (object.kind == Kind::kPci && object.vendor == 0 && !is_nv_switch(object)) ++without_type;
      if (is_console_chip(object))
        graph_.builder.warn(fmt::format("{} is a console's graphics chip (1002:{:04x}): not counted as a GPU",
                                        name_of_device(i), object.device));
      if (is_old_infiniband(object))
        graph_.builder.warn(
            fmt::format("{} is an InfiniBand adapter of the old class 0c06: not counted as a NIC", name_of_device(i)));
      if (!is_gpu(graph_.tree, object) && !is_nic(object)) continue;
      for (int at = i; at != kNone && at >= machine_ && !is_wanted(at); at = graph_.parent_of(at))
        wanted_[static_cast<std::size_t>(at - machine_)] = 1;
    }
    if (without_type > 0)
      graph_.builder.warn(
          without_type == 1
              ? "1 PCI device has no pci_type: what it is is unknown, it is left out"
              : fmt::format("{} PCI devices have no pci_type: what they are is unknown, they are left out",
                            without_type));
  }

  std::vector<int> wanted_children(int object) const {
    std::vector<int> found;
    for (const int child : graph_.object(object).children) {
      if (is_wanted(child)) found.push_back(child);
    }
    return found;
  }
  /// Devices of one slot, which share a link, and single bridges; in order.
  std::vector<std::vector<int>> by_slot(const std::vector<int>& objects) const {
    std::vector<std::vector<int>> slots;
    for (const int object : objects) {
      const bool joins = !slots.empty() && shares_slot(slots.back()[0], object);
      if (joins) slots.back().push_back(object);
      if (!joins) slots.push_back({object});
    }
    return slots;
  }
  bool shares_slot(int a, int b) const {
    const HwlocObject& first = graph_.object(a);
    const HwlocObject& second = graph_.object(b);
    return first.kind == Kind::kPci && second.kind == Kind::kPci && first.has_address && second.has_address &&
           first.address.domain == second.address.domain && first.address.bus == second.address.bus &&
           first.address.device == second.address.device;
  }

  int add_pci(int object, int parent, std::string model) {
    Facts facts;
    if (graph_.object(object).has_address) facts.bus_id = text_of(graph_.object(object).address);
    facts.model = std::move(model);
    return graph_.builder.add_node(NodeKind::kPci, graph_.host, parent, "", std::move(facts));
  }
  Bandwidth known(Bandwidth link) {
    if (link > 0) return link;
    ++unknown_links_;
    return pci_bandwidth(0, "");
  }
  void join(int above, int node, Bandwidth link, int lanes, LinkKind kind = LinkKind::kPci) {
    graph_.builder.connect(above, node, kind, known(link), std::max(lanes, 1));
  }

  void place_host_bridge(int bridge) {
    numa_ = graph_.numa_near(graph_.parent_of(bridge),
                             fmt::format("the host bridge of {}", name_of_device(first_device_below(bridge))));
    const auto slots = by_slot(wanted_children(bridge));
    int above = numa_;
    if (slots.size() > 1) {
      above = add_pci(bridge, numa_, "host bridge");
      join(numa_, above, kDeviceBandwidth, 1);
    }
    place_all(slots, above);
  }
  int first_device_below(int bridge) const {
    while (graph_.object(bridge).kind != Kind::kPci) bridge = wanted_children(bridge)[0];
    return bridge;
  }
  /// What is below a host bridge, a switch or a bus.
  void place_all(const std::vector<std::vector<int>>& slots, int above) {
    for (const std::vector<int>& slot : slots) {
      if (graph_.object(slot[0]).kind == Kind::kBridge) {
        place_port(slot[0], above);
      } else {
        place_slot(slot, above, slot[0]);
      }
    }
  }
  /// A root port, or a downstream port of a switch.
  void place_port(int port, int above) {
    int bridges = 0;
    int others = 0;
    for (const int child : graph_.object(port).children) {
      bridges += graph_.object(child).kind == Kind::kBridge ? 1 : 0;
      others += graph_.object(child).kind == Kind::kPci ? 1 : 0;
    }
    const std::vector<int> below = wanted_children(port);
    if (bridges == 0) return place_slot(below, above, port);
    if (bridges == 1 && others == 0) return place_switch(below[0], above, port);
    // No PCI Express link has this at its end: a virtual machine's bridge, or a bus of old.
    const int bus = add_pci(port, above, "bridge");
    join(above, bus, graph_.object(port).link, graph_.object(port).lanes);
    place_all(by_slot(below), bus);
  }
  void place_switch(int upstream, int above, int port) {
    const HwlocObject& object = graph_.object(upstream);
    const int node = add_pci(upstream, above, fmt::format("switch {:04x}:{:04x}", object.vendor, object.device));
    const HwlocObject& speaker = slower(object, graph_.object(port));
    join(above, node, speaker.link, speaker.lanes);
    place_all(by_slot(wanted_children(upstream)), node);
  }
  /// The end of a link that limits it, of those that know a speed.
  static const HwlocObject& slower(const HwlocObject& a, const HwlocObject& b) {
    if (a.link == 0 || b.link == 0) return a.link > 0 ? a : b;
    return a.link <= b.link ? a : b;
  }
  /// Devices that share one link, the one of `port` or their own.
  void place_slot(const std::vector<int>& objects, int above, int port) {
    std::vector<Leaf> leaves;
    const HwlocObject* speaker = &graph_.object(port);
    for (const int object : objects) {
      speaker = &slower(graph_.object(object), *speaker);
      const bool gpu = is_gpu(graph_.tree, graph_.object(object));
      for (Leaf& leaf : gpu ? logical_gpus(graph_, object) : std::vector<Leaf>(1)) {
        leaf.object = object;
        leaf.is_gpu = gpu;
        leaf.numa = numa_;
        leaves.push_back(std::move(leaf));
      }
    }
    if (leaves.empty()) return;
    if (leaves.size() == 1) {
      leaves[0].above = above;
      leaves[0].bandwidth = speaker->link;
      leaves[0].lanes = speaker->lanes;
      leaves_.push_back(std::move(leaves[0]));
      return;
    }
    const int device = add_pci(objects[0], above, "device");
    join(above, device, speaker->link, speaker->lanes);
    for (Leaf& leaf : leaves) {
      leaf.above = device;
      leaf.bandwidth = kDeviceBandwidth;
      const bool one_of_many = leaf.is_gpu && std::ranges::count(leaves, leaf.object, &Leaf::object) > 1;
      if (one_of_many) graph_.node_of[static_cast<std::size_t>(leaf.object)] = device;
      const auto in_matrix = [&](int os) { return graph_.with_xgmi[static_cast<std::size_t>(os)] != 0; };
      if (one_of_many && std::ranges::any_of(leaf.os, in_matrix)) leaf.kind = LinkKind::kXgmi;
    }
    std::ranges::move(leaves, std::back_inserter(leaves_));
  }
  /// OS devices of GPUs whose PCI device the file leaves out.
  void place_gpus_without_pci(int last) {
    for (int i = machine_; i < last; ++i) {
      if (graph_.object(i).kind == Kind::kPci) continue;
      const auto names_gpu = [&](int child) {
        const HwlocObject& os = graph_.object(child);
        return os.os_kind == OsKind::kGpu && !os.name.starts_with("opencl");
      };
      if (std::ranges::none_of(graph_.object(i).children, names_gpu)) continue;
      for (Leaf& leaf : logical_gpus(graph_, i)) {
        const std::string& name = graph_.object(leaf.os[0]).name;
        graph_.builder.warn(fmt::format("{} has no PCI device: how it is linked is unknown", name));
        leaf.object = leaf.os[0];
        leaf.is_gpu = true;
        leaf.numa = leaf.above = graph_.numa_near(i, name);
        leaves_.push_back(std::move(leaf));
      }
    }
  }

  /// In the order of CUDA's or HIP's numbers, where each has its own, and named after them.
  void add_gpus() {
    std::vector<Leaf> gpus;
    std::set<int> numbers;
    for (const Leaf& leaf : leaves_) {
      if (!leaf.is_gpu) continue;
      gpus.push_back(leaf);
      if (leaf.number != kNone) numbers.insert(leaf.number);
    }
    const bool numbered = numbers.size() == gpus.size();
    if (numbered) std::ranges::sort(gpus, {}, &Leaf::number);
    for (const Leaf& gpu : gpus) {
      const int node =
          graph_.builder.add_node(NodeKind::kGpu, graph_.host, gpu.above,
                                  numbered ? fmt::format("{}gpu{}", graph_.prefix, gpu.number) : "", gpu_facts(gpu));
      for (const int os : gpu.os) graph_.node_of[static_cast<std::size_t>(os)] = node;
      int& of_device = graph_.node_of[static_cast<std::size_t>(gpu.object)];
      if (of_device == kNone) of_device = node;
      join(gpu.above, node, gpu.bandwidth, gpu.lanes, gpu.kind);
    }
  }
  Facts gpu_facts(const Leaf& gpu) const {
    const HwlocObject& device = graph_.object(gpu.object);
    Facts facts;
    if (device.has_address) facts.bus_id = text_of(device.address);
    facts.device = gpu.number;
    facts.numa = graph_.builder.so_far().node(gpu.numa).facts.numa;
    for (const int os : gpu.os) {
      const auto& infos = graph_.object(os).infos;
      if (const auto model = infos.find("GPUModel"); model != infos.end() && facts.model.empty())
        facts.model = model->second;
      facts.sm = std::max(facts.sm, graph_.object(os).sm);
    }
    if (facts.model.empty() && device.vendor != 0)
      facts.model = fmt::format("{:04x}:{:04x}", device.vendor, device.device);
    facts.gcn = amd_architecture(device);
    return facts;
  }
  void add_nics() {
    for (const Leaf& leaf : leaves_) {
      if (leaf.is_gpu) continue;
      const HwlocObject& device = graph_.object(leaf.object);
      Facts facts;
      if (device.has_address) facts.bus_id = text_of(device.address);
      facts.model = fmt::format("{:04x}:{:04x}", device.vendor, device.device);
      facts.numa = graph_.builder.so_far().node(leaf.numa).facts.numa;
      const Bandwidth rate = rate_of(device, facts.ports);
      const std::string name = nic_name(device);
      const int node = graph_.builder.add_node(NodeKind::kNic, graph_.host, leaf.above,
                                               name.empty() ? "" : graph_.prefix + name, std::move(facts));
      graph_.node_of[static_cast<std::size_t>(leaf.object)] = node;
      join(leaf.above, node, leaf.bandwidth, leaf.lanes);
      if (rate == 0) continue;
      if (graph_.network == kNone) graph_.network = graph_.builder.add_node(NodeKind::kNetwork, 0, kNone, "network");
      graph_.builder.connect(node, graph_.network, LinkKind::kNetwork, rate);
    }
  }
  /// InfiniBand's rate rather than the network interface's above it.
  Bandwidth rate_of(const HwlocObject& device, int& ports) const {
    Bandwidth rate = 0;
    for (const OsKind kind : {OsKind::kFabric, OsKind::kNetwork}) {
      for (const int child : device.children) {
        const HwlocObject& os = graph_.object(child);
        if (os.os_kind != kind) continue;
        ports = std::max(ports, os.ports);
        if (rate == 0) rate = os.rate;
      }
    }
    return rate;
  }
  /// "mlx5_0" rather than "eth0".
  std::string nic_name(const HwlocObject& device) const {
    std::string name;
    for (const OsKind kind : {OsKind::kFabric, OsKind::kNetwork}) {
      for (const int child : device.children) {
        const HwlocObject& os = graph_.object(child);
        if (name.empty() && os.os_kind == kind) name = os.name;
      }
    }
    constexpr std::size_t kNameMax = 64;
    const auto is_fine = [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-';
    };
    return name.size() <= kNameMax && std::ranges::all_of(name, is_fine) ? name : "";
  }
  /// hwloc notes a link's speed of the moment, and GPUs that do nothing slow theirs down.
  void warn_of_idle_links() {
    constexpr Bandwidth kSuspicious = 4 * kGigabyte;
    int slow = 0;
    const Leaf* first = nullptr;
    for (const Leaf& leaf : leaves_) {
      if (!leaf.is_gpu || leaf.bandwidth == 0 || leaf.bandwidth >= kSuspicious) continue;
      ++slow;
      if (first == nullptr) first = &leaf;
    }
    if (first != nullptr)
      graph_.builder.warn(fmt::format(
          "{} {} with a PCI link of {:.3g} GB/s: idle ones slow theirs down, so what {} under load may be more", slow,
          slow == 1 ? "GPU" : "GPUs", gbps(first->bandwidth), slow == 1 ? "it reaches" : "they reach"));
  }
  void warn_of_unknown_links() {
    if (unknown_links_ > 0)
      graph_.builder.warn(
          unknown_links_ == 1
              ? fmt::format("1 PCI link has no speed: it counts as 8 GT/s x16, {} GB/s", gbps(pci_bandwidth(0, "")))
              : fmt::format("{} PCI links have no speed: each counts as 8 GT/s x16, {} GB/s", unknown_links_,
                            gbps(pci_bandwidth(0, ""))));
  }

  HwlocGraph& graph_;
  int machine_;
  std::vector<char> wanted_;
  std::vector<Leaf> leaves_;
  int numa_ = kNone;  ///< the node of what is being placed
  int unknown_links_ = 0;
};

}  // namespace

void add_devices(HwlocGraph& graph, int machine) { Devices(graph, machine).add(); }

}  // namespace tutti::topology
