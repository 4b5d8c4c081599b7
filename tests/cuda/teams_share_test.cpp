// What moves where GPU ranks of several hosts work in teams: from each rank to its host, and between hosts. And what goes so at all.
#include "fake_driver.h"
#include "team_hosts.h"
#include "team_rank.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

namespace tutti::test {
namespace {

using What = fake_driver::Given::What;

struct Moved {
  std::vector<fake_driver::Given> given;
  std::size_t to_host = 0;      ///< bytes that were copied
  std::uint64_t to_others = 0;  ///< bytes that were sent to other hosts
};

/// What a call gives to its stream, and what moves until it is through.
std::string watch(const Rank& rank, const std::function<ncclResult_t()>& call, Moved& moved) {
  std::uint64_t before = 0;
  std::uint64_t after = 0;
  CREW_TRY(fine(tuttiCommWireBytes(rank.comm, &before), "tuttiCommWireBytes"));
  fake_driver::note_given();
  CREW_TRY(fine(call(), "the call"));
  moved.given = fake_driver::given();
  Gpu::get().wait(rank.stream);
  CREW_TRY(fine(tuttiCommWireBytes(rank.comm, &after), "tuttiCommWireBytes"));
  moved.to_others = after - before;
  for (const fake_driver::Given& one : moved.given) moved.to_host += one.what == What::kCopyToHost ? one.bytes : 0;
  return "";
}

/// Lines that open calls, and say that all make the same one.
constexpr std::size_t kLines = 16384;

/// A rank with a share copies so many bytes to its host, and sends as many to another one; to all others where it passes on what they send
/// to each other (decision 44). Without: none.
std::string moves(const Moved& moved, const Hosts& hosts, int rank, std::size_t to_host, std::size_t share) {
  const bool sends = hosts.sends(rank);
  const std::size_t wanted = sends ? to_host : 0;
  if (moved.to_host != wanted)
    return std::to_string(moved.to_host) + " bytes were copied to the host, not " + std::to_string(wanted);
  const std::size_t least = sends ? share : 0;
  const std::size_t others = hosts.count - 1;
  const std::size_t most = sends ? share * others * others * 3 / 2 : kLines;
  if (moved.to_others >= least && moved.to_others <= most) return "";
  return std::to_string(moved.to_others) + " bytes went to other hosts, not " + std::to_string(least) + " to " +
         std::to_string(most);
}

}  // namespace

TEST_CASE("teams: of each rank's data a share crosses, and the next part is on its way before one is waited for",
          "[teams]") {
  const Hosts& hosts = GENERATE(kTwoEach, kOneAndTwo, kTwoAndThree, kThreeOneTwo);
  INFO(hosts.ranks);
  const Placed placed(hosts.ranks);
  crew::check(crew::run(hosts.all, [&hosts](const Member& m) -> std::string {
    constexpr std::size_t kCount = 40960;  // 40 parts
    const std::size_t share = kCount * 4 / hosts.shares();
    Rank rank;
    CREW_TRY(make(m, rank));
    const IntsOnGpu data(values(m.rank, kCount));
    Moved moved;
    CREW_TRY(watch(
        rank, [&] { return sum_up(rank, data.data(), data.data(), kCount); }, moved));
    CREW_TRY(compare(
        data.read(), [&](std::size_t i) { return sum(m.ranks, i); }, "sum"));
    std::size_t copies = 0;
    std::size_t waits = 0;
    for (const fake_driver::Given& one : moved.given) {
      copies += one.what == What::kCopyToHost;
      if (one.what != What::kWaitForWord || waits++ == 0 || !hosts.sends(m.rank))
        continue;  // the first: that all make the call
      const std::size_t parts = kCount * 4 / kPartBytes;
      if (copies != std::min(waits, parts))
        return std::to_string(copies) + " shares were copied before the wait for part " + std::to_string(waits - 2);
    }
    if (!hosts.sends(m.rank) && waits != 1) return std::to_string(waits) + " waits, not one for all to make the call";
    CREW_TRY(moves(moved, hosts, m.rank, share, share));
    return rank.end();
  }));
}

TEST_CASE("teams: of an all-gather and a reduce-scatter slices cross", "[teams]") {
  const Hosts& hosts = GENERATE(kOneAndTwo, kTwoAndThree, kThreeOneTwo);
  INFO(hosts.ranks);
  const Placed placed(hosts.ranks);
  crew::check(crew::run(hosts.all, [&hosts](const Member& m) -> std::string {
    constexpr std::size_t kBlock = 8192;        // whose parts two shares divide
    setenv("TUTTI_STAGING_BYTES", "65536", 1);  // beside what parts have, the lines that open them are few
    Rank rank;
    CREW_TRY(make(m, rank));
    const auto ranks = static_cast<std::size_t>(m.ranks);
    const std::size_t slices = kBlock * 4 * hosts.longest / hosts.shares();
    const IntsOnGpu block(values(m.rank, kBlock));
    const IntsOnGpu whole(Ints(kBlock * ranks, kPoison));
    Moved moved;
    CREW_TRY(watch(
        rank, [&] { return ncclAllGather(block.data(), whole.data(), kBlock, ncclInt32, rank.comm, rank.stream); },
        moved));
    CREW_TRY(compare(
        whole.read(), [&](std::size_t i) { return value(static_cast<int>(i / kBlock), i % kBlock); }, "all_gather"));
    CREW_TRY(moves(moved, hosts, m.rank, slices, slices));
    whole.write(values(m.rank, kBlock * ranks));
    Moved summed;
    CREW_TRY(watch(
        rank,
        [&] {
          return ncclReduceScatter(whole.data(), block.data(), kBlock, ncclInt32, ncclSum, rank.comm, rank.stream);
        },
        summed));
    const std::size_t first = static_cast<std::size_t>(m.rank) * kBlock;
    CREW_TRY(compare(
        block.read(), [&](std::size_t i) { return sum(m.ranks, first + i); }, "reduce_scatter"));
    CREW_TRY(moves(summed, hosts, m.rank, slices * hosts.count, slices));
    return rank.end();
  }));
}

TEST_CASE("teams: blocks that more than they are would have to fill up go as a whole, beside sums by teams",
          "[teams]") {
  const Hosts hosts{"1,1,1,4", 7, 4, 4, {0, 1, 2, 3}};
  const Placed placed(hosts.ranks);
  crew::check(crew::run(hosts.all, [&hosts](const Member& m) -> std::string {
    Rank rank;
    CREW_TRY(make(m, rank));
    const auto ranks = static_cast<std::size_t>(m.ranks);
    const IntsOnGpu block(values(m.rank, kLeast));
    const IntsOnGpu whole(Ints(kLeast * ranks, kPoison));
    const auto gather = [&] {
      return ncclAllGather(block.data(), whole.data(), kLeast, ncclInt32, rank.comm, rank.stream);
    };
    Moved moved;
    CREW_TRY(watch(rank, gather, moved));
    if (moved.to_host != kLeast * 4) return std::to_string(moved.to_host) + " bytes were copied to the host";
    CREW_TRY(compare(
        whole.read(), [&](std::size_t i) { return value(static_cast<int>(i / kLeast), i % kLeast); }, "all_gather"));
    Moved summed;
    CREW_TRY(watch(
        rank, [&] { return sum_up(rank, block.data(), whole.data(), kLeast); }, summed));
    if (summed.to_host != (hosts.sends(m.rank) ? kLeast * 4 : 0))
      return std::to_string(summed.to_host) + " bytes of the sum were copied to the host";
    // What a group has of both goes in its order.
    CREW_TRY(fine(ncclGroupStart(), "ncclGroupStart"));
    sum_up(rank, block.data(), block.data(), kLeast);
    gather();
    CREW_TRY(fine(ncclGroupEnd(), "ncclGroupEnd"));
    Gpu::get().wait(rank.stream);
    CREW_TRY(compare(
        whole.read(), [&](std::size_t i) { return sum(m.ranks, i % kLeast); }, "all_gather of sums"));
    return rank.end();
  }));
}

TEST_CASE("teams: what explains a call says how it goes, and what does not go so", "[teams]") {
  struct Way {
    const char* hosts;
    const char* variable;
    const char* value;
    std::size_t count;
    bool by_teams;
  };
  const Way way =
      GENERATE(Way{"2", "", "", kLeast, true}, Way{"2", "", "", kLeast - 1, false}, Way{"1", "", "", kLeast, false},
               Way{"1,3", "", "", kLeast, true}, Way{"1,3", "", "", kLeast - 1, false},
               Way{"1,3", "TUTTI_REPRODUCIBLE", "1", kLeast, false}, Way{"1,3", "FAKE_CUDA_IPC", "0", kLeast, false},
               Way{"2", "NCCL_P2P_DISABLE", "1", kLeast, false}, Way{"2", "NCCL_ALGO", "ring", kLeast, false},
               Way{"2", "FAKE_CUDA_IPC", "0", kLeast, false}, Way{"2", "TUTTI_REPRODUCIBLE", "1", kLeast, false});
  INFO(way.hosts << " " << way.variable);
  const Placed placed(way.hosts);
  crew::check(crew::run(4, [way](const Member& m) -> std::string {
    // One rank alone cannot share: that counts for all.
    const bool one = std::string(way.variable) == "FAKE_CUDA_IPC";
    if (way.variable[0] != 0 && (!one || m.rank == 3)) setenv(way.variable, way.value, 1);
    Rank rank;
    CREW_TRY(make(m, rank));
    CREW_TRY(check_sum(rank, way.count, false));
    char text[8192];
    CREW_TRY(fine(tuttiExplain(rank.comm, tuttiAllReduce, way.count, ncclInt32, ncclSum, 0, text, sizeof text, nullptr),
                  "explain"));
    const auto says = [&](const std::string& part) { return std::string(text).find(part) != std::string::npos; };
    const bool even = std::string(way.hosts) == "2";
    const std::string ranks = even ? "2 ranks each" : "1 to 3 ranks each, 1 of which have a share";
    if (says("teams: GPU memory of 2 hosts with " + ranks + ", in parts of up to 1024") != way.by_teams) return text;
    if (says("in which this rank has no part") != (way.by_teams && !even && m.rank > 1)) return text;
    return rank.end();
  }));
}

}  // namespace tutti::test
