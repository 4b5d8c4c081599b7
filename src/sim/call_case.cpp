#include "sim/call_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace tutti::sim {
namespace {
constexpr std::string_view kProtocolNames[kProtocols] = {"slots", "lines", "direct", "single-copy", "announce"};
}

std::string_view name_of(Protocol protocol) { return kProtocolNames[static_cast<std::size_t>(protocol)]; }

std::optional<Protocol> protocol_named(std::string_view name) {
  const auto* const found = std::find(std::begin(kProtocolNames), std::end(kProtocolNames), name);
  if (found == std::end(kProtocolNames)) return std::nullopt;
  return static_cast<Protocol>(found - std::begin(kProtocolNames));
}

std::string describe(const CallCase& c) {
  std::string text =
      fmt::format("{} by {} over {}", tutti::name_of(c.request.collective), c.algorithm->name, name_of(c.protocol));
  text += fmt::format(", {} ranks", c.request.ranks);
  if (is_rooted(c.request.collective)) text += fmt::format(", root {}", c.request.root);
  return text + fmt::format(", {} elements{}", c.count, c.in_place ? ", in place" : "");
}

Origin origin_of(const schedule::Request& request, int rank, std::uint32_t block) {
  const auto mine = static_cast<std::uint32_t>(rank);
  switch (request.collective) {
    case Collective::kReduceScatter: return {true, 0, mine};
    case Collective::kBroadcast: return {false, request.root, 0};
    case Collective::kAllGather:
    case Collective::kGather: return {false, static_cast<int>(block), 0};
    case Collective::kScatter: return {false, request.root, mine};
    case Collective::kAllToAll: return {false, static_cast<int>(block), mine};
    default: return {true, 0, 0};
  }
}

Value promised_value(int call, const schedule::Request& request, int rank, std::uint32_t block, std::uint64_t i) {
  const Origin origin = origin_of(request, rank, block);
  if (!origin.reduced) return input_value(call, origin.rank, origin.block, i);
  Value total = 0;
  for (int p = 0; p < request.ranks; ++p) total += input_value(call, p, origin.block, i);
  return total;
}

}  // namespace tutti::sim
