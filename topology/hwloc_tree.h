// A machine as hwloc sees it: the objects of its tree that matter here, its link matrices, and how they become a
// machine graph. Two sources fill it: hwloc's XML (hwloc_xml.h) and hwloc itself (live.h).
//
// What becomes what:
//   Package, NUMANode, the topmost cache   a node each, without links; NUMA nodes with cores are joined pair by pair
//   host bridge                            a node, if more than one GPU, NIC or switch is below it
//   switch (upstream and downstream ports) one node; bridges that lead to no GPU and no NIC are left out
//   PCI device with several functions      a node that has the link, and below it the functions, joined at 5000 GB/s
//   GPU                                    a node per logical GPU: an MI300A in mode CPX has six
//   NVLinkBandwidth, XGMIBandwidth         links with the matrix's own figures; all NVSwitches of a host are one node
#pragma once

#include "base/result.h"
#include "topology/graph.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace tutti::topology {

struct PciAddress {
  unsigned domain = 0, bus = 0, device = 0, function = 0;

  friend bool operator<(const PciAddress& a, const PciAddress& b) {
    return std::tie(a.domain, a.bus, a.device, a.function) < std::tie(b.domain, b.bus, b.device, b.function);
  }
};
/// "0000:07:00.0", also without the domain; nothing if `text` is none.
std::optional<PciAddress> parse_pci_address(std::string_view text);
std::string text_of(const PciAddress& address);

struct HwlocObject {
  enum class Kind : std::uint8_t {
    kMachine,
    kPackage,
    kNuma,
    kCache,  ///< data or unified, of the level `cache_level`
    kCore,
    kPu,
    kGroup,  ///< and whatever else only groups: System, Die, MemCache, instruction caches
    kHostBridge,
    kBridge,
    kPci,
    kOs,
  };
  enum class OsKind : std::uint8_t { kOther, kNetwork, kFabric, kGpu };

  Kind kind = Kind::kGroup;
  int parent = kNone;
  std::vector<int> children;
  int line = 0;          ///< in the file; 0: from no file
  int os_index = kNone;  ///< the system's number
  std::uint64_t id = 0;  ///< hwloc's gp_index
  int cache_level = 0;
  std::string name;         ///< of OS devices: "mlx5_0", "cuda0"
  std::string type_text;    ///< as hwloc spells it, "L3Cache"
  std::string subtype;      ///< "NVSwitch"
  std::uint64_t bytes = 0;  ///< of NUMA nodes and caches
  Bandwidth memory = 0;     ///< of NUMA nodes
  bool allowed = true;      ///< of PUs: this process may use it
  OsKind os_kind = OsKind::kOther;
  std::map<std::string, std::string, std::less<>> infos;

  PciAddress address;  ///< of PCI devices and bridges below host bridges
  bool has_address = false;
  unsigned pci_class = 0;  ///< 0x0302
  unsigned vendor = 0;     ///< 0x10de
  unsigned device = 0;
  Bandwidth link = 0;  ///< of its PCI link; 0: unknown
  int lanes = 0;       ///< 0: unknown

  Bandwidth rate = 0;  ///< of network devices: to the network; 0: unknown or down
  int ports = 0;       ///< of network devices
  int sm = 0;          ///< of GPUs
};

struct HwlocMatrix {
  enum class Kind : std::uint8_t { kNvLink, kXgmi, kXgmiHops };
  Kind kind = Kind::kNvLink;
  std::vector<int> objects;
  std::vector<std::uint64_t> values;          ///< MB/s or hops, a row after the other
  std::uint64_t megabytes_per_link = 25'000;  ///< of one NVLink: 2, 3 and 4 are written so
};

/// Objects are in pre-order: a parent before its children.
struct HwlocTree {
  std::vector<HwlocObject> objects;
  std::vector<HwlocMatrix> matrices;
  std::vector<std::string> warnings;
  /// NUMA nodes have what is beside them below their parent (formats 2 and 3), not what is below themselves (format 1).
  bool memory_children = true;
};

inline constexpr int kHwlocObjectsMax = 1 << 18;

/// kInvalidArgument if there is no Machine in the tree, or the graph breaks a rule of GraphBuilder's.
Result<Graph> graph_of(const HwlocTree& tree);

}  // namespace tutti::topology
