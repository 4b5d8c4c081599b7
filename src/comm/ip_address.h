// IP addresses as the bootstrap carries them: 4 or 16 bytes, and a port beside them.
#pragma once

#include "comm/wire.h"

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <sys/socket.h>

namespace tutti::comm {

struct IpAddress {
  bool v6 = false;
  std::array<std::uint8_t, 16> bytes = {};  ///< the first 4 of an IPv4 address

  std::size_t size() const { return v6 ? 16 : 4; }
  /// "10.0.0.1", "fd00::1"
  std::string text() const;
  /// With the port: "10.0.0.1:4711", "[fd00::1]:4711".
  std::string text(std::uint16_t port) const;

  friend auto operator<=>(const IpAddress&, const IpAddress&) = default;
};

/// A size byte and the bytes.
void write_address(WireWriter& writer, const IpAddress& address);
/// Nothing if neither 4 nor 16 bytes follow.
std::optional<IpAddress> read_address(WireReader& reader);

/// Of a kernel's socket address; nothing for other families.
std::optional<IpAddress> from_kernel(const sockaddr* address);
/// The kernel's form, and how long it is.
socklen_t to_kernel(const IpAddress& address, std::uint16_t port, sockaddr_storage& out);

}  // namespace tutti::comm
