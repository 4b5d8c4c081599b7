#include "topology/hwloc_xml.h"

#include "topology/text_words.h"
#include "topology/xml_document.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <pugixml.hpp>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tutti::topology {

using Kind = HwlocObject::Kind;
using OsKind = HwlocObject::OsKind;

bool names_gpu(std::string_view os_device) {
  constexpr std::array<std::string_view, 5> kBackends = {"cuda", "nvml", "rsmi", "ze", "opencl"};
  return std::ranges::any_of(kBackends, [&](std::string_view backend) {
    return os_device.starts_with(backend) && os_device.size() > backend.size() &&
           os_device.find_first_not_of("0123456789d.", backend.size()) == std::string_view::npos;
  });
}

namespace {

Error refuse(const std::string& place, std::string_view reason) {
  return error(Code::kInvalidArgument, fmt::format("hwloc XML: {}: {}", place, reason));
}

/// A set of CPUs as hwloc writes it: "0xff,,0x3", words of 32 bits, the highest first; "0xf...f" before them means all
/// above.
class CpuSet {
 public:
  explicit CpuSet(std::string_view text) {
    constexpr std::string_view kInfinite = "0xf...f";
    if (text.starts_with(kInfinite)) {
      infinite_ = true;
      text.remove_prefix(std::min(text.size(), kInfinite.size() + 1));
    }
    while (!text.empty()) {
      const std::size_t comma = text.find(',');
      const std::string word(text.substr(0, std::min(comma, std::size_t{12})));
      unsigned bits = 0;
      if (std::sscanf(word.c_str(), "%x", &bits) != 1) bits = 0;
      words_.push_back(bits);
      if (comma == std::string_view::npos) break;
      text.remove_prefix(comma + 1);
    }
    std::ranges::reverse(words_);
  }
  bool has(int cpu) const {
    const auto word = static_cast<std::size_t>(cpu) / 32;
    if (word >= words_.size()) return infinite_;
    return (words_[word] >> (static_cast<unsigned>(cpu) % 32) & 1) != 0;
  }

 private:
  std::vector<unsigned> words_;  ///< the lowest first
  bool infinite_ = false;
};

class Reader {
 public:
  explicit Reader(const XmlDocument& document) : document_(document) {}

  Result<HwlocTree> read() {
    const pugi::xml_node topology = document_.root();
    set_version(topology);
    std::vector<Pending> pending;
    push_objects(topology, kNone, pending);
    if (pending.empty()) return refuse(document_.place_of(topology), "there is no <object> in it");
    while (!pending.empty()) {
      const Pending next = pending.back();
      pending.pop_back();
      if (tree_.objects.size() >= static_cast<std::size_t>(kHwlocObjectsMax))
        return refuse(document_.place_of(next.node), fmt::format("there are more than {} objects", kHwlocObjectsMax));
      const int index = add_object(next.node, next.parent);
      if (index != kNone) push_objects(next.node, index, pending);
    }
    read_infos_of_topology(topology);
    for (const pugi::xml_node& element : topology.children()) {
      const std::string_view name = element.name();
      if (name == "distances2" || name == "distances2hetero") read_matrix(element, name == "distances2hetero");
      if (name == "memattr" && std::string_view(element.attribute("name").value()) == "Bandwidth") read_memory(element);
    }
    return std::move(tree_);
  }

 private:
  struct Pending {
    pugi::xml_node node;
    int parent;
  };

  void set_version(const pugi::xml_node& topology) {
    const std::string text = topology.attribute("version").value();
    version_ = text.empty() ? 1 : topology.attribute("version").as_int();
    tree_.memory_children = version_ >= 2;
    if (version_ < 1 || version_ > 3)
      tree_.warnings.push_back(fmt::format("hwloc XML of version \"{}\": read as version 3", text));
  }

  static void push_objects(const pugi::xml_node& from, int parent, std::vector<Pending>& pending) {
    const std::size_t first = pending.size();
    for (const pugi::xml_node& child : from.children("object")) pending.push_back({child, parent});
    std::reverse(pending.begin() + static_cast<std::ptrdiff_t>(first), pending.end());
  }

  /// kNone if it is left out, with what is below it.
  int add_object(const pugi::xml_node& node, int parent) {
    HwlocObject object;
    object.parent = parent;
    object.line = document_.line_of(node);
    object.type_text = std::string(node.attribute("type").value()).substr(0, 32);
    object.subtype = std::string(node.attribute("subtype").value()).substr(0, 32);
    object.os_index = node.attribute("os_index").as_int(kNone);
    object.id = node.attribute("gp_index").as_ullong();
    set_kind(node, object);
    if (object.type_text == "Misc") return kNone;
    if (object.type_text.empty())
      tree_.warnings.push_back(fmt::format("line {}: an <object> without type counts as a group", object.line));
    if (object.kind == Kind::kMachine) allowed_ = allowed_in(node);
    if (object.kind == Kind::kPu && object.os_index >= 0) object.allowed = allowed_.has(object.os_index);
    if (object.kind == Kind::kPci || object.kind == Kind::kBridge) set_pci(node, object);
    if (object.kind == Kind::kOs) set_os_device(node, object);
    for (const pugi::xml_node& info : node.children("info")) keep_info(info, object);
    if (object.kind == Kind::kPci && object.has_address && repeats(object)) return kNone;
    const int index = static_cast<int>(tree_.objects.size());
    by_id_.try_emplace(object.id, index);
    if (object.os_index >= 0) by_os_index_.try_emplace({object.type_text, object.os_index}, index);
    tree_.objects.push_back(std::move(object));
    if (parent != kNone) tree_.objects[static_cast<std::size_t>(parent)].children.push_back(index);
    return index;
  }

  /// The same device twice counts once; another at the same address is one with a wrong address.
  bool repeats(const HwlocObject& object) {
    const auto [known, is_new] = devices_.try_emplace(object.address, object.vendor, object.device);
    if (is_new) return false;
    const bool same = known->second == std::pair(object.vendor, object.device);
    tree_.warnings.push_back(fmt::format("line {}: there is a device at {} already: {}", object.line,
                                         text_of(object.address),
                                         same ? "the second is left out" : "as it is another, both are kept"));
    return same;
  }

  static CpuSet allowed_in(const pugi::xml_node& machine) {
    const pugi::xml_attribute allowed = machine.attribute("allowed_cpuset");
    return CpuSet(allowed ? allowed.value() : "0xf...f");
  }

  void set_kind(const pugi::xml_node& node, HwlocObject& object) const {
    static const std::map<std::string_view, Kind> kKinds = {
        {"Machine", Kind::kMachine}, {"Package", Kind::kPackage}, {"Socket", Kind::kPackage}, {"NUMANode", Kind::kNuma},
        {"Core", Kind::kCore},       {"PU", Kind::kPu},           {"PCIDev", Kind::kPci},     {"OSDev", Kind::kOs}};
    const auto found = kKinds.find(object.type_text);
    object.kind = found != kKinds.end() ? found->second : Kind::kGroup;
    object.bytes = node.attribute("local_memory").as_ullong();
    if (object.type_text == "Bridge") {
      const std::string_view type = node.attribute("bridge_type").value();
      const bool is_below = object.parent != kNone && is_bridge(tree_.objects[static_cast<std::size_t>(object.parent)]);
      object.kind = type == "0-1" || (type.empty() && !is_below) ? Kind::kHostBridge : Kind::kBridge;
    }
    constexpr int kInstruction = 2;
    if (object.type_text.ends_with("Cache") && object.type_text != "MemCache" &&
        node.attribute("cache_type").as_int() != kInstruction) {
      object.kind = Kind::kCache;
      object.bytes = node.attribute("cache_size").as_ullong();
      object.cache_level = node.attribute("depth").as_int();
    }
  }
  static bool is_bridge(const HwlocObject& object) {
    return object.kind == Kind::kHostBridge || object.kind == Kind::kBridge;
  }

  void set_pci(const pugi::xml_node& node, HwlocObject& object) {
    const std::string_view bus_id = node.attribute("pci_busid").value();
    if (const auto address = parse_pci_address(bus_id)) {
      object.address = *address;
      object.has_address = true;
    } else if (!bus_id.empty()) {
      tree_.warnings.push_back(
          fmt::format("line {}: pci_busid \"{}\" is no PCI address", object.line, bus_id.substr(0, 32)));
    }
    static_cast<void>(std::sscanf(node.attribute("pci_type").value(), "%4x [%4x:%4x]", &object.pci_class,
                                  &object.vendor, &object.device));
    const std::string_view speed = node.attribute("pci_link_speed").value();
    object.link = from_gbps(decimal_in(speed));
    // hwloc writes 0 where it does not know.
    if (object.link == 0 && speed.find_first_not_of("0.") != std::string_view::npos)
      tree_.warnings.push_back(
          fmt::format("line {}: pci_link_speed \"{}\" is no number of GB/s", object.line, speed.substr(0, 32)));
  }

  void set_os_device(const pugi::xml_node& node, HwlocObject& object) const {
    constexpr int kNetwork = 2, kFabric = 3;  // formats 1 and 2
    constexpr unsigned kNetworkBit = 1U << 4, kFabricBit = 1U << 5;
    object.name = std::string(node.attribute("name").value()).substr(0, 64);
    const int type = node.attribute("osdev_type").as_int();
    const auto bits = static_cast<unsigned>(type);
    const bool fabric = version_ >= 3 ? (bits & kFabricBit) != 0 : type == kFabric;
    const bool network = version_ >= 3 ? (bits & kNetworkBit) != 0 : type == kNetwork;
    if (network) object.os_kind = OsKind::kNetwork;
    if (fabric) object.os_kind = OsKind::kFabric;
    if (names_gpu(object.name)) object.os_kind = OsKind::kGpu;
  }

  static void keep_info(const pugi::xml_node& info, HwlocObject& object) {
    constexpr std::array<std::string_view, 7> kKept = {"HostName",       "Architecture", "CPUVendor", "CPUFamilyNumber",
                                                       "CPUModelNumber", "CPUModel",     "GPUModel"};
    const std::string_view name = info.attribute("name").value();
    constexpr std::size_t kValueMax = 128;
    if (std::ranges::find(kKept, name) != kKept.end())
      object.infos.try_emplace(std::string(name), std::string(info.attribute("value").value()).substr(0, kValueMax));
  }
  /// Format 3 puts what was the machine's beside it.
  void read_infos_of_topology(const pugi::xml_node& topology) {
    const auto machine = std::ranges::find(tree_.objects, Kind::kMachine, &HwlocObject::kind);
    if (machine == tree_.objects.end()) return;
    for (const pugi::xml_node& info : topology.children("info")) keep_info(info, *machine);
  }

  void read_memory(const pugi::xml_node& attribute) {
    constexpr unsigned long long kMebibytesMax = 1'000'000'000;
    constexpr Bandwidth kMebibyte = 1'048'576;
    for (const pugi::xml_node& value : attribute.children("memattr_value")) {
      const auto found = by_id_.find(value.attribute("target_obj_gp_index").as_ullong());
      const unsigned long long mebibytes = value.attribute("value").as_ullong();
      if (found == by_id_.end() || mebibytes > kMebibytesMax) continue;
      HwlocObject& numa = tree_.objects[static_cast<std::size_t>(found->second)];
      if (numa.kind == Kind::kNuma)
        numa.memory = std::max(numa.memory, static_cast<Bandwidth>(mebibytes) * kMebibyte / 1000);
    }
  }

  void read_matrix(const pugi::xml_node& element, bool mixed) {
    static const std::map<std::string_view, HwlocMatrix::Kind> kKinds = {
        {"NVLinkBandwidth", HwlocMatrix::Kind::kNvLink},
        {"XGMIBandwidth", HwlocMatrix::Kind::kXgmi},
        {"XGMIHops", HwlocMatrix::Kind::kXgmiHops}};
    const std::string_view name = element.attribute("name").value();
    const auto kind = kKinds.find(name);
    if (kind == kKinds.end()) return;
    HwlocMatrix matrix;
    matrix.kind = kind->second;
    const std::string problem = fill(element, mixed, matrix);
    if (problem.empty()) {
      tree_.matrices.push_back(std::move(matrix));
    } else {
      tree_.warnings.push_back(
          fmt::format("line {}: the matrix {} is left out: {}", document_.line_of(element), name, problem));
    }
  }

  static std::vector<std::string> words_of(const pugi::xml_node& element, const char* child, std::size_t count_max) {
    std::vector<std::string> words;
    for (const pugi::xml_node& part : element.children(child)) {
      std::string_view text = part.child_value();
      while (words.size() <= count_max) {
        const std::size_t start = text.find_first_not_of(" \t\r\n");
        if (start == std::string_view::npos) break;
        text.remove_prefix(start);
        const std::size_t stop = std::min(text.find_first_of(" \t\r\n"), text.size());
        words.emplace_back(text.substr(0, stop));
        text.remove_prefix(stop);
      }
    }
    return words;
  }

  /// What is wrong with the matrix, or nothing.
  std::string fill(const pugi::xml_node& element, bool mixed, HwlocMatrix& matrix) const {
    constexpr unsigned kObjectsMax = 1024;
    const unsigned count = element.attribute("nbobjs").as_uint();
    if (count == 0 || count > kObjectsMax) return fmt::format("nbobjs is {}, not 1 to {}", count, kObjectsMax);
    const bool by_os_index = !mixed && std::string_view(element.attribute("indexing").value()) == "os";
    const std::string type = element.attribute("type").value();
    const std::vector<std::string> indexes = words_of(element, "indexes", count);
    if (indexes.size() != count) return fmt::format("{} indexes for {} objects", indexes.size(), count);
    for (const std::string& word : indexes) {
      const std::size_t colon = mixed ? word.find(':') + 1 : 0;
      const auto number = number_from<std::uint64_t>(std::string_view(word).substr(colon), 0);
      const int object = !number ? kNone : by_os_index ? find_os_index(type, *number) : find_id(*number);
      if (object == kNone) return fmt::format("there is no object {}", word.substr(0, 32));
      if (std::ranges::find(matrix.objects, object) != matrix.objects.end())
        return fmt::format("object {} is in it twice", word.substr(0, 32));
      matrix.objects.push_back(object);
    }
    const std::size_t cells = std::size_t{count} * count;
    for (const std::string& word : words_of(element, "u64values", cells)) {
      const auto value = number_from<std::uint64_t>(word, 0);
      if (!value) return fmt::format("value \"{}\" is no number", word.substr(0, 32));
      matrix.values.push_back(*value);
    }
    if (matrix.values.size() != cells)
      return fmt::format("{} values for {} x {} objects", matrix.values.size(), count, count);
    return "";
  }
  int find_id(std::uint64_t id) const {
    const auto found = by_id_.find(id);
    return found == by_id_.end() ? kNone : found->second;
  }
  int find_os_index(const std::string& type, std::uint64_t number) const {
    const auto found = by_os_index_.find({type, static_cast<int>(number)});
    return found == by_os_index_.end() ? kNone : found->second;
  }

  const XmlDocument& document_;
  HwlocTree tree_;
  int version_ = 1;
  CpuSet allowed_{"0xf...f"};
  std::map<PciAddress, std::pair<unsigned, unsigned>> devices_;  ///< vendor and device
  std::unordered_map<std::uint64_t, int> by_id_;
  std::map<std::pair<std::string, int>, int> by_os_index_;
};

/// A file that ends early, behind its last object, has lost its matrices and little else.
std::string mended(std::string_view content) {
  constexpr std::string_view kLast = "</object>";
  const std::size_t last = content.rfind(kLast);
  if (last == std::string_view::npos) return "";
  return std::string(content.substr(0, last + kLast.size())) + "</topology>";
}

}  // namespace

Result<HwlocTree> read_hwloc_tree(std::string_view content) {
  std::string warning;
  auto document = XmlDocument::parse(content, "topology", {});
  if (!document.ok()) {
    const std::string whole = mended(content);
    auto second = XmlDocument::parse(whole, "topology", {});
    if (!second.ok()) return error(document.error().code, "hwloc " + document.error().message);
    warning =
        fmt::format("{}; what follows the objects, link matrices among it, is left out", document.error().message);
    document = std::move(second);
  }
  TUTTI_TRY_ASSIGN(HwlocTree tree, Reader(document.value()).read());
  tree.warnings.insert(tree.warnings.begin(), document.value().warnings().begin(), document.value().warnings().end());
  if (!warning.empty()) tree.warnings.insert(tree.warnings.begin(), warning);
  return tree;
}

Result<Graph> read_hwloc_xml(std::string_view content) {
  TUTTI_TRY_ASSIGN(const HwlocTree tree, read_hwloc_tree(content));
  return graph_of(tree);
}

}  // namespace tutti::topology
