#include "comm/tcp_socket.h"

#include <fmt/format.h>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>

namespace tutti::comm {
namespace {

PrivateDescriptor open_socket(int family) {
  return PrivateDescriptor::open([family] { return socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
}

void set(int socket, int level, int option, int value) {
  (void)setsockopt(socket, level, option, &value, sizeof(value));
}

std::uint16_t port_of(const sockaddr_storage& address) {
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

}  // namespace

Result<TcpListener> listen_tcp(std::uint16_t port) {
  for (const bool v6 : {true, false}) {
    TcpListener made;
    made.socket = open_socket(v6 ? AF_INET6 : AF_INET);
    if (!made.socket && v6) continue;
    if (!made.socket) return system_error("open a TCP socket");
    const int fd = made.socket.get();
    if (v6) set(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    sockaddr_storage address;
    IpAddress any;
    any.v6 = v6;
    const socklen_t bytes = to_kernel(any, port, address);
    if (bind(fd, reinterpret_cast<const sockaddr*>(&address), bytes) != 0) {
      if (v6 && errno != EADDRINUSE && errno != EACCES) continue;
      return system_error(fmt::format("bind TCP port {}", port));
    }
    if (listen(fd, SOMAXCONN) != 0) return system_error(fmt::format("listen at TCP port {}", port));
    socklen_t length = sizeof(address);
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return system_error("getsockname");
    made.port = port_of(address);
    return made;
  }
  return system_error(fmt::format("bind TCP port {}", port));
}

PrivateDescriptor connect_tcp(const IpAddress& address, std::uint16_t port) {
  PrivateDescriptor made = open_socket(address.v6 ? AF_INET6 : AF_INET);
  if (!made) return made;
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
  return failure;
}

PrivateDescriptor accept_tcp(int listener) {
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

void send_at_once(int socket) { set(socket, IPPROTO_TCP, TCP_NODELAY, 1); }

}  // namespace tutti::comm
