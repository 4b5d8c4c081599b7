#include "comm/rank_endpoint.h"

#include "base/config.h"
#include "base/log.h"
#include "comm/messages.h"
#include "comm/nics.h"

#include <algorithm>
#include <map>
#include <utility>

namespace tutti::comm {
namespace {

constexpr std::size_t kAddressesMax = 8;

}  // namespace

Bytes encode(const RankEndpoint& endpoint) {
  WireWriter writer;
  writer.number(endpoint.sockets);
  write_place(writer, endpoint);
  const Bytes offer = encode(endpoint.mpi);
  return writer.number(static_cast<std::uint32_t>(offer.size())).raw(offer).take();
}

std::optional<RankEndpoint> decode_endpoint(std::span<const std::uint8_t> bytes) {
  WireReader reader(bytes);
  RankEndpoint endpoint;
  endpoint.sockets = reader.number<std::uint8_t>();
  auto place = read_place(reader);
  if (!place) return std::nullopt;
  static_cast<ListenPlace&>(endpoint) = *std::move(place);
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

Result<std::vector<Interface>> interfaces_for_others() {
  const RootVariables variables = root_variables();
  TUTTI_TRY_ASSIGN(const auto all, list_interfaces());
  TUTTI_TRY_ASSIGN(const auto chosen, choose_interfaces(all, variables.socket_interfaces, variables.socket_family));
  if (chosen.empty()) {
    return error(Code::kSystem, "other hosts' ranks are to reach this one, and no network interface of its host is up");
  }
  return chosen;
}

Result<OpenPlace> open_place(const std::vector<Interface>& told) {
  OpenPlace made;
  TUTTI_TRY_ASSIGN(made.listener, listen_tcp(0, Pacing::kNone));
  made.place.port = made.listener.port;
  for (const Interface& interface : told) {
    if (made.place.addresses.size() < kAddressesMax) made.place.addresses.push_back(interface.address);
  }
  if (!told.empty())
    log_info("bootstrap: other hosts reach this rank at {} (port {})", describe(told), made.listener.port);
  return made;
}

Result<MeshListener> open_mesh_listener() {
  TUTTI_TRY_ASSIGN(const auto chosen, interfaces_for_others());
  const ToldInterfaces told = in_order(chosen, look_at_nics(config().hwloc_root, chosen));
  TUTTI_TRY_ASSIGN(OpenPlace open, open_place(told.interfaces));
  open.place.abreast = static_cast<std::uint8_t>(std::min(told.abreast, open.place.addresses.size()));
  MeshListener made{std::move(open.listener), {}};
  static_cast<ListenPlace&>(made.endpoint) = std::move(open.place);
  made.endpoint.sockets =
      static_cast<std::uint8_t>(std::min<int>(config().socket_threads * config().sockets_per_thread, kSocketsMax));
  made.endpoint.mpi = own_offer();
  return made;
}

void take_turns(std::vector<RankEndpoint>& endpoints, const std::vector<int>& host_of) {
  std::map<std::pair<int, std::vector<IpAddress>>, std::size_t> ranks_so_far;
  for (std::size_t rank = 0; rank < endpoints.size(); ++rank) {
    RankEndpoint& endpoint = endpoints[rank];
    if (endpoint.abreast < 2) continue;
    const auto first = endpoint.addresses.begin();
    const auto last = first + endpoint.abreast;
    const std::size_t place = ranks_so_far[{host_of[rank], {first, last}}]++;
    std::rotate(first, first + static_cast<std::ptrdiff_t>(place % endpoint.abreast), last);
  }
}

}  // namespace tutti::comm
