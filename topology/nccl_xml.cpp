#include "topology/nccl_xml.h"

#include "topology/nccl_elements.h"
#include "topology/text_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <set>

namespace tutti::topology {

namespace {

constexpr int kCpusMax = 1024;
constexpr int kPciLanesMax = 64;
/// Mb/s of a NIC beyond which the figure is surely another unit: the fastest have 800000.
constexpr int kNicSpeedPlausible = 3'200'000;

/// What a node is put in: its parent, and what links and facts of it depend on.
struct Place {
  int host = 0;
  int numa = kNone;    ///< the node of the <cpu>
  int parent = kNone;  ///< the node that is the other end of its link
  int device = kNone;  ///< the PCI device that it shares with others
};

bool has_links(const pugi::xml_node& gpu) { return gpu.child("nvlink") || gpu.child("xgmi") || gpu.child("c2c"); }

bool is_gpu_element(const pugi::xml_node& element) {
  const std::string_view name = element.name();
  return name == "gpu" || name == "apu";
}

bool is_gpu_class(std::string_view pci_class) { return pci_class.starts_with("0x03") || pci_class.starts_with("0x12"); }
bool is_nic_class(std::string_view pci_class) { return pci_class.starts_with("0x02"); }

/// The graphics chips that management controllers have: ASPEED, Matrox.
bool is_management_graphics(std::string_view vendor) { return vendor == "0x1a03" || vendor == "0x102b"; }

/// Not a port that NCCL merged into another NIC.
bool is_net(const pugi::xml_node& net) { return std::string_view(net.attribute("net").value()) != "0"; }

std::string node_name(std::string_view text) {
  constexpr std::size_t kLongest = 64;
  std::string name(text.substr(0, kLongest));
  std::ranges::replace_if(
      name, [](unsigned char c) { return std::isalnum(c) == 0 && c != '_' && c != '.' && c != ':' && c != '-'; }, '-');
  return name;
}

class NcclReader {
 public:
  explicit NcclReader(const XmlDocument& xml) : xml_(xml) {}
  Result<Graph> read();

 private:
  void look_for_gpus();
  Status read_cpu(const pugi::xml_node& cpu);
  Status read_excerpt(const pugi::xml_node& element);
  Status read_loose_gpu(const pugi::xml_node& gpu);
  Status read_pci(const pugi::xml_node& pci, const Place& place);
  Status read_device(const pugi::xml_node& pci, const Place& place, const Link& link, Facts facts);
  int add_device(NodeKind kind, const Place& place, const Link& link, const std::string& name, Facts facts);
  Status add_gpu(const pugi::xml_node& gpu, const Place& place, const Link& link, Facts facts);
  Status read_nic(const pugi::xml_node& nic, const Place& place, const Link& link, const Facts& facts);
  void add_nic(const pugi::xml_node& net, const Place& place, const Link& link, Facts facts);
  Bandwidth nic_bandwidth(const pugi::xml_node& net, Bandwidth pci);
  Link pci_link(const pugi::xml_node& pci);
  bool is_repeated(const pugi::xml_node& pci, const std::string& bus_id, int host);
  void add_to_network(int nic, Bandwidth bandwidth, int latency_ns);
  int host_of(const pugi::xml_node& cpu);
  int assumed_root();
  void join_cpus();
  Status check_gpus();
  std::string prefix(int host) const { return host == 0 ? "" : fmt::format("h{}.", host); }

  const XmlDocument& xml_;
  GraphBuilder builder_;
  RepeatedWarnings warnings_;
  bool has_gpu_elements_ = false;
  bool host_memory_ = false;  ///< some <cpu> says its cores, as Tutti writes: the machine may have no GPU
  int unclassed_ = 0;         ///< PCI devices without class, where the class is what tells GPUs
  int network_ = kNone;
  int assumed_root_ = kNone;
  std::map<std::string, int> hosts_;                               ///< by host_hash
  std::vector<std::vector<std::pair<int, Processor>>> cpus_;       ///< of each host
  std::map<std::pair<std::string, int>, pugi::xml_node> bus_ids_;  ///< the first element with it, by host
  std::vector<GpuElement> gpus_;
  GpusByBus gpus_by_bus_;
  std::set<std::string> loose_nics_;
  std::set<int> linked_devices_;  ///< of several GPUs each, whose links are in gpus_
};

Result<Graph> NcclReader::read() {
  for (const std::string& warning : xml_.warnings()) builder_.warn(warning);
  const std::string_view version = xml_.root().attribute("version").value();
  if (!version.empty() && version != "1" && version != "2")
    builder_.warn(fmt::format("{}: version {} is read as 1", xml_.place_of(xml_.root()), version));
  look_for_gpus();
  for (const pugi::xml_node& child : xml_.root().children()) {
    if (std::string_view(child.name()) == "cpu") {
      TUTTI_TRY(read_cpu(child));
    } else if (child.type() == pugi::node_element) {
      TUTTI_TRY(read_excerpt(child));
    }
  }
  if (builder_.so_far().hosts().empty()) builder_.add_host("host");
  TUTTI_TRY(check_gpus());
  join_cpus();
  TUTTI_TRY(add_gpu_links(xml_, gpus_, gpus_by_bus_, builder_, warnings_));
  warnings_.move_to(builder_);
  return std::move(builder_).finish();
}

void NcclReader::look_for_gpus() {
  const pugi::xml_node gpu = xml_.root().find_node(is_gpu_element);
  host_memory_ = !xml_.root().find_node([](const pugi::xml_node& node) { return node.attribute("cores"); }).empty();
  has_gpu_elements_ = !gpu.empty() || host_memory_;
  if (!has_gpu_elements_) {
    builder_.warn(
        "there is no <gpu>: PCI devices of class 0x03 and 0x12 are taken for GPUs. Their NVLinks are not in the "
        "file, so figures are those of PCI alone and can be far below the machine's");
  } else if (std::string_view(gpu.name()) == "apu") {
    builder_.warn(fmt::format("{}: <apu> is no element of NCCL's; taken for <gpu>", xml_.place_of(gpu)));
  }
}

/// A machine without GPUs has NUMA nodes that compute, if nothing in it may be a GPU.
Status NcclReader::check_gpus() {
  if (!builder_.so_far().nodes_of(NodeKind::kGpu).empty() || host_memory_) return {};
  if (unclassed_ == 0 && !builder_.so_far().nodes_of(NodeKind::kNuma).empty()) {
    builder_.warn("no PCI device is a GPU either: the ranks are the NUMA nodes, one for each <cpu>");
    return {};
  }
  std::string why = "no <gpu>, and no PCI device of class 0x03 (display) or 0x12 (accelerator)";
  if (unclassed_ > 0) why += fmt::format("; {} PCI devices say no class, so nothing tells which are GPUs", unclassed_);
  return error(Code::kInvalidArgument,
               fmt::format("NCCL topology: {}: {}. Write the file on the machine with NCCL_TOPO_DUMP_FILE",
                           xml_.place_of(xml_.root()), why));
}

int NcclReader::host_of(const pugi::xml_node& cpu) {
  const std::string hash = node_name(cpu.attribute("host_hash").value());
  const auto [found, is_new] = hosts_.try_emplace(hash, 0);
  if (is_new) found->second = builder_.add_host(hash.empty() ? "host" : hash);
  return found->second;
}

Status NcclReader::read_cpu(const pugi::xml_node& cpu) {
  const int host = host_of(cpu);
  cpus_.resize(builder_.so_far().hosts().size());
  std::vector<std::pair<int, Processor>>& cpus = cpus_[static_cast<std::size_t>(host)];
  if (cpus.size() >= static_cast<std::size_t>(kCpusMax))
    return error(Code::kInvalidArgument,
                 fmt::format("{}: more than {} <cpu> in one host", xml_.place_of(cpu), kCpusMax));
  const Processor processor = {.arch = cpu.attribute("arch").value(),
                               .vendor = cpu.attribute("vendor").value(),
                               .family = number_of(cpu, "familyid").value_or(kNone),
                               .model = number_of(cpu, "modelid").value_or(kNone)};
  Facts facts;
  facts.model = to_text(processor);
  facts.numa = number_of(cpu, "numaid").value_or(kNone);
  facts.cores = std::max(0, number_of(cpu, "cores").value_or(0));
  facts.memory = own_bandwidth(xml_, cpu, warnings_, "memory_gbps").value_or(0);
  if (facts.numa == kNone) warnings_.add("there is no numaid", xml_.place_of(cpu));
  const int numa = builder_.add_node(NodeKind::kNuma, host, kNone,
                                     facts.numa < 0 ? "" : fmt::format("{}numa{}", prefix(host), facts.numa), facts);
  cpus.emplace_back(numa, processor);
  const Place place = {host, numa, numa};
  for (const pugi::xml_node& child : cpu.children()) {
    const std::string_view name = child.name();
    if (name == "pci") {
      TUTTI_TRY(read_pci(child, place));
    } else if (name == "nic") {
      TUTTI_TRY(read_nic(child, place, {.count = 1, .bandwidth = kDeviceBandwidth}, {}));
    } else if (child.type() == pugi::node_element) {
      warnings_.add(fmt::format("<{}> in <cpu> is not known and left out", name), xml_.place_of(child));
    }
  }
  return {};
}

/// What stands at the top without a <cpu> around it.
Status NcclReader::read_excerpt(const pugi::xml_node& element) {
  const std::string_view name = element.name();
  if (name != "pci" && name != "nic" && !is_gpu_element(element)) {
    warnings_.add(fmt::format("<{}> is not known and left out", name), xml_.place_of(element));
    return {};
  }
  const int root = assumed_root();
  const Place place = {builder_.so_far().node(root).host, kNone, root};
  if (name == "pci") {
    warnings_.add("the device is in no <cpu>", xml_.place_of(element));
    return read_pci(element, place);
  }
  if (name == "nic") return read_nic(element, place, {.count = 1, .bandwidth = kDeviceBandwidth}, {});
  return read_loose_gpu(element);
}

int NcclReader::assumed_root() {
  if (builder_.so_far().hosts().empty()) builder_.add_host("host");
  if (assumed_root_ == kNone) assumed_root_ = builder_.add_node(NodeKind::kPci, 0, kNone, "root");
  return assumed_root_;
}

/// FlagCX: <gpu dev="0" net="mlx5_0"/> at the top.
Status NcclReader::read_loose_gpu(const pugi::xml_node& gpu) {
  warnings_.add("the GPU is in no <pci>: nothing says how it is joined to others, and PCI of 8 GT/s x16 is assumed",
                xml_.place_of(gpu));
  const Place place = {0, kNone, assumed_root()};
  const Link link = {.count = 16, .bandwidth = pci_bandwidth(0, "")};
  const std::string net = node_name(gpu.attribute("net").value());
  if (!net.empty() && loose_nics_.insert(net).second)
    add_to_network(add_device(NodeKind::kNic, place, link, net, {}), link.bandwidth, 0);
  return add_gpu(gpu, place, link, {});
}

Link NcclReader::pci_link(const pugi::xml_node& pci) {
  const std::string_view speed = pci.attribute("link_speed").value();
  const auto own = own_bandwidth(xml_, pci, warnings_);
  if (!knows_pci_speed(speed) && !own)
    warnings_.add(fmt::format("link_speed \"{}\" is not known; counted as 8 GT/s", speed.substr(0, 32)),
                  xml_.place_of(pci));
  const std::string_view width = pci.attribute("link_width").value();
  int lanes = width.empty() ? 0 : number_of(pci, "link_width").value_or(kNone);
  if (lanes < 0 || lanes > kPciLanesMax) {
    warnings_.add(fmt::format("link_width {} cannot be; counted as 16", width.substr(0, 32)), xml_.place_of(pci));
    lanes = 0;
  }
  return {.count = lanes > 0 ? lanes : 16, .bandwidth = own.value_or(pci_bandwidth(lanes, speed))};
}

/// Notes the bus id, and whether the element is the same GPU a second time.
bool NcclReader::is_repeated(const pugi::xml_node& pci, const std::string& bus_id, int host) {
  if (bus_id.empty()) {
    warnings_.add("there is no busid", xml_.place_of(pci));
    return false;
  }
  const auto [first, is_new] = bus_ids_.try_emplace({bus_id, host}, pci);
  if (is_new) return false;
  const auto device = number_of(pci.find_child(is_gpu_element), "dev");
  const bool repeated = device && device == number_of(first->second.find_child(is_gpu_element), "dev");
  builder_.warn(fmt::format(
      "{}: duplicate bus id, also in line {}; {}", xml_.place_of(pci), xml_.line_of(first->second),
      repeated ? "the same GPU again is left out" : "both devices are kept, and links to it go to the first GPU"));
  return repeated;
}

Status NcclReader::read_pci(const pugi::xml_node& pci, const Place& place) {
  Facts facts;
  facts.bus_id = canonical_bus_id(pci.attribute("busid").value());
  facts.numa = place.numa == kNone ? kNone : builder_.facts(place.numa).numa;
  const std::string_view vendor = pci.attribute("vendor").value();
  const std::string_view device = pci.attribute("device").value();
  if (vendor.starts_with("0x") && device.starts_with("0x"))
    facts.model = node_name(fmt::format("{}:{}", vendor.substr(2), device.substr(2)));
  if (is_repeated(pci, facts.bus_id, place.host)) return {};
  const Link link = pci_link(pci);
  const bool is_leaf = pci.child("pci").empty() && !pci.find_child(is_gpu_element) && pci.child("nic").empty();
  if (!is_leaf) return read_device(pci, place, link, facts);
  const std::string_view pci_class = pci.attribute("class").value();
  if (!has_gpu_elements_ && is_gpu_class(pci_class)) {
    if (!is_management_graphics(vendor)) return add_gpu(pci, place, link, facts);
    warnings_.add("the graphics of a management controller is not counted as a GPU", xml_.place_of(pci));
  }
  if (is_nic_class(pci_class)) {
    add_nic(pci, place, link, facts);
    return {};
  }
  if (pci_class.empty()) ++unclassed_;
  add_device(NodeKind::kPci, place, link, "", facts);
  return {};
}

/// A <pci> with something in it: the GPU or the NIC that is all there is, else a node with what is below it.
Status NcclReader::read_device(const pugi::xml_node& pci, const Place& place, const Link& link, Facts facts) {
  const std::ptrdiff_t gpus = std::ranges::count_if(pci.children(), is_gpu_element);
  std::ptrdiff_t nics = 0;
  for (const pugi::xml_node& nic : pci.children("nic"))
    nics += nic.child("net").empty() ? 1 : std::ranges::count_if(nic.children("net"), is_net);
  const bool is_alone = gpus + nics == 1 && pci.child("pci").empty();
  Place inside = place;
  Link inside_link = link;
  if (!is_alone) {
    inside.parent = add_device(NodeKind::kPci, place, link, "", facts);
    inside.device = gpus > 1 ? inside.parent : kNone;
    inside_link = {.count = 1, .bandwidth = kDeviceBandwidth};
    if (gpus > 1) gpus_by_bus_.try_emplace({facts.bus_id, place.host}, inside.parent);
  }
  for (const pugi::xml_node& child : pci.children()) {
    const std::string_view name = child.name();
    if (is_gpu_element(child)) {
      TUTTI_TRY(add_gpu(child, inside, inside_link, facts));
    } else if (name == "nic") {
      TUTTI_TRY(read_nic(child, inside, inside_link, facts));
    } else if (name == "pci") {
      TUTTI_TRY(read_pci(child, {.host = place.host, .numa = place.numa, .parent = inside.parent}));
    } else if (child.type() == pugi::node_element && name != "pcilink") {
      warnings_.add(fmt::format("<{}> in <pci> is not known and left out", name), xml_.place_of(child));
    }
  }
  return {};
}

int NcclReader::add_device(NodeKind kind, const Place& place, const Link& link, const std::string& name, Facts facts) {
  const int node = builder_.add_node(kind, place.host, place.parent, name, std::move(facts));
  if (place.parent != kNone && node != place.parent)
    builder_.connect(place.parent, node, LinkKind::kPci, link.bandwidth, link.count);
  return node;
}

Status NcclReader::add_gpu(const pugi::xml_node& gpu, const Place& place, const Link& link, Facts facts) {
  if (is_gpu_element(gpu)) {
    facts.device = number_of(gpu, "dev").value_or(kNone);
    facts.rank = number_of(gpu, "rank").value_or(kNone);
    if (facts.rank == kNone)
      warnings_.add("the GPU has no rank; NCCL would leave it out, here it counts", xml_.place_of(gpu));
    facts.gcn = node_name(gpu.attribute("gcn").value());
    // RCCL's sm is the number of compute units.
    if (facts.gcn.empty()) facts.sm = std::max(0, number_of(gpu, "sm").value_or(0));
  }
  const std::string bus_id = facts.bus_id;
  const std::string name = facts.device < 0 ? "" : fmt::format("{}gpu{}", prefix(place.host), facts.device);
  const int node = add_device(NodeKind::kGpu, place, link, name, std::move(facts));
  gpus_by_bus_.try_emplace({bus_id, place.host}, node);
  const int end = place.device == kNone ? node : place.device;
  // Ranks or partitions in one device list the device's links, each of them all: once is enough.
  if (place.device != kNone && (!has_links(gpu) || !linked_devices_.insert(place.device).second)) return {};
  gpus_.push_back({gpu, node, end, place.numa, place.host, bus_id});
  return {};
}

Status NcclReader::read_nic(const pugi::xml_node& nic, const Place& place, const Link& link, const Facts& facts) {
  bool has_net = false;
  for (const pugi::xml_node& net : nic.children("net")) {
    has_net = true;
    if (is_net(net)) {
      add_nic(net, place, link, facts);
    } else {
      warnings_.add("the port is part of a merged NIC, which counts in its place", xml_.place_of(net));
    }
  }
  if (!has_net) add_nic(nic, place, link, facts);
  return {};
}

/// `net`: a <net>, or the <nic> or <pci> that has none.
void NcclReader::add_nic(const pugi::xml_node& net, const Place& place, const Link& link, Facts facts) {
  const std::string name = node_name(net.attribute("name").value());
  facts.device = number_of(net, "dev").value_or(kNone);
  const int node =
      add_device(NodeKind::kNic, place, link, name.empty() ? "" : prefix(place.host) + name, std::move(facts));
  const double latency_us = decimal_in(net.attribute("latency").value());
  const bool has_latency = latency_us > 0 && latency_us < 1e6;
  add_to_network(node, nic_bandwidth(net, link.bandwidth),
                 has_latency ? static_cast<int>(std::lround(latency_us * 1000)) : 0);
}

void NcclReader::add_to_network(int nic, Bandwidth bandwidth, int latency_ns) {
  if (network_ == kNone) network_ = builder_.add_node(NodeKind::kNetwork, 0, kNone, "network");
  builder_.connect(nic, network_, LinkKind::kNetwork, bandwidth, 1, latency_ns);
}

Bandwidth NcclReader::nic_bandwidth(const pugi::xml_node& net, Bandwidth pci) {
  constexpr Bandwidth kPerMegabit = kGigabyte / 8000;
  const bool is_net = std::string_view(net.name()) == "net";
  if (const auto own = is_net ? own_bandwidth(xml_, net, warnings_) : std::nullopt) return *own;
  const int megabits = is_net ? number_of(net, "speed").value_or(0) : 0;
  if (megabits > kNicSpeedPlausible)
    warnings_.add(fmt::format("a speed of {} Mb/s is more than any NIC has; it is taken as it stands", megabits),
                  xml_.place_of(net));
  if (megabits > 0) return megabits * kPerMegabit;
  const std::string_view speed = is_net ? net.attribute("speed").value() : "";
  if (speed.empty() || speed == "0") {
    warnings_.add("the NIC's speed is not in the file; that of its PCI link is taken", xml_.place_of(net));
  } else {
    warnings_.add(fmt::format("speed \"{}\" is no number of Mb/s; that of its PCI link is taken", speed.substr(0, 32)),
                  xml_.place_of(net));
  }
  return pci;
}

void NcclReader::join_cpus() {
  for (const auto& cpus : cpus_) {
    for (const auto& [from, processor] : cpus) {
      for (const auto& [to, other] : cpus) {
        if (from != to) builder_.add_link(from, to, LinkKind::kCpu, cpu_bandwidth(processor));
      }
    }
  }
}

}  // namespace

Result<Graph> read_nccl_xml(std::string_view text) {
  TUTTI_TRY_ASSIGN(const XmlDocument xml, XmlDocument::parse(text, "system", {"cpu", "pci", "gpu", "apu", "nic"}));
  NcclReader reader(xml);
  return reader.read();
}

}  // namespace tutti::topology
