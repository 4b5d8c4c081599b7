#include "comm/own_port.h"

#include "base/config.h"
#include "comm/interfaces.h"
#include "comm/system_file.h"

#include <fmt/format.h>

#include <sys/socket.h>

#include <algorithm>
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

}  // namespace

Port port_of(int socket, const std::string& root) {
  const auto here = address_of(socket, getsockname);
  const auto there = address_of(socket, getpeername);
  if (!here || !there) return {};
  const auto all = list_interfaces();
  if (!all.ok()) return {};
  const std::vector<Interface>& interfaces = all.value();
  const auto with = [&](const IpAddress& address) {
    return std::ranges::find(interfaces, address, &Interface::address);
  };
  const auto own = with(*here);
  if (own == interfaces.end()) return {};
  Port port{own->name, 0, own->loopback || with(*there) != interfaces.end()};
  // -1 of interfaces that are down or have no wire.
  const std::string speed = fmt::format("{}/sys/class/net/{}/speed", root, port.interface);
  if (!port.loopback) port.megabits = std::max(0, number_in(speed).value_or(0));
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
