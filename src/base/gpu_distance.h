// What lies between two GPUs, as NCCL_P2P_LEVEL and nvidia-smi name it, nearest first.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tutti {

enum class GpuDistance : std::uint8_t {
  kSame,      ///< LOC: they are one
  kNvLink,    ///< NVL: NVLink or xGMI, between them or to one switch
  kSwitch,    ///< PIX: one PCI switch
  kSwitches,  ///< PXB: several
  kHost,      ///< PHB: a host bridge, or the NUMA node of both
  kSystem,    ///< SYS: several NUMA nodes; or nothing that is known
};

constexpr std::string_view name_of(GpuDistance distance) {
  constexpr std::array<std::string_view, 6> kNames = {"LOC", "NVL", "PIX", "PXB", "PHB", "SYS"};
  return kNames[static_cast<std::size_t>(distance)];
}

}  // namespace tutti
