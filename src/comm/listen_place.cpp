#include "comm/listen_place.h"

#include "comm/tcp_socket.h"
#include "comm/unix_socket.h"

#include <algorithm>

namespace tutti::comm {
namespace {

/// Of a Unix socket's name, by the kernel.
constexpr std::size_t kNameBytesMax = 108;

}  // namespace

PrivateDescriptor ListenPlace::connect(std::size_t way) const {
  return unix_name.empty() ? connect_tcp(addresses[way], port, Pacing::kNone) : connect_unix(unix_name);
}

std::string ListenPlace::text(std::size_t way) const {
  return unix_name.empty() ? addresses[way].text(port) : unix_name;
}

void write_place(WireWriter& writer, const ListenPlace& place) {
  writer.number(place.port).number(static_cast<std::uint8_t>(place.addresses.size()));
  for (const IpAddress& address : place.addresses) write_address(writer, address);
  writer.number(place.abreast);
  writer.text(place.unix_name);
}

std::optional<ListenPlace> read_place(WireReader& reader) {
  ListenPlace place;
  place.port = reader.number<std::uint16_t>();
  const auto count = reader.number<std::uint8_t>();
  for (int i = 0; i < count; ++i) {
    const auto address = read_address(reader);
    if (!address) return std::nullopt;
    place.addresses.push_back(*address);
  }
  place.abreast = reader.number<std::uint8_t>();
  if (place.abreast < 1 || place.abreast > std::max<std::size_t>(place.addresses.size(), 1)) return std::nullopt;
  place.unix_name = reader.text(kNameBytesMax);
  if (!reader.ok()) return std::nullopt;
  return place;
}

}  // namespace tutti::comm
