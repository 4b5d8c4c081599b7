#include "comm/unix_socket.h"

#include <fmt/format.h>

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

namespace tutti::comm {
namespace {

constexpr int kSocketType = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;

struct Address {
  sockaddr_un name = {};
  socklen_t bytes = 0;  ///< 0: no good address
};

Address parse(std::string_view address) {
  Address parsed;
  if (!address.starts_with(kUnixPrefix)) return parsed;
  address.remove_prefix(kUnixPrefix.size());
  if (address.empty() || address.size() >= sizeof(parsed.name.sun_path)) return parsed;
  parsed.name.sun_family = AF_UNIX;
  std::memcpy(parsed.name.sun_path + 1, address.data(), address.size());
  parsed.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + address.size());
  return parsed;
}

PrivateDescriptor open_socket() {
  return PrivateDescriptor::open([] { return socket(AF_UNIX, kSocketType, 0); });
}

}  // namespace

Result<PrivateDescriptor> listen_unix(std::string_view address) {
  const Address parsed = parse(address);
  if (parsed.bytes == 0) return error(Code::kInternal, fmt::format("{} is no address to listen at", address));
  PrivateDescriptor made = open_socket();
  if (!made) return system_error("open a Unix socket");
  if (bind(made.get(), reinterpret_cast<const sockaddr*>(&parsed.name), parsed.bytes) != 0 ||
      listen(made.get(), SOMAXCONN) != 0) {
    return system_error(fmt::format("listen at {}", address));
  }
  return made;
}

PrivateDescriptor connect_unix(std::string_view address) {
  const Address parsed = parse(address);
  errno = EINVAL;
  if (parsed.bytes == 0) return {};
  PrivateDescriptor made = open_socket();
  if (!made) return made;
  int status = 0;
  do {
    status = connect(made.get(), reinterpret_cast<const sockaddr*>(&parsed.name), parsed.bytes);
  } while (status != 0 && errno == EINTR);
  if (status != 0) made.reset();
  return made;
}

bool is_unix(int socket) {
  int family = 0;
  socklen_t bytes = sizeof(family);
  return getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &family, &bytes) == 0 && family == AF_UNIX;
}

std::int32_t peer_process(int socket) {
  ucred facts = {};
  socklen_t bytes = sizeof(facts);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &facts, &bytes) != 0) return 0;
  return facts.pid;
}

}  // namespace tutti::comm
