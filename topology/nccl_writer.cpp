// to_nccl_xml: the machine graph as NCCL's topology XML.
#include "topology/bandwidths.h"
#include "topology/nccl_xml.h"
#include "topology/text_words.h"

#include <fmt/format.h>

#include <pugixml.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <sstream>
#include <utility>
#include <vector>

namespace tutti::topology {

namespace {

constexpr std::array<std::string_view, 6> kSpeeds = {"2.5 GT/s PCIe",  "5.0 GT/s PCIe",  "8.0 GT/s PCIe",
                                                     "16.0 GT/s PCIe", "32.0 GT/s PCIe", "64.0 GT/s PCIe"};

void set(pugi::xml_node& element, const char* name, std::string_view value) {
  element.append_attribute(name).set_value(std::string(value).c_str());
}
void set(pugi::xml_node& element, const char* name, long long value) {
  element.append_attribute(name).set_value(value);
}

bool is_device(NodeKind kind) { return kind == NodeKind::kPci || kind == NodeKind::kGpu || kind == NodeKind::kNic; }

/// <gpu dev="0"/> for <gpu dev="0" />: NCCL's own parser takes the blank for an attribute.
std::string without_blank_ends(const std::string& text) {
  constexpr std::string_view kEnd = "\" />";
  std::string kept;
  kept.reserve(text.size());
  std::size_t at = 0;
  for (std::size_t found = text.find(kEnd); found != std::string::npos; found = text.find(kEnd, at)) {
    kept.append(text, at, found + 1 - at);
    at = found + 2;
  }
  return kept.append(text, at, std::string::npos);
}

class NcclWriter {
 public:
  explicit NcclWriter(const Graph& graph);
  std::string write();

 private:
  void sort_nodes();
  void write_host(int host);
  void write_device(pugi::xml_node& into, int node);
  void write_endpoint(pugi::xml_node& pci, int node);
  void write_gpu(pugi::xml_node& pci, int gpu);
  void write_net(pugi::xml_node& nic, int node);
  void write_pci_facts(pugi::xml_node& pci, int node);
  void write_cable(pugi::xml_node& gpu, const Link& link, const Facts& facts);
  void write_c2c(pugi::xml_node& gpu, const Link& link);
  bool shares_device(int node) const;
  const Link* uplink_of(int node) const;
  const Link* link_out(int node, LinkKind kind) const;
  std::string bus_id_of(int node) const;
  int numa_of(int node) const;

  const Graph& graph_;
  bool has_switches_;  ///< more than one: the form knows no second
  pugi::xml_document document_;
  pugi::xml_node system_;
  std::vector<std::vector<int>> children_;              ///< devices, by the device they are in
  std::vector<std::vector<int>> tops_;                  ///< devices in no other, by NUMA node
  std::vector<std::vector<int>> homeless_;              ///< devices on hosts without NUMA nodes, by host
  std::vector<std::vector<int>> numas_;                 ///< by host
  std::map<std::pair<int, int>, int> numas_by_number_;  ///< by host and the system's number
  std::vector<std::vector<const Link*>> links_;         ///< by the node they leave
};

std::size_t at(int index) { return static_cast<std::size_t>(index); }

NcclWriter::NcclWriter(const Graph& graph)
    : graph_(graph),
      has_switches_(graph.nodes_of(NodeKind::kSwitch).size() > 1),
      children_(graph.nodes().size()),
      tops_(graph.nodes().size()),
      homeless_(graph.hosts().size()),
      numas_(graph.hosts().size()),
      links_(graph.nodes().size()) {
  for (const Link& link : graph.links()) links_[at(link.from)].push_back(&link);
  sort_nodes();
}

std::string NcclWriter::write() {
  system_ = document_.append_child("system");
  set(system_, "version", 1);
  for (int host = 0; host < static_cast<int>(graph_.hosts().size()); ++host) write_host(host);
  std::ostringstream out;
  document_.save(out, "  ", pugi::format_indent | pugi::format_no_declaration, pugi::encoding_utf8);
  return without_blank_ends(std::move(out).str());
}

/// The NUMA node that a device without a device above it is written in; kNone if its host has none.
int NcclWriter::numa_of(int node) const {
  const Node& self = graph_.node(node);
  for (int above = self.parent; above != kNone; above = graph_.node(above).parent) {
    if (graph_.node(above).kind == NodeKind::kNuma) return above;
  }
  const auto by_number = numas_by_number_.find({self.host, self.facts.numa});
  if (by_number != numas_by_number_.end()) return by_number->second;
  const std::vector<int>& numas = numas_[at(self.host)];
  return numas.empty() ? kNone : numas.front();
}

/// What is written in what.
void NcclWriter::sort_nodes() {
  const int nodes = static_cast<int>(graph_.nodes().size());
  for (int i = 0; i < nodes; ++i) {
    const Node& node = graph_.node(i);
    if (node.kind != NodeKind::kNuma) continue;
    numas_[at(node.host)].push_back(i);
    numas_by_number_.try_emplace({node.host, node.facts.numa}, i);
  }
  for (int i = 0; i < nodes; ++i) {
    const Node& node = graph_.node(i);
    if (!is_device(node.kind)) continue;
    if (node.parent != kNone && graph_.node(node.parent).kind == NodeKind::kPci) {
      children_[at(node.parent)].push_back(i);
      continue;
    }
    const int numa = numa_of(i);
    (numa == kNone ? homeless_[at(node.host)] : tops_[at(numa)]).push_back(i);
  }
}

void NcclWriter::write_host(int host) {
  std::vector<int> numas = numas_[at(host)];
  // NCCL wants every device in a <cpu>.
  if (numas.empty()) numas.push_back(kNone);
  for (const int numa : numas) {
    pugi::xml_node cpu = system_.append_child("cpu");
    const std::string& name = graph_.hosts()[at(host)];
    if (graph_.hosts().size() > 1 || name.starts_with("0x"))
      set(cpu, "host_hash",
          name.starts_with("0x") ? name : fmt::format("0x{:x}", std::hash<std::string>()(name) + at(host)));
    const Facts facts = numa == kNone ? Facts{} : graph_.node(numa).facts;
    set(cpu, "numaid", numa == kNone ? 0 : facts.numa);
    const Processor processor = processor_from(facts.model);
    if (!processor.arch.empty()) set(cpu, "arch", processor.arch);
    if (!processor.vendor.empty()) set(cpu, "vendor", processor.vendor);
    if (processor.family != kNone) set(cpu, "familyid", processor.family);
    if (processor.model != kNone) set(cpu, "modelid", processor.model);
    if (facts.cores > 0) set(cpu, "cores", facts.cores);
    if (facts.memory > 0) set(cpu, "memory_gbps", gigabytes_text(facts.memory));
    for (const int device : numa == kNone ? homeless_[at(host)] : tops_[at(numa)]) write_device(cpu, device);
  }
}

const Link* NcclWriter::link_out(int node, LinkKind kind) const {
  const auto found = std::ranges::find(links_[at(node)], kind, &Link::kind);
  return found == links_[at(node)].end() ? nullptr : *found;
}

/// The PCI link to the parent, or any PCI link but those to what is below.
const Link* NcclWriter::uplink_of(int node) const {
  for (const Link* link : links_[at(node)]) {
    if (link->kind == LinkKind::kPci && graph_.node(link->to).parent != node) return link;
  }
  return nullptr;
}

/// Whether it is one of several GPUs or ports in the PCI device above it.
bool NcclWriter::shares_device(int node) const {
  const Node& self = graph_.node(node);
  if (self.kind == NodeKind::kPci || self.parent == kNone || graph_.node(self.parent).kind != NodeKind::kPci)
    return false;
  const Link* link = uplink_of(node);
  return link != nullptr && link->bandwidth == kDeviceBandwidth &&
         self.facts.bus_id == graph_.node(self.parent).facts.bus_id;
}

std::string NcclWriter::bus_id_of(int node) const {
  const std::string& known = graph_.node(node).facts.bus_id;
  if (!known.empty()) return known;
  return fmt::format("{:04x}:{:02x}:{:02x}.0", 0x1000 + node / (256 * 32), node / 32 % 256, node % 32);
}

void NcclWriter::write_device(pugi::xml_node& into, int node) {
  const Node& self = graph_.node(node);
  const Link* link = uplink_of(node);
  if (self.kind == NodeKind::kNic && self.facts.bus_id.empty() && link != nullptr &&
      link->bandwidth == kDeviceBandwidth) {
    write_endpoint(into, node);
    return;
  }
  pugi::xml_node pci = into.append_child("pci");
  write_pci_facts(pci, node);
  if (self.kind != NodeKind::kPci) {
    write_endpoint(pci, node);
    return;
  }
  for (const int child : children_[at(node)]) {
    if (shares_device(child)) {
      write_endpoint(pci, child);
    } else {
      write_device(pci, child);
    }
  }
}

void NcclWriter::write_pci_facts(pugi::xml_node& pci, int node) {
  const Node& self = graph_.node(node);
  set(pci, "busid", bus_id_of(node));
  const bool is_amd = !self.facts.gcn.empty();
  const auto shares = [&](int child) { return shares_device(child) && graph_.node(child).kind == NodeKind::kGpu; };
  const bool holds_gpus = std::ranges::any_of(children_[at(node)], shares);
  const bool is_gpu = self.kind == NodeKind::kGpu || holds_gpus;
  set(pci, "class",
      is_gpu                        ? (is_amd ? "0x038000" : "0x030200")
      : self.kind == NodeKind::kNic ? "0x020000"
                                    : "0x060400");
  const std::string& model = self.facts.model;
  if (model.size() == 9 && model[4] == ':') {
    set(pci, "vendor", "0x" + model.substr(0, 4));
    set(pci, "device", "0x" + model.substr(5));
  }
  const Link* link = uplink_of(node);
  if (link == nullptr) {
    // NCCL refuses a device without them.
    set(pci, "link_speed", "");
    set(pci, "link_width", 0);
    return;
  }
  constexpr int kLanesMax = 64;
  const int lanes = link->count <= kLanesMax ? link->count : 16;
  std::string_view speed;
  for (const std::string_view candidate : kSpeeds) {
    const Bandwidth bandwidth = pci_bandwidth(lanes, candidate);
    if (speed.empty() || bandwidth <= link->bandwidth) speed = candidate;
  }
  set(pci, "link_speed", speed);
  set(pci, "link_width", lanes);
  if (pci_bandwidth(lanes, speed) != link->bandwidth) set(pci, "gbps", gigabytes_text(link->bandwidth));
}

/// A <gpu>, or a <net> in the <nic> of `pci`.
void NcclWriter::write_endpoint(pugi::xml_node& pci, int node) {
  if (graph_.node(node).kind == NodeKind::kGpu) {
    write_gpu(pci, node);
    return;
  }
  pugi::xml_node nic = pci.child("nic");
  if (nic.empty()) nic = pci.append_child("nic");
  write_net(nic, node);
}

void NcclWriter::write_gpu(pugi::xml_node& pci, int node) {
  const Facts& facts = graph_.node(node).facts;
  pugi::xml_node gpu = pci.append_child("gpu");
  if (facts.device != kNone) set(gpu, "dev", facts.device);
  if (facts.sm > 0) set(gpu, "sm", facts.sm);
  if (!facts.gcn.empty()) set(gpu, "gcn", facts.gcn);
  if (facts.rank != kNone) set(gpu, "rank", facts.rank);
  set(gpu, "gdr", 1);
  // What shares a device lists the device's links, each of them all, as NCCL has it.
  for (const int end : {node, shares_device(node) ? graph_.node(node).parent : kNone}) {
    if (end == kNone) continue;
    for (const Link* link : links_[at(end)]) {
      if (link->kind == LinkKind::kNvLink || link->kind == LinkKind::kXgmi) write_cable(gpu, *link, facts);
      if (link->kind == LinkKind::kC2c) write_c2c(gpu, *link);
    }
  }
}

void NcclWriter::write_cable(pugi::xml_node& gpu, const Link& link, const Facts& facts) {
  const bool is_xgmi = link.kind == LinkKind::kXgmi;
  pugi::xml_node cable = gpu.append_child(is_xgmi ? "xgmi" : "nvlink");
  set(cable, "target", bus_id_of(link.to));
  set(cable, "count", link.count);
  const NodeKind to = graph_.node(link.to).kind;
  const char* gpu_class = is_xgmi ? "0x038000" : "0x030200";
  set(cable, "tclass", to == NodeKind::kSwitch ? "0x068000" : to == NodeKind::kNuma ? "0x068001" : gpu_class);
  if (to == NodeKind::kSwitch && has_switches_) set(cable, "switch", graph_.node(link.to).name);
  const Bandwidth one = is_xgmi ? xgmi_bandwidth(facts.gcn) : nvlink_bandwidth(facts.sm);
  if (one * link.count != link.bandwidth) set(cable, "gbps", gigabytes_text(link.bandwidth));
}

void NcclWriter::write_c2c(pugi::xml_node& gpu, const Link& link) {
  constexpr Bandwidth kMegabyte = kGigabyte / 1000;
  const bool divides = link.bandwidth % (link.count * kMegabyte) == 0;
  const int count = divides ? link.count : 1;
  pugi::xml_node c2c = gpu.append_child("c2c");
  set(c2c, "bw", link.bandwidth / count / kMegabyte);
  set(c2c, "count", count);
}

void NcclWriter::write_net(pugi::xml_node& nic, int node) {
  const Node& self = graph_.node(node);
  pugi::xml_node net = nic.append_child("net");
  set(net, "name", self.name);
  set(net, "dev", self.facts.device != kNone ? self.facts.device : node);
  if (const Link* link = link_out(node, LinkKind::kNetwork)) {
    constexpr Bandwidth kMegabit = kGigabyte / 8000;
    set(net, "latency", fmt::format("{:f}", link->latency_ns / 1000.0));
    set(net, "speed", link->bandwidth / kMegabit);
    if (link->bandwidth % kMegabit != 0) set(net, "gbps", gigabytes_text(link->bandwidth));
  }
  set(net, "port", 1);
  set(net, "maxconn", 65536);
}

}  // namespace

std::string to_nccl_xml(const Graph& graph) { return NcclWriter(graph).write(); }

}  // namespace tutti::topology
