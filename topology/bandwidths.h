// What links are counted with where a source gives no figure of its own: GB/s in one direction, by kind and generation.
// The figures are what NCCL and RCCL count, so that bounds compare with theirs; they lie below the nominal rates.
#pragma once

#include "topology/graph.h"

#include <string>
#include <string_view>
#include <vector>

namespace tutti::topology {

struct BandwidthRow {
  std::string item;     ///< "NVLink, per link, sm 90"
  Bandwidth bandwidth;  ///< in one direction
  std::string source;   ///< where the figure comes from
};

/// Every figure that the functions below can return, for people.
std::vector<BandwidthRow> bandwidth_table();

/// Of one NVLink of a GPU with this compute capability; 0 if that is not known.
Bandwidth nvlink_bandwidth(int sm);

/// Of one xGMI link of a GPU with this architecture: "gfx942", or RCCL's short form "910" for gfx90a.
Bandwidth xgmi_bandwidth(std::string_view gcn);

/// Of a PCI link: lanes (16 where it is 0 or less) and sysfs' text for the speed, "16.0 GT/s PCIe". Any other text counts
/// as 8 GT/s: see knows_pci_speed.
Bandwidth pci_bandwidth(int lanes, std::string_view speed);
bool knows_pci_speed(std::string_view speed);

/// Of NCCL's <c2c count bw>: links, and MB/s of each.
Bandwidth c2c_bandwidth(int count, int megabytes_per_second);

/// NCCL's words for a processor; what is not known keeps the value here.
struct Processor {
  std::string arch;    ///< "x86_64", "arm64", "ppc64"
  std::string vendor;  ///< "GenuineIntel"
  int family = kNone;
  int model = kNone;
};

/// Between two NUMA nodes of one host.
Bandwidth cpu_bandwidth(const Processor& processor);

/// Facts::model of a NUMA node: "GenuineIntel 6/143", the vendor alone, the architecture alone, or nothing; and back.
std::string to_text(const Processor& processor);
Processor processor_from(std::string_view model);

/// Of a network interface whose speed nobody tells: 10 Gbit/s.
inline constexpr Bandwidth kUnknownNetworkBandwidth = kGigabyte * 10 / 8;

/// Inside a device, between what shares it: as good as no limit.
inline constexpr Bandwidth kDeviceBandwidth = 5000 * kGigabyte;

}  // namespace tutti::topology
