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

/// Who decides how fast a connection sends. A congestion control that paces (BBR) sets a timer for each packet, and goes on doing so when
/// another one takes its place: whether there is one has to be said before there is a connection.
enum class Pacing {
  kBySystem,  ///< the congestion control that the system has for all
  kNone,      ///< Reno, which every system has and allows; pace_by_system() afterwards where bytes go by a network
};

/// At every address of this host, IPv6 and IPv4 where there is IPv6. Port 0: one that is free. `pacing`: of the connections that come.
Result<TcpListener> listen_tcp(std::uint16_t port = 0, Pacing pacing = Pacing::kBySystem);

/// Starts to connect: writable, or in error, when that is over (connect_result). Empty and errno if it cannot even start.
PrivateDescriptor connect_tcp(const IpAddress& address, std::uint16_t port, Pacing pacing = Pacing::kBySystem);
/// 0, or the errno of what went wrong.
int connect_result(int socket);
/// The system's words for such an errno, or where they do not say what it means here, others.
const char* connect_problem(int failure);

/// At a listener of either kind. Empty and errno as from accept4.
PrivateDescriptor accept_connection(int listener);

/// "10.0.0.1:4711" of the other side, "?" if it is gone.
std::string peer_address(int socket);
/// Of the other side; nothing for a Unix socket, or if it is gone.
std::optional<IpAddress> peer_ip(int socket);

/// Small messages go at once.
void send_at_once(int socket);

/// Of a connection that was made with Pacing::kNone.
void pace_by_system(int socket);
/// The shortest so far, in microseconds; nothing: it is not known.
std::optional<std::uint32_t> round_trip_us(int socket);

}  // namespace tutti::comm
