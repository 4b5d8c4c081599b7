// What a PCI device is, by its class, vendor and device numbers, and by the drivers' names below it.
#pragma once

#include "topology/hwloc_tree.h"

#include <string>

namespace tutti::topology {

/// A GPU or an accelerator to compute with; not what only draws a console.
bool is_gpu(const HwlocTree& tree, const HwlocObject& object);
/// A network adapter or a virtual function of one.
bool is_nic(const HwlocObject& object);
bool is_nv_switch(const HwlocObject& object);
/// ATI's chips for servers' consoles (Rage XL, RV100, ES1000): AMD's vendor number, and no GPU to compute with.
bool is_console_chip(const HwlocObject& object);
/// InfiniBand adapters from before their class was one of networks.
bool is_old_infiniband(const HwlocObject& object);
/// AMD's name for the architecture of its GPU (pci.ids; LLVM's AMDGPU user guide), "gfx942"; empty if it is not known.
std::string amd_architecture(const HwlocObject& object);

}  // namespace tutti::topology
