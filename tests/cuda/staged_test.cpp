// Communicators on device memory whose ranks are processes: their data goes through host memory, in parts. On the fake driver, of which each
// process has its own.
#include "comm/crew.h"
#include "gpu.h"

#include <nccl.h>
#include <tutti/tutti.h>

#include <catch2/catch.hpp>

#include <csignal>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <unistd.h>

namespace tutti::test {
namespace {

using crew::fine;
using crew::Member;
using Ints = std::vector<std::int32_t>;
using IntsOnGpu = OnGpu<std::int32_t>;

constexpr std::int32_t kPoison = -77;
constexpr std::size_t kPartBytes = 4096;  ///< so that small calls have several parts

std::int32_t value(int rank, std::size_t i) { return 1000 * (rank + 1) + static_cast<std::int32_t>(i * 7 % 911); }
Ints values(int rank, std::size_t count) {
  Ints all(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = value(rank, i);
  return all;
}
std::int32_t sum(int ranks, std::size_t i) {
  std::int32_t total = 0;
  for (int r = 0; r < ranks; ++r) total += value(r, i);
  return total;
}

/// A rank: its communicator and a stream.
struct Rank {
  Member member;
  ncclComm_t comm = nullptr;
  CUstream stream = nullptr;

  static std::string make(const Member& m, Rank& rank) {
    setenv("TUTTI_STAGING_BYTES", std::to_string(kPartBytes).c_str(), 0);
    if (std::string why = Gpu::why_not(); !why.empty()) return why;
    rank.member = m;
    rank.stream = Gpu::get().make_stream();
    return fine(ncclCommInitRank(&rank.comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank");
  }
  std::string end() const {
    CREW_TRY(fine(ncclCommDestroy(comm), "ncclCommDestroy"));
    Gpu::get().wait(stream);
    Gpu::get().destroy(stream);
    return "";
  }
};

/// "" or what is wrong where.
std::string compare(const Ints& found, const std::function<std::int32_t(std::size_t)>& wanted, const std::string& what) {
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i] == wanted(i)) continue;
    return what + ": element " + std::to_string(i) + " of " + std::to_string(found.size()) + " is " +
           std::to_string(found[i]) + " and should be " + std::to_string(wanted(i));
  }
  return "";
}

/// Every collective with `count` elements per block.
std::string every_collective(const Rank& rank, std::size_t count) {
  const int me = rank.member.rank;
  const int n = rank.member.ranks;
  const auto blocks = static_cast<std::size_t>(n);
  const int root = n - 1;
  const IntsOnGpu in(values(me, blocks * count));
  const IntsOnGpu out(Ints(blocks * count, kPoison));
  const auto block = [&](std::size_t i) { return static_cast<int>(i / count); };
  const auto own = static_cast<std::size_t>(me) * count;
  const auto check = [&](const char* name, ncclResult_t result,
                         const std::function<std::int32_t(std::size_t)>& wanted) -> std::string {
    CREW_TRY(fine(result, name));
    Gpu::get().wait(rank.stream);
    CREW_TRY(compare(out.read(), wanted, name + (" of " + std::to_string(count))));
    out.write(Ints(blocks * count, kPoison));
    return "";
  };
  const auto i32 = ncclInt32;
  CREW_TRY(check("all_reduce", ncclAllReduce(in.data(), out.data(), count, i32, ncclSum, rank.comm, rank.stream),
                 [&](std::size_t i) { return i < count ? sum(n, i) : kPoison; }));
  CREW_TRY(check("reduce_scatter",
                 ncclReduceScatter(in.data(), out.data(), count, i32, ncclSum, rank.comm, rank.stream),
                 [&](std::size_t i) { return i < count ? sum(n, own + i) : kPoison; }));
  CREW_TRY(check("all_gather", ncclAllGather(in.data(), out.data(), count, i32, rank.comm, rank.stream),
                 [&](std::size_t i) { return value(block(i), i % count); }));
  CREW_TRY(check("broadcast", ncclBroadcast(in.data(), out.data(), count, i32, root, rank.comm, rank.stream),
                 [&](std::size_t i) { return i < count ? value(root, i) : kPoison; }));
  CREW_TRY(check("reduce", ncclReduce(in.data(), out.data(), count, i32, ncclSum, root, rank.comm, rank.stream),
                 [&](std::size_t i) { return me == root && i < count ? sum(n, i) : kPoison; }));
  CREW_TRY(check("all_to_all", ncclAlltoAll(in.data(), out.data(), count, i32, rank.comm, rank.stream),
                 [&](std::size_t i) { return value(block(i), own + i % count); }));
  CREW_TRY(check("gather", ncclGather(in.data(), out.data(), count, i32, root, rank.comm, rank.stream),
                 [&](std::size_t i) { return me == root ? value(block(i), i % count) : kPoison; }));
  CREW_TRY(check("scatter", ncclScatter(in.data(), out.data(), count, i32, root, rank.comm, rank.stream),
                 [&](std::size_t i) { return i < count ? value(root, own + i) : kPoison; }));
  return compare(in.read(), [&](std::size_t i) { return value(me, i); }, "an input");
}

}  // namespace

TEST_CASE("staged: an all-reduce between processes", "[staged]") {
  const int ranks = GENERATE(2, 3);
  crew::check(crew::run(ranks, [](const Member& m) -> std::string {
    Rank rank;
    CREW_TRY(Rank::make(m, rank));
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{1000}, std::size_t{5003}}) {
      const IntsOnGpu in(values(m.rank, count));
      const IntsOnGpu out(Ints(count, kPoison));
      CREW_TRY(fine(ncclAllReduce(in.data(), out.data(), count, ncclInt32, ncclSum, rank.comm, rank.stream), "sum"));
      Gpu::get().wait(rank.stream);
      CREW_TRY(compare(out.read(), [&](std::size_t i) { return sum(m.ranks, i); }, "sum"));
    }
    return rank.end();
  }));
}

TEST_CASE("staged: every collective, in one part and in several", "[staged]") {
  crew::check(crew::run(3, [](const Member& m) -> std::string {
    Rank rank;
    CREW_TRY(Rank::make(m, rank));
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{777}, std::size_t{2600}}) {
      CREW_TRY(every_collective(rank, count));
    }
    return rank.end();
  }));
}

}  // namespace tutti::test
