#include "comm/named_root.h"

#include "base/config.h"
#include "base/digest.h"
#include "base/log.h"
#include "comm/long_wait.h"
#include "comm/patience.h"
#include "comm/tcp_socket.h"

#include <fmt/format.h>

#include <netdb.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

namespace tutti::comm {
namespace {

/// Between two attempts to take the port.
constexpr int kRetryMs = 20;
constexpr unsigned kLastPort = 65535;

struct Named {
  std::string host;
  std::uint16_t port = 0;
};

Error malformed(const NamedRoot& root) {
  return error(
      Code::kInvalidUsage,
      fmt::format("{}: \"{}\" is not address:port, such as 10.0.0.1:4711 or [fd00::1]:4711", root.from, root.place));
}

Result<Named> parse(const NamedRoot& root) {
  const std::string& text = root.place;
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return malformed(root);
  Named named;
  named.host = text.substr(0, colon);
  if (named.host.front() == '[' && named.host.back() == ']') named.host = named.host.substr(1, named.host.size() - 2);
  const char* const end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data() + colon + 1, end, named.port);
  if (failure != std::errc() || stop != end || named.port == 0 || named.host.empty()) return malformed(root);
  const unsigned port = unsigned{named.port} + root.port_offset;
  if (port > kLastPort) {
    return error(Code::kInvalidUsage, fmt::format("{}: \"{}\": {} ports on from there is behind the last one, {}",
                                                  root.from, root.place, root.port_offset, kLastPort));
  }
  named.port = static_cast<std::uint16_t>(port);
  return named;
}

/// Not used: it is nothing without the interface, which differs from host to host.
bool is_link_local(const sockaddr* address) {
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

/// All addresses that the name has, in the order in which the system would try them.
Result<std::vector<IpAddress>> resolve(const Named& named, const NamedRoot& root, std::string_view family) {
  addrinfo hints = {};
  if (!family.empty()) hints.ai_family = family == "af_inet6" ? AF_INET6 : AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* first = nullptr;
  const int failure = getaddrinfo(named.host.c_str(), nullptr, &hints, &first);
  if (failure != 0) {
    return error(Code::kInvalidUsage,
                 fmt::format("{} names the host {}: {}", root.from, named.host, gai_strerror(failure)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> all(first, freeaddrinfo);
  std::vector<IpAddress> found;
  for (const addrinfo* entry = first; entry != nullptr; entry = entry->ai_next) {
    const auto address = from_kernel(entry->ai_addr);
    if (address && !is_link_local(entry->ai_addr) && std::ranges::find(found, *address) == found.end())
      found.push_back(*address);
  }
  if (found.empty())
    return error(Code::kInvalidUsage, fmt::format("{}: {} has no IP address, or a link-local one, which is not used",
                                                  root.from, named.host));
  return found;
}

void tell_unauthenticated() {
  static std::atomic<bool> told{false};
  if (told.exchange(true)) return;
  log_warn(
      "bootstrap: the root's address is given without TUTTI_SECRET: the bootstrap is unauthenticated, whoever reaches "
      "the port can take part; give all ranks the same TUTTI_SECRET");
}

}  // namespace

Result<UniqueId> named_id() {
  NamedRoot root;
  root.place = root_variables().comm_id;
  root.from = "NCCL_COMM_ID";
  return make_named_id(root);
}

Result<UniqueId> make_named_id(const NamedRoot& root) {
  const RootVariables variables = root_variables();
  TUTTI_TRY_ASSIGN(const Named named, parse(root));
  TUTTI_TRY_ASSIGN(const auto addresses, resolve(named, root, variables.socket_family));
  if (variables.secret.empty()) tell_unauthenticated();
  UniqueId id;
  id.magic = kUniqueIdMagic;
  id.version = kProtocolVersion;
  id.named = 1;
  id.port = named.port;
  for (const IpAddress& address : addresses) add_candidate(id, address);
  const std::string label = "tutti named root " + root.label;
  const auto as_bytes = [](std::string_view text) {
    return std::span(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
  };
  const Digest key = hmac_sha256(as_bytes(variables.secret), as_bytes(label));
  static_assert(sizeof(key) == sizeof(id.secret));
  std::ranges::copy(key, id.secret);
  return id;
}

Result<PrivateDescriptor> listen_named(const UniqueId& id, const Patience& patience) {
  LongWait wait;
  for (;;) {
    auto listener = listen_tcp(id.port);
    if (listener.ok()) return std::move(listener.value().socket);
    const bool is_taken = errno == EADDRINUSE;
    if (const int seconds = wait.is_due())
      log_warn("bootstrap: rank 0 has waited for {} s to listen at {}: {}", seconds, describe(id),
               listener.error().message);
    if (!is_taken || patience.nap(kRetryMs) != Patience::Outcome::kReady) {
      return error(Code::kSystem, fmt::format("rank 0 cannot listen at {}, which it was told to: {}", describe(id),
                                              listener.error().message));
    }
  }
}

}  // namespace tutti::comm
