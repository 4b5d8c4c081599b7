// What Linux says of links and hwloc does not pass on: /sys, below a root that tests can put elsewhere.
#pragma once

#include "topology/graph.h"

#include <string>

namespace tutti::topology {

class Sysfs {
 public:
  /// `root` comes before /sys: "" for this machine, or where a snapshot of hwloc-gather-topology lies.
  explicit Sysfs(std::string root) : root_(std::move(root)) {}

  struct PciLink {
    Bandwidth bandwidth = 0;  ///< 0: unknown
    int lanes = 0;
  };
  /// The best that the device at "0000:07:00.0" and its port can do: what it does at the moment may be less, as idle
  /// devices slow their links down.
  PciLink pci_link(const std::string& address) const;

  struct Rate {
    Bandwidth bandwidth = 0;  ///< 0: unknown or down
    int ports = 0;
  };
  /// Of all ports of "mlx5_0" that are up.
  Rate fabric_rate(const std::string& device) const;
  /// Of "eth0".
  Rate network_rate(const std::string& interface) const;

 private:
  /// The first line; empty if it cannot be read.
  std::string line_of(const std::string& path) const;

  std::string root_;
};

}  // namespace tutti::topology
