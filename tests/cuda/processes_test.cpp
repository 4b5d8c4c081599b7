// Communicators on device memory whose ranks are processes: every collective end to end, on the fake driver or a real one. The parent
// never opens the driver, as children that are forked afterwards could not use it.
#include "comm/crew.h"
#include "gpu.h"

#include <nccl.h>
#include <tutti/tutti.h>

#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <numeric>

namespace tutti::test {
namespace {

using crew::fine;
using crew::Member;
using crew::refused;

using Values = std::vector<std::int32_t>;
constexpr std::int32_t kPoison = -77;

std::int32_t value(int rank, std::size_t i) { return 1000 * (rank + 1) + static_cast<std::int32_t>(i * 7 % 911); }
Values values(int rank, std::size_t count) {
  Values all(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = value(rank, i);
  return all;
}
std::int32_t sum(int ranks, std::size_t i) {
  std::int32_t total = 0;
  for (int r = 0; r < ranks; ++r) total += value(r, i);
  return total;
}

/// What one process has: its rank, its device, a stream.
struct Rank {
  const Member& m;
  ncclComm_t comm = nullptr;
  CUstream stream = nullptr;

  explicit Rank(const Member& member) : m(member) {}
  /// `devices`: the ranks are on so many, by turns.
  std::string open(int devices = 1, int id = 0) {
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    setenv("TUTTI_DEVICE", "cuda", 1);
    if (const std::string reason = Gpu::why_not(); !reason.empty()) return reason;
    Gpu::get().use(m.rank % devices);
    stream = Gpu::get().make_stream();
    return fine(ncclCommInitRank(&comm, m.ranks, m.ids[id], m.rank), "ncclCommInitRank");
  }
  std::string close() {
    Gpu::get().destroy(stream);
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  }
};

std::string differs(const char* what, const Values& found, const std::function<std::int32_t(std::size_t)>& wanted,
                    std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    if (found[i] != wanted(i)) {
      return std::string(what) + ": element " + std::to_string(i) + " of " + std::to_string(count) + " is " +
             std::to_string(found[i]) + ", not " + std::to_string(wanted(i));
    }
  }
  for (std::size_t i = count; i < found.size(); ++i) {
    if (found[i] != kPoison) return std::string(what) + ": element " + std::to_string(i) + " was written";
  }
  return "";
}

/// Every collective on `count` elements of a block, each behind the one before.
std::string all_collectives(const Rank& rank, std::size_t count, int root) {
  const auto n = static_cast<std::size_t>(rank.m.ranks);
  const auto r = static_cast<std::size_t>(rank.m.rank);
  const bool at_root = rank.m.rank == root;
  const OnGpu<std::int32_t> in(values(rank.m.rank, n * count));
  const auto run = [&](const char* name, const std::function<ncclResult_t(std::int32_t*)>& call,
                       const std::function<std::int32_t(std::size_t)>& wanted, std::size_t written) -> std::string {
    const OnGpu<std::int32_t> out(Values(n * count + 3, kPoison));
    CREW_TRY(fine(call(out.data()), name));
    Gpu::get().wait(rank.stream);
    return differs(name, out.read(), wanted, written);
  };
  CREW_TRY(run(
      "all_reduce",
      [&](std::int32_t* out) {
        return ncclAllReduce(in.data(), out, count, ncclInt32, ncclSum, rank.comm, rank.stream);
      },
      [&](std::size_t i) { return sum(rank.m.ranks, i); }, count));
  CREW_TRY(run(
      "reduce",
      [&](std::int32_t* out) {
        return ncclReduce(in.data(), out, count, ncclInt32, ncclSum, root, rank.comm, rank.stream);
      },
      [&](std::size_t i) { return sum(rank.m.ranks, i); }, at_root ? count : 0));
  CREW_TRY(run(
      "broadcast",
      [&](std::int32_t* out) {
        return ncclBroadcast(in.data(), out, count, ncclInt32, root, rank.comm, rank.stream);
      },
      [&](std::size_t i) { return value(root, i); }, count));
  CREW_TRY(run(
      "reduce_scatter",
      [&](std::int32_t* out) {
        return ncclReduceScatter(in.data(), out, count, ncclInt32, ncclSum, rank.comm, rank.stream);
      },
      [&](std::size_t i) { return sum(rank.m.ranks, r * count + i); }, count));
  const auto gathered = [&](std::size_t i) { return value(static_cast<int>(i / count), i % count); };
  CREW_TRY(run(
      "all_gather",
      [&](std::int32_t* out) { return ncclAllGather(in.data(), out, count, ncclInt32, rank.comm, rank.stream); },
      gathered, n * count));
  CREW_TRY(run(
      "gather",
      [&](std::int32_t* out) { return ncclGather(in.data(), out, count, ncclInt32, root, rank.comm, rank.stream); },
      gathered, at_root ? n * count : 0));
  CREW_TRY(run(
      "scatter",
      [&](std::int32_t* out) { return ncclScatter(in.data(), out, count, ncclInt32, root, rank.comm, rank.stream); },
      [&](std::size_t i) { return value(root, r * count + i); }, count));
  return run(
      "all_to_all",
      [&](std::int32_t* out) { return ncclAlltoAll(in.data(), out, count, ncclInt32, rank.comm, rank.stream); },
      [&](std::size_t i) { return value(static_cast<int>(i / count), r * count + i % count); }, n * count);
}

}  // namespace

TEST_CASE("processes: every collective", "[device][processes]") {
  const int ranks = GENERATE(2, 3, 4);
  const int devices = GENERATE(1, 2);
  CAPTURE(ranks, devices);
  crew::check(crew::run(ranks, [&](const Member& m) -> std::string {
    Rank rank(m);
    CREW_TRY(rank.open(devices));
    for (const std::size_t count : {std::size_t{1}, std::size_t{0}, std::size_t{7}, std::size_t{1000}}) {
      CREW_TRY(all_collectives(rank, count, ranks - 1));
    }
    return rank.close();
  }));
}

}  // namespace tutti::test
