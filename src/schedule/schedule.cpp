#include "schedule/schedule.h"

namespace tutti::schedule {

std::uint32_t input_blocks(const Request& request, int rank) {
  const auto all = static_cast<std::uint32_t>(request.ranks);
  switch (request.collective) {
    case Collective::kAllReduce:
    case Collective::kReduce:
    case Collective::kAllGather:
    case Collective::kGather: return 1;
    case Collective::kReduceScatter:
    case Collective::kAllToAll: return all;
    case Collective::kBroadcast: return rank == request.root ? 1 : 0;
    case Collective::kScatter: return rank == request.root ? all : 0;
    case Collective::kSend: return rank == request.rank ? 1 : 0;
    case Collective::kReceive: return rank == request.root ? 1 : 0;
  }
  return 0;
}

std::uint32_t output_blocks(const Request& request, int rank) {
  const auto all = static_cast<std::uint32_t>(request.ranks);
  switch (request.collective) {
    case Collective::kAllReduce:
    case Collective::kBroadcast:
    case Collective::kReduceScatter:
    case Collective::kScatter: return 1;
    case Collective::kAllGather:
    case Collective::kAllToAll: return all;
    case Collective::kReduce: return rank == request.root ? 1 : 0;
    case Collective::kGather: return rank == request.root ? all : 0;
    case Collective::kSend: return rank == request.root ? 1 : 0;
    case Collective::kReceive: return rank == request.rank ? 1 : 0;
  }
  return 0;
}

}  // namespace tutti::schedule
