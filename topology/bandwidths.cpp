#include "topology/bandwidths.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace tutti::topology {

namespace {

constexpr std::string_view kNccl = "NCCL (June 2026), src/graph/topo.h";
constexpr std::string_view kRccl = "RCCL (2026), src/graph/topo.h";

constexpr Bandwidth tenths(Bandwidth tenths_of_gbps) { return tenths_of_gbps * (kGigabyte / 10); }

struct NvLinkRow {
  int sm_min;
  int sm_max;
  Bandwidth bandwidth;
  std::string_view item;
};

/// The first row that holds the compute capability counts; the last one holds all.
constexpr std::array<NvLinkRow, 5> kNvLinks = {{
    {100, 1 << 30, tenths(401), "sm 100 and above (NVLink 5, nominal 50)"},
    {90, 99, tenths(206), "sm 90 (NVLink 4, nominal 25)"},
    {86, 86, tenths(120), "sm 86 (NVLink 3 of GA102, nominal 14)"},
    {60, 69, tenths(180), "sm 60 (NVLink 1, nominal 20)"},
    {-1, 1 << 30, tenths(200), "sm 70, 80 and others (NVLink 2 and 3, nominal 25)"},
}};

struct XgmiRow {
  std::array<std::string_view, 3> prefixes;  ///< of the architecture's name; an empty one matches nothing
  Bandwidth bandwidth;
  std::string_view item;
};

constexpr Bandwidth kXgmiOther = 24 * kGigabyte;
constexpr std::array<XgmiRow, 2> kXgmis = {{
    {{"gfx94", "gfx95", "94"}, 48 * kGigabyte, "gfx94x and gfx95x"},
    {{"gfx90a", "910", ""}, 36 * kGigabyte, "gfx90a (also written 910)"},
}};

struct PciSpeed {
  double gigatransfers;
  int code;  ///< NCCL's: with 80 times the GB/s of a lane, rounded down to what is reached
};

constexpr std::array<PciSpeed, 6> kPciSpeeds = {{{2.5, 15}, {5, 30}, {8, 60}, {16, 120}, {32, 240}, {64, 480}}};
constexpr int kPciLanesUnknown = 16;
constexpr int kPciCodeUnknown = 60;

struct CpuRow {
  std::string_view item;
  Bandwidth bandwidth;
};

enum CpuKind {
  kIntelEmerald,
  kIntelSapphire,
  kIntelSkylake,
  kIntelOlder,
  kAmd,
  kPower,
  kArm,
  kZhaoxin,
  kYongfeng,
  kAny
};
constexpr std::array<CpuRow, 10> kCpus = {{
    {"Intel from model 0xCF (Emerald Rapids)", 40 * kGigabyte},
    {"Intel from model 0x8F (Sapphire Rapids)", 22 * kGigabyte},
    {"Intel from model 0x55 (Skylake)", 10 * kGigabyte},
    {"Intel before", 6 * kGigabyte},
    {"AMD", 16 * kGigabyte},
    {"POWER", 32 * kGigabyte},
    {"Arm", 6 * kGigabyte},
    {"Zhaoxin", 6 * kGigabyte},
    {"Zhaoxin YongFeng (family 7, model 0x5B)", 9 * kGigabyte},
    {"unknown (no limit)", kDeviceBandwidth},
}};

CpuKind kind_of_intel(const Processor& cpu) {
  // Family 6 is every Xeon so far; a family that is not given is taken for it.
  if (cpu.family != 6 && cpu.family != kNone) return kIntelOlder;
  if (cpu.model >= 0xCF) return kIntelEmerald;
  if (cpu.model >= 0x8F) return kIntelSapphire;
  return cpu.model >= 0x55 ? kIntelSkylake : kIntelOlder;
}

CpuKind kind_of(const Processor& cpu) {
  if (cpu.arch == "arm64" || cpu.arch == "aarch64") return kArm;
  if (cpu.arch.starts_with("ppc64")) return kPower;
  if (cpu.vendor == "GenuineIntel") return kind_of_intel(cpu);
  if (cpu.vendor == "AuthenticAMD") return kAmd;
  if (cpu.vendor == "CentaurHauls" || cpu.vendor.find("Shanghai") != std::string::npos)
    return cpu.family == 7 && cpu.model == 0x5B ? kYongfeng : kZhaoxin;
  return kAny;
}

/// The table's code for a speed, or 0.
int pci_code(std::string_view speed) {
  while (speed.starts_with(' ')) speed.remove_prefix(1);
  double number = 0;
  const auto [end, failure] = std::from_chars(speed.data(), speed.data() + speed.size(), number);
  if (failure != std::errc{}) return 0;
  std::string_view unit(end, static_cast<std::size_t>(speed.data() + speed.size() - end));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  if (!unit.starts_with("GT/s")) return 0;
  const auto row = std::ranges::find(kPciSpeeds, number, &PciSpeed::gigatransfers);
  return row == kPciSpeeds.end() ? 0 : row->code;
}

/// NCCL's width x code / 80 GB/s, exactly.
constexpr Bandwidth pci_by_code(int lanes, int code) { return Bandwidth{lanes} * code * (kGigabyte / 80); }

}  // namespace

Bandwidth nvlink_bandwidth(int sm) {
  const auto* row =
      std::ranges::find_if(kNvLinks, [&](const NvLinkRow& r) { return sm >= r.sm_min && sm <= r.sm_max; });
  return row == kNvLinks.end() ? kNvLinks.back().bandwidth : row->bandwidth;
}

Bandwidth xgmi_bandwidth(std::string_view gcn) {
  for (const XgmiRow& row : kXgmis) {
    for (const std::string_view prefix : row.prefixes) {
      if (!prefix.empty() && gcn.starts_with(prefix)) return row.bandwidth;
    }
  }
  return kXgmiOther;
}

Bandwidth pci_bandwidth(int lanes, std::string_view speed) {
  const int code = pci_code(speed);
  return pci_by_code(lanes > 0 ? lanes : kPciLanesUnknown, code > 0 ? code : kPciCodeUnknown);
}

bool knows_pci_speed(std::string_view speed) { return pci_code(speed) > 0; }

Bandwidth c2c_bandwidth(int count, int megabytes_per_second) {
  return Bandwidth{count} * megabytes_per_second * (kGigabyte / 1000);
}

Bandwidth cpu_bandwidth(const Processor& processor) { return kCpus[kind_of(processor)].bandwidth; }

std::string to_text(const Processor& processor) {
  if (processor.vendor.empty()) return processor.arch;
  if (processor.family == kNone && processor.model == kNone) return processor.vendor;
  return fmt::format("{} {}/{}", processor.vendor, processor.family, processor.model);
}

Processor processor_from(std::string_view model) {
  if (model == "arm64" || model == "aarch64" || model.starts_with("ppc64") || model == "x86_64")
    return {.arch = std::string(model), .vendor = {}};
  Processor cpu;
  const std::size_t space = model.rfind(' ');
  const std::size_t slash = model.rfind('/');
  if (space != std::string_view::npos && slash != std::string_view::npos && slash > space) {
    std::from_chars(model.data() + space + 1, model.data() + slash, cpu.family);
    std::from_chars(model.data() + slash + 1, model.data() + model.size(), cpu.model);
    model = model.substr(0, space);
  }
  cpu.vendor = std::string(model);
  if (kind_of(cpu) != kAny) cpu.arch = "x86_64";
  return cpu;
}

std::vector<BandwidthRow> bandwidth_table() {
  std::vector<BandwidthRow> table;
  for (const NvLinkRow& row : kNvLinks)
    table.push_back({fmt::format("NVLink, per link, {}", row.item), row.bandwidth, std::string(kNccl)});
  for (const XgmiRow& row : kXgmis)
    table.push_back({fmt::format("xGMI, per link, {}", row.item), row.bandwidth, std::string(kRccl)});
  table.push_back({"xGMI, per link, others", kXgmiOther, std::string(kRccl)});
  table.push_back({"C2C, GPU to its CPU, per link", kGigabyte, "the file's own: count x bw / 1000, bw in MB/s"});
  for (const PciSpeed& row : kPciSpeeds)
    table.push_back({fmt::format("PCI, {} GT/s, x16 (other widths in proportion)", row.gigatransfers),
                     pci_by_code(16, row.code), std::string(kNccl)});
  table.push_back({"PCI, unknown speed or width: as 8 GT/s, x16", pci_by_code(kPciLanesUnknown, kPciCodeUnknown),
                   std::string(kNccl)});
  for (const CpuRow& row : kCpus)
    table.push_back({fmt::format("CPU to CPU, {}", row.item), row.bandwidth, std::string(kNccl)});
  table.push_back(
      {"network interface of unknown speed, between hosts: 10 Gbit/s", kUnknownNetworkBandwidth, std::string(kNccl)});
  table.push_back(
      {"several GPUs or ports in one PCI device, to that device (no limit)", kDeviceBandwidth, std::string(kNccl)});
  return table;
}

}  // namespace tutti::topology
