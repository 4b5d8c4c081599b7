// What crosses between hosts, counted: two hosts that this machine imitates, by TCP over its own network.
#include "crew.h"

#include <tutti/tutti.h>
#include <catch2/catch.hpp>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

using crew::fine;
using crew::Member;

constexpr std::size_t kElements = 3 << 19;  ///< of the larger of a call's two buffers
constexpr double kBytes = kElements * sizeof(float);
constexpr int kRoot = 1;

enum class Call { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kReduce, kAllToAll };
constexpr const char* kNames[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all"};

struct Buffers {
  std::vector<float> in, out;
};

std::string run(Call call, const Member& m, Buffers& b, ncclComm_t comm) {
  const std::size_t part = kElements / static_cast<std::size_t>(m.ranks);
  const char* const name = kNames[static_cast<int>(call)];
  switch (call) {
    case Call::kAllReduce:
      return fine(ncclAllReduce(b.in.data(), b.out.data(), kElements, ncclFloat, ncclSum, comm, nullptr), name);
    case Call::kReduceScatter:
      return fine(ncclReduceScatter(b.in.data(), b.out.data(), part, ncclFloat, ncclSum, comm, nullptr), name);
    case Call::kAllGather: return fine(ncclAllGather(b.in.data(), b.out.data(), part, ncclFloat, comm, nullptr), name);
    case Call::kBroadcast:
      return fine(ncclBroadcast(b.in.data(), b.out.data(), kElements, ncclFloat, kRoot, comm, nullptr), name);
    case Call::kReduce:
      return fine(ncclReduce(b.in.data(), b.out.data(), kElements, ncclFloat, ncclSum, kRoot, comm, nullptr), name);
    case Call::kAllToAll: return fine(ncclAlltoAll(b.in.data(), b.out.data(), part, ncclFloat, comm, nullptr), name);
  }
  return "no such call";
}

/// Bytes that leave a host, as a part of kBytes, the ranks being 0 and 1 on the first host and the others on the second.
struct Bound {
  double first, second;
};
Bound bound_of(Call call, int ranks) {
  const double second = ranks - 2;
  switch (call) {
    case Call::kAllReduce: return {1, 1};
    case Call::kReduceScatter: return {second / ranks, 2.0 / ranks};
    case Call::kAllGather: return {2.0 / ranks, second / ranks};
    case Call::kBroadcast: return {1, 0};
    case Call::kReduce: return {0, 1};
    case Call::kAllToAll: return {2 * second / ranks, 2 * second / ranks};
  }
  return {};
}

/// What this rank's call sent to the other host.
std::string count(Call call, const Member& m, Buffers& b, ncclComm_t comm, std::uint64_t* sent) {
  std::uint64_t before = 0;
  CREW_TRY(fine(tuttiCommWireBytes(comm, &before), "tuttiCommWireBytes"));
  CREW_TRY(run(call, m, b, comm));
  CREW_TRY(fine(tuttiCommWireBytes(comm, sent), "tuttiCommWireBytes"));
  *sent -= before;
  return "";
}

std::string check(Call call, const Member& m, Buffers& b, ncclComm_t comm) {
  CREW_TRY(run(call, m, b, comm));
  std::uint64_t sent = 0;
  CREW_TRY(count(call, m, b, comm, &sent));
  std::vector<std::uint64_t> all(static_cast<std::size_t>(m.ranks));
  CREW_TRY(fine(ncclAllGather(&sent, all.data(), 1, ncclUint64, comm, nullptr), "ncclAllGather"));
  double of_host[2] = {0, 0};
  for (int rank = 0; rank < m.ranks; ++rank)
    of_host[rank < 2 ? 0 : 1] += static_cast<double>(all[static_cast<std::size_t>(rank)]);
  const Bound bound = bound_of(call, m.ranks);
  for (const int host : {0, 1}) {
    const double least = kBytes * (host == 0 ? bound.first : bound.second);
    // Words, counts and announce lines are beside it.
    if (of_host[host] >= least && of_host[host] <= least + 0.03 * kBytes) continue;
    return std::string(kNames[static_cast<int>(call)]) + " of " + std::to_string(m.ranks) + " ranks: host " +
           std::to_string(host) + " sent " + std::to_string(of_host[host]) + " bytes where " + std::to_string(least) +
           " are enough";
  }
  return "";
}

}  // namespace

TEST_CASE("between two hosts goes what the collective needs, and not a rank's part more", "[hosts]") {
  setenv("TEST_RANKS_PER_HOST", "2", 1);
  for (const int ranks : {4}) {
    INFO(ranks << " ranks");
    crew::check(crew::run(ranks, [](const Member& m) -> std::string {
      ncclComm_t comm = nullptr;
      CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
      Buffers buffers{std::vector<float>(kElements, 1), std::vector<float>(kElements)};
      for (int call = 0; call < 6; ++call) CREW_TRY(check(static_cast<Call>(call), m, buffers, comm));
      return fine(ncclCommDestroy(comm), "ncclCommDestroy");
    }));
  }
  unsetenv("TEST_RANKS_PER_HOST");
}
