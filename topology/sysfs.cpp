#include "topology/sysfs.h"

#include "topology/bandwidths.h"
#include "topology/text_words.h"

#include <fmt/format.h>

#include <fstream>

namespace tutti::topology {

namespace {

constexpr Bandwidth kGigabit = kGigabyte / 8;
constexpr double kGigabitsMax = 1e6;

/// "100 Gb/sec (4X EDR)"; what is no such number is 0.
Bandwidth from_gigabits(const std::string& text) {
  const double gigabits = decimal_in(text);
  return gigabits > 0 && gigabits <= kGigabitsMax ? static_cast<Bandwidth>(gigabits * kGigabit) : 0;
}

}  // namespace

std::string Sysfs::line_of(const std::string& path) const {
  std::ifstream file(root_ + path);
  std::string line;
  std::getline(file, line);
  return line;
}

Sysfs::PciLink Sysfs::pci_link(const std::string& address) const {
  const std::string folder = "/sys/bus/pci/devices/" + address;
  const std::string speed = line_of(folder + "/max_link_speed");
  const int lanes = number_in(line_of(folder + "/max_link_width"));
  constexpr int kLanesMax = 32;  // a device without a link says 255
  if (!knows_pci_speed(speed) || lanes < 1 || lanes > kLanesMax) return {};
  return {pci_bandwidth(lanes, speed), lanes};
}

Sysfs::Rate Sysfs::fabric_rate(const std::string& device) const {
  constexpr int kPortsMax = 16;
  Rate rate;
  for (int port = 1; port <= kPortsMax; ++port) {
    const std::string folder = fmt::format("/sys/class/infiniband/{}/ports/{}", device, port);
    const std::string text = line_of(folder + "/rate");
    if (text.empty()) break;
    ++rate.ports;
    const std::string state = line_of(folder + "/state");  // "4: ACTIVE"
    if (state.empty() || state.find("ACTIVE") != std::string::npos) rate.bandwidth += from_gigabits(text);
  }
  return rate;
}

Sysfs::Rate Sysfs::network_rate(const std::string& interface) const {
  const int megabits = number_in(line_of(fmt::format("/sys/class/net/{}/speed", interface)));  // -1: down
  return {megabits > 0 ? megabits * (kGigabit / 1000) : 0, 1};
}

}  // namespace tutti::topology
