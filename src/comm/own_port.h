// The network interface by which a rank reaches other hosts.
#pragma once

#include "comm/bootstrap.h"
#include "comm/machine_board.h"

#include <string>

namespace tutti::comm {

/// Of a connected TCP socket. `root` comes before /sys (HWLOC_FSROOT): "" for this machine. Its speed is what the kernel says of the
/// interface. Where the other end is an address of this machine too, bytes go by its loopback whatever interface has the address.
/// Empty if the socket is none, or no interface has its address.
Port port_of(int socket, const std::string& root);

/// By which this rank reaches the first one on another host; empty if there is none.
Port port_to_others(const BootstrapResult& found, int rank);

}  // namespace tutti::comm
