#include "topology/device_kinds.h"

#include <algorithm>
#include <array>

namespace tutti::topology {

using Kind = HwlocObject::Kind;
using OsKind = HwlocObject::OsKind;

namespace {
constexpr unsigned kNvidia = 0x10de, kAmd = 0x1002;
}  // namespace

bool is_nv_switch(const HwlocObject& object) {
  constexpr unsigned kOtherBridge = 0x0680;
  return object.kind == Kind::kPci &&
         (object.subtype == "NVSwitch" || (object.vendor == kNvidia && object.pci_class == kOtherBridge));
}

bool is_console_chip(const HwlocObject& object) {
  constexpr std::array<unsigned, 5> kChips = {0x4752, 0x4754, 0x5159, 0x515e, 0x5969};
  return object.vendor == kAmd && std::ranges::find(kChips, object.device) != kChips.end();
}

bool is_gpu(const HwlocTree& tree, const HwlocObject& object) {
  constexpr unsigned kVga = 0x0300, kDisplay = 0x03, kAccelerator = 0x12;
  // Emulated displays of virtual machines: virtio, VMware, Bochs, Red Hat (QXL), Hyper-V, VirtualBox.
  constexpr std::array<unsigned, 6> kEmulated = {0x1af4, 0x15ad, 0x1234, 0x1b36, 0x1414, 0x80ee};
  if (object.kind != Kind::kPci) return false;
  const auto computes = [&](int child) {
    return tree.objects[static_cast<std::size_t>(child)].os_kind == OsKind::kGpu;
  };
  if (std::ranges::any_of(object.children, computes)) return true;
  if (object.pci_class >> 8 == kAccelerator) return true;
  if (object.pci_class >> 8 != kDisplay) return false;
  if (object.vendor == kNvidia) return true;
  if (object.vendor == kAmd) return !is_console_chip(object);
  // What else calls itself VGA is a console chip (ASPEED, Matrox) or a desktop processor's own graphics.
  return object.pci_class != kVga && std::ranges::find(kEmulated, object.vendor) == kEmulated.end();
}

bool is_nic(const HwlocObject& object) {
  constexpr unsigned kNetwork = 0x02;
  return object.kind == Kind::kPci && object.pci_class >> 8 == kNetwork;
}

bool is_old_infiniband(const HwlocObject& object) {
  constexpr unsigned kSerialInfiniBand = 0x0c06;
  return object.kind == Kind::kPci && object.pci_class == kSerialInfiniBand;
}

std::string amd_architecture(const HwlocObject& object) {
  struct Row {
    unsigned first, last;
    const char* name;
  };
  constexpr std::array<Row, 5> kRows = {{{0x66a0, 0x66af, "gfx906"},
                                         {0x738c, 0x738e, "gfx908"},
                                         {0x7408, 0x7410, "gfx90a"},
                                         {0x74a0, 0x74bd, "gfx942"},
                                         {0x75a0, 0x75b3, "gfx950"}}};
  for (const Row& row : kRows) {
    if (object.vendor == kAmd && object.device >= row.first && object.device <= row.last) return row.name;
  }
  return "";
}

}  // namespace tutti::topology
