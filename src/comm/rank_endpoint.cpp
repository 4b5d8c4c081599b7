#include "comm/rank_endpoint.h"

#include "base/config.h"
#include "base/log.h"
#include "comm/interfaces.h"
#include "comm/messages.h"

#include <algorithm>
#include <utility>

namespace tutti::comm {
namespace {

constexpr std::size_t kAddressesMax = 8;

}  // namespace

Bytes encode(const RankEndpoint& endpoint) {
  WireWriter writer;
  writer.number(endpoint.port).number(endpoint.sockets).number(static_cast<std::uint8_t>(endpoint.addresses.size()));
  for (const IpAddress& address : endpoint.addresses) write_address(writer, address);
  const Bytes offer = encode(endpoint.mpi);
  return writer.number(static_cast<std::uint32_t>(offer.size())).raw(offer).take();
}

std::optional<RankEndpoint> decode_endpoint(std::span<const std::uint8_t> bytes) {
  WireReader reader(bytes);
  RankEndpoint endpoint;
  endpoint.port = reader.number<std::uint16_t>();
  endpoint.sockets = reader.number<std::uint8_t>();
  const auto count = reader.number<std::uint8_t>();
  for (int i = 0; i < count; ++i) {
    const auto address = read_address(reader);
    if (!address) return std::nullopt;
    endpoint.addresses.push_back(*address);
  }
  const auto offer = decode_offer(reader.raw(reader.number<std::uint32_t>()));
  if (!offer) return std::nullopt;
  endpoint.mpi = *offer;
  if (!reader.complete() || endpoint.sockets == 0 || endpoint.sockets > kSocketsMax) return std::nullopt;
  return endpoint;
}

std::optional<std::vector<RankEndpoint>> decode_endpoints(const Bytes& bytes, int ranks) {
  const auto list = decode_list(bytes, ranks);
  if (!list) return std::nullopt;
  std::vector<RankEndpoint> all;
  for (const Bytes& one : *list) {
    auto endpoint = decode_endpoint(one);
    if (!endpoint) return std::nullopt;
    all.push_back(std::move(*endpoint));
  }
  return all;
}

Result<MeshListener> open_mesh_listener() {
  MeshListener made;
  TUTTI_TRY_ASSIGN(const auto chosen, choose_interfaces(list_interfaces(), root_variables().socket_interfaces));
  if (chosen.empty()) {
    return error(Code::kSystem, "the ranks are on several hosts, and no network interface of this one is up");
  }
  TUTTI_TRY_ASSIGN(made.listener, listen_tcp());
  made.endpoint.port = made.listener.port;
  made.endpoint.sockets =
      static_cast<std::uint8_t>(std::min<int>(config().socket_threads * config().sockets_per_thread, kSocketsMax));
  for (const Interface& interface : chosen) {
    if (made.endpoint.addresses.size() < kAddressesMax) made.endpoint.addresses.push_back(interface.address);
  }
  made.endpoint.mpi = own_offer();
  log_info("bootstrap: other hosts reach this rank at {} (port {})", describe(chosen), made.listener.port);
  return made;
}

}  // namespace tutti::comm
