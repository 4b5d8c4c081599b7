#include "comm/tcp_socket.h"

#include <fmt/format.h>

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string_view>

namespace tutti::comm {
namespace {

PrivateDescriptor open_socket(int family) {
  return PrivateDescriptor::open([family] { return socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
}

void set(int socket, int level, int option, int value) {
  (void)setsockopt(socket, level, option, &value, sizeof(value));
}

std::string congestion_control(int socket) {
  constexpr std::size_t kNameMax = 16;
  char name[kNameMax] = {};
  socklen_t bytes = sizeof(name);
  if (getsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name, &bytes) != 0) return "";
  return std::string(name, strnlen(name, bytes));
}

void set_congestion_control(int socket, std::string_view name) {
  (void)setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name.data(), static_cast<socklen_t>(name.size()));
}

/// Others have no timer for each packet, and some settle at the first packet what they do.
bool paces(std::string_view congestion_control) { return congestion_control.starts_with("bbr"); }

void set_pacing(int socket, Pacing pacing) {
  if (pacing == Pacing::kNone && paces(congestion_control(socket))) set_congestion_control(socket, "reno");
}

std::uint16_t port_of(const sockaddr_storage& address) {
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

/// A port of this host at which nobody listens may be the one that the system has just chosen for this socket.
bool is_connected_with_itself(int socket) {
  sockaddr_storage own = {};
  sockaddr_storage other = {};
  socklen_t own_bytes = sizeof(own);
  socklen_t other_bytes = sizeof(other);
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&own), &own_bytes) != 0) return false;
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&other), &other_bytes) != 0) return false;
  const auto here = from_kernel(reinterpret_cast<const sockaddr*>(&own));
  return here && here == from_kernel(reinterpret_cast<const sockaddr*>(&other)) && port_of(own) == port_of(other);
}

}  // namespace

Result<TcpListener> listen_tcp(std::uint16_t port, Pacing pacing) {
  const std::string what = port == 0 ? "find a free TCP port (net.ipv4.ip_local_port_range says which there are)"
                                     : fmt::format("bind TCP port {}", port);
  for (const bool v6 : {true, false}) {
    TcpListener made;
    made.socket = open_socket(v6 ? AF_INET6 : AF_INET);
    if (!made.socket && v6) continue;
    if (!made.socket) return system_error("open a TCP socket");
    const int fd = made.socket.get();
    if (v6) set(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    set_pacing(fd, pacing);
    sockaddr_storage address;
    IpAddress any;
    any.v6 = v6;
    const socklen_t bytes = to_kernel(any, port, address);
    if (bind(fd, reinterpret_cast<const sockaddr*>(&address), bytes) != 0) {
      if (v6 && errno != EADDRINUSE && errno != EACCES) continue;
      return system_error(what);
    }
    if (listen(fd, SOMAXCONN) != 0) return system_error(fmt::format("listen at TCP port {}", port));
    socklen_t length = sizeof(address);
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return system_error("getsockname");
    made.port = port_of(address);
    return made;
  }
  return system_error(what);
}

PrivateDescriptor connect_tcp(const IpAddress& address, std::uint16_t port, Pacing pacing) {
  PrivateDescriptor made = open_socket(address.v6 ? AF_INET6 : AF_INET);
  if (!made) return made;
  set_pacing(made.get(), pacing);
  sockaddr_storage where;
  const socklen_t bytes = to_kernel(address, port, where);
  if (connect(made.get(), reinterpret_cast<const sockaddr*>(&where), bytes) != 0 && errno != EINPROGRESS &&
      errno != EINTR) {
    made.reset();
  }
  return made;
}

int connect_result(int socket) {
  int failure = 0;
  socklen_t bytes = sizeof(failure);
  if (getsockopt(socket, SOL_SOCKET, SO_ERROR, &failure, &bytes) != 0) return errno;
  return failure == 0 && is_connected_with_itself(socket) ? ECONNREFUSED : failure;
}

const char* connect_problem(int failure) {
  if (failure != EADDRNOTAVAIL) return strerror(failure);
  return "Cannot assign requested address (this host has none of that family, or no port is left: "
         "net.ipv4.ip_local_port_range)";
}

PrivateDescriptor accept_connection(int listener) {
  return PrivateDescriptor::open(
      [listener] { return accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC); });
}

std::string peer_address(int socket) {
  sockaddr_storage address = {};
  socklen_t bytes = sizeof(address);
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return "?";
  const auto found = from_kernel(reinterpret_cast<const sockaddr*>(&address));
  return found ? found->text(port_of(address)) : "?";
}

std::optional<IpAddress> peer_ip(int socket) {
  sockaddr_storage address = {};
  socklen_t bytes = sizeof(address);
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return std::nullopt;
  return from_kernel(reinterpret_cast<const sockaddr*>(&address));
}

void send_at_once(int socket) { set(socket, IPPROTO_TCP, TCP_NODELAY, 1); }

void pace_by_system(int socket) {
  // A socket that is new has what the system has for all.
  const PrivateDescriptor fresh = open_socket(AF_INET);
  if (!fresh) return;
  if (const std::string name = congestion_control(fresh.get()); paces(name)) set_congestion_control(socket, name);
}

std::optional<std::uint32_t> round_trip_us(int socket) {
  tcp_info info = {};
  socklen_t bytes = sizeof(info);
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return std::nullopt;
  const bool is_told = bytes >= offsetof(tcp_info, tcpi_min_rtt) + sizeof(info.tcpi_min_rtt);
  if (!is_told || info.tcpi_min_rtt == 0 || info.tcpi_min_rtt == ~std::uint32_t{0}) return std::nullopt;
  return info.tcpi_min_rtt;
}

}  // namespace tutti::comm
