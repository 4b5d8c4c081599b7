#include "collective.h"

namespace tutti::bench {
namespace {

ncclResult_t all_reduce(const Call& c) {
  return c.library->ncclAllReduce(c.send, c.receive, c.count, c.type, c.op, c.comm, c.stream);
}
ncclResult_t all_gather(const Call& c) {
  return c.library->ncclAllGather(c.send, c.receive, c.count, c.type, c.comm, c.stream);
}
ncclResult_t reduce_scatter(const Call& c) {
  return c.library->ncclReduceScatter(c.send, c.receive, c.count, c.type, c.op, c.comm, c.stream);
}
ncclResult_t broadcast(const Call& c) {
  return c.library->ncclBroadcast(c.send, c.receive, c.count, c.type, c.root, c.comm, c.stream);
}
ncclResult_t reduce(const Call& c) {
  return c.library->ncclReduce(c.send, c.receive, c.count, c.type, c.op, c.root, c.comm, c.stream);
}
ncclResult_t all_to_all(const Call& c) {
  return c.library->ncclAlltoAll(c.send, c.receive, c.count, c.type, c.comm, c.stream);
}
ncclResult_t gather(const Call& c) {
  return c.library->ncclGather(c.send, c.receive, c.count, c.type, c.root, c.comm, c.stream);
}
ncclResult_t scatter(const Call& c) {
  return c.library->ncclScatter(c.send, c.receive, c.count, c.type, c.root, c.comm, c.stream);
}

/// To the next rank, from the one before, at once.
ncclResult_t send_receive(const Call& c) {
  if (const ncclResult_t code = c.library->ncclGroupStart(); code != ncclSuccess) return code;
  ncclResult_t code = c.library->ncclSend(c.send, c.count, c.type, (c.rank + 1) % c.ranks, c.comm, c.stream);
  if (code == ncclSuccess)
    code = c.library->ncclRecv(c.receive, c.count, c.type, (c.rank + c.ranks - 1) % c.ranks, c.comm, c.stream);
  const ncclResult_t end = c.library->ncclGroupEnd();
  return code != ncclSuccess ? code : end;
}

constexpr Collective kCollectives[] = {
    // name, pattern, reduces, rooted, in place, blocks of input and of output, call, plan
    {"all_reduce", Pattern::kReduceAll, true, false, true, false, false, all_reduce, tuttiAllReduce},
    {"all_gather", Pattern::kGatherAll, false, false, true, false, true, all_gather, tuttiAllGather},
    {"reduce_scatter", Pattern::kReduceScatter, true, false, true, true, false, reduce_scatter, tuttiReduceScatter},
    {"broadcast", Pattern::kBroadcast, false, true, true, false, false, broadcast, tuttiBroadcast},
    {"reduce", Pattern::kReduceRoot, true, true, true, false, false, reduce, tuttiReduce},
    {"all_to_all", Pattern::kAllToAll, false, false, false, true, true, all_to_all, tuttiAlltoAll},
    {"gather", Pattern::kGatherRoot, false, true, true, false, true, gather, tuttiGather},
    {"scatter", Pattern::kScatter, false, true, true, true, false, scatter, tuttiScatter},
    {"sendrecv", Pattern::kRing, false, false, false, false, false, send_receive, tuttiSend},
};

}  // namespace

std::size_t Collective::in_place_input(int rank) const { return receive_blocks ? static_cast<std::size_t>(rank) : 0; }

std::size_t Collective::in_place_output(int rank) const { return send_blocks ? static_cast<std::size_t>(rank) : 0; }

double Collective::bus_factor(int ranks) const {
  const double n = ranks;
  switch (pattern) {
    case Pattern::kReduceAll: return 2 * (n - 1) / n;
    case Pattern::kGatherAll:
    case Pattern::kReduceScatter:
    case Pattern::kAllToAll:
    case Pattern::kGatherRoot:
    case Pattern::kScatter: return (n - 1) / n;
    case Pattern::kReduceRoot:
    case Pattern::kBroadcast:
    case Pattern::kRing: break;
  }
  return 1;
}

/// What a rank needs of others comes to it once; its part of a sum leaves each rank but the root once.
double Collective::wire_factor(int ranks) const {
  const double n = ranks;
  switch (pattern) {
    case Pattern::kReduceRoot:
    case Pattern::kBroadcast: return (n - 1) / n;
    case Pattern::kGatherRoot:
    case Pattern::kScatter: return (n - 1) / (n * n);
    default: return bus_factor(ranks);
  }
}

std::span<const Collective> collectives() { return kCollectives; }

const Collective* collective_named(std::string_view name) {
  for (const Collective& collective : kCollectives)
    if (name == collective.name) return &collective;
  return nullptr;
}

}  // namespace tutti::bench
