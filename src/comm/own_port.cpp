#include "comm/own_port.h"

#include "base/config.h"
#include "base/descriptor.h"
#include "comm/interfaces.h"

#include <fmt/format.h>

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <optional>

namespace tutti::comm {
namespace {

using NameOf = int (*)(int, sockaddr*, socklen_t*);

std::optional<IpAddress> address_of(int socket, NameOf name_of) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  if (name_of(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return std::nullopt;
  return from_kernel(reinterpret_cast<const sockaddr*>(&address));
}

/// 0: the file is not there, or says -1, as interfaces do that are down or have no wire.
int megabits_in(const std::string& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char text[32];
  ssize_t got = -1;
  do {
    got = file ? read(file.get(), text, sizeof(text)) : -1;
  } while (got < 0 && errno == EINTR);
  int megabits = 0;
  if (got > 0) std::from_chars(text, text + got, megabits);
  return std::max(0, megabits);
}

}  // namespace

Port port_of(int socket, const std::string& root) {
  const auto here = address_of(socket, getsockname);
  const auto there = address_of(socket, getpeername);
  if (!here || !there) return {};
  const std::vector<Interface> interfaces = list_interfaces();
  const auto with = [&](const IpAddress& address) {
    return std::ranges::find(interfaces, address, &Interface::address);
  };
  const auto own = with(*here);
  if (own == interfaces.end()) return {};
  Port port{own->name, 0, own->loopback || with(*there) != interfaces.end()};
  if (!port.loopback) port.megabits = megabits_in(fmt::format("{}/sys/class/net/{}/speed", root, port.interface));
  return port;
}

Port port_to_others(const BootstrapResult& found, int rank) {
  for (std::size_t peer = 0; peer < found.sockets.size(); ++peer) {
    if (found.peers[peer].host != found.peers[static_cast<std::size_t>(rank)].host)
      return port_of(found.sockets[peer].watch.get(), config().hwloc_root);
  }
  return {};
}

}  // namespace tutti::comm
