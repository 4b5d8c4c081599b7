#include "comm/ip_address.h"

#include <fmt/format.h>

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

namespace tutti::comm {

std::string IpAddress::text() const {
  char out[INET6_ADDRSTRLEN] = {};
  if (inet_ntop(v6 ? AF_INET6 : AF_INET, bytes.data(), out, sizeof(out)) == nullptr) return "?";
  return out;
}

std::string IpAddress::text(std::uint16_t port) const {
  return v6 ? fmt::format("[{}]:{}", text(), port) : fmt::format("{}:{}", text(), port);
}

void write_address(WireWriter& writer, const IpAddress& address) {
  writer.number(static_cast<std::uint8_t>(address.size()));
  writer.raw({address.bytes.data(), address.size()});
}

std::optional<IpAddress> read_address(WireReader& reader) {
  const auto size = reader.number<std::uint8_t>();
  if (size != 4 && size != 16) return std::nullopt;
  IpAddress address;
  address.v6 = size == 16;
  const auto part = reader.raw(size);
  if (!reader.ok()) return std::nullopt;
  std::copy(part.begin(), part.end(), address.bytes.begin());
  return address;
}

std::optional<IpAddress> from_kernel(const sockaddr* address) {
  IpAddress found;
  if (address == nullptr) return std::nullopt;
  if (address->sa_family == AF_INET) {
    std::memcpy(found.bytes.data(), &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, 4);
    return found;
  }
  if (address->sa_family != AF_INET6) return std::nullopt;
  const auto& six = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  if (IN6_IS_ADDR_V4MAPPED(&six)) {
    std::memcpy(found.bytes.data(), six.s6_addr + 12, 4);
    return found;
  }
  found.v6 = true;
  std::memcpy(found.bytes.data(), six.s6_addr, 16);
  return found;
}

socklen_t to_kernel(const IpAddress& address, std::uint16_t port, sockaddr_storage& out) {
  out = {};
  if (address.v6) {
    auto& six = reinterpret_cast<sockaddr_in6&>(out);
    six.sin6_family = AF_INET6;
    six.sin6_port = htons(port);
    std::memcpy(six.sin6_addr.s6_addr, address.bytes.data(), 16);
    return sizeof(six);
  }
  auto& four = reinterpret_cast<sockaddr_in&>(out);
  four.sin_family = AF_INET;
  four.sin_port = htons(port);
  std::memcpy(&four.sin_addr, address.bytes.data(), 4);
  return sizeof(four);
}

}  // namespace tutti::comm
