// ListenPlace: where somebody listens, as it travels to those who are to connect.
#pragma once

#include "comm/ip_address.h"
#include "comm/private_descriptor.h"
#include "comm/wire.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tutti::comm {

struct ListenPlace {
  std::uint16_t port = 0;
  std::vector<IpAddress> addresses;  ///< to be tried in this order
  std::uint8_t abreast = 1;  ///< the first so many are as good as each other: sockets, and ranks, take them by turns
  std::string unix_name;     ///< in place of both, on one machine: "unix:@tutti-..."

  /// How many there are to connect.
  std::size_t ways() const { return unix_name.empty() ? addresses.size() : 1; }
  /// Starts to connect: writable, or in error, when that is over (connect_result). Empty and errno if it cannot even start. By TCP with
  /// Pacing::kNone.
  PrivateDescriptor connect(std::size_t way) const;
  std::string text(std::size_t way) const;
};

void write_place(WireWriter& writer, const ListenPlace& place);
/// Nothing for what is none.
std::optional<ListenPlace> read_place(WireReader& reader);

}  // namespace tutti::comm
