// TCP sockets: non-blocking and close-on-exec, like all sockets here.
#pragma once

#include "base/result.h"
#include "comm/ip_address.h"
#include "comm/private_descriptor.h"

#include <cstdint>
#include <optional>

namespace tutti::comm {

struct TcpListener {
  PrivateDescriptor socket;
  std::uint16_t port = 0;
};

/// At every address of this host, IPv6 and IPv4 where there is IPv6. Port 0: one that is free.
Result<TcpListener> listen_tcp(std::uint16_t port = 0);

/// Starts to connect: writable, or in error, when that is over (connect_result). Empty and errno if it cannot even start.
PrivateDescriptor connect_tcp(const IpAddress& address, std::uint16_t port);
/// 0, or the errno of what went wrong.
int connect_result(int socket);

/// Empty and errno as from accept4.
PrivateDescriptor accept_tcp(int listener);

/// "10.0.0.1:4711" of the other side, "?" if it is gone.
std::string peer_address(int socket);

/// Small messages go at once.
void send_at_once(int socket);

}  // namespace tutti::comm
