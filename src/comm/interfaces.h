// Which of this host's addresses other hosts are told: the rules of NCCL_SOCKET_IFNAME and NCCL_SOCKET_FAMILY.
#pragma once

#include "base/result.h"
#include "comm/ip_address.h"

#include <string>
#include <string_view>
#include <vector>

namespace tutti::comm {

struct Interface {
  std::string name;
  IpAddress address;
  bool loopback = false;
  bool running = true;  ///< there is a carrier
};

/// All that are up, an entry per address, in the kernel's order. Link-local IPv6 addresses are left out: they mean nothing
/// without the interface, which has another number on the other host. kSystem: the system does not tell.
Result<std::vector<Interface>> list_interfaces();

/// Those that `rule` admits: "eth,ib" names prefixes, "=eth0" whole names, "^" in front leaves out those listed ("^docker",
/// "^=eth1"). IPv4 addresses first, loopback last. "": all but loopback, docker and virbr ones; if that leaves none, whatever there is.
/// `family`: "af_inet" leaves IPv4 addresses, "af_inet6" IPv6 ones, "" both. kInvalidUsage if a rule or family that was given admits
/// none: the message lists what there is.
Result<std::vector<Interface>> choose_interfaces(const std::vector<Interface>& all, std::string_view rule,
                                                 std::string_view family = {});

/// "eth0 10.0.0.1, lo 127.0.0.1", or "none"
std::string describe(const std::vector<Interface>& interfaces);

}  // namespace tutti::comm
