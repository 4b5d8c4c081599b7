// Calls among GPUs of several hosts, of which each host's ranks share out what crosses: by kernels within hosts, through host memory between
// them. Hosts are made by NCCL_HOSTID; ranks are processes, each with a fake driver of its own.
#include "mixed_calls.h"
#include "staged_rank.h"
#include "team_hosts.h"
#include "team_rank.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <utility>

namespace tutti::test {

TEST_CASE("teams: sums of all lengths, in place and not", "[teams]") {
  const Hosts& hosts = GENERATE(kTwoEach, kThreeEach, kOneAndTwo, kTwoAndThree, kThreeOneTwo);
  const int devices = GENERATE(1, 4);  // on one, streams meet; on several, kernels wait for each other
  INFO(hosts.ranks << ", devices " << devices);
  const Placed placed(hosts.ranks);
  crew::check(crew::run(hosts.all, [devices](const Member& m) -> std::string {
    Rank rank;
    CREW_TRY(make(m, rank, devices));
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{1009}, kLeast - 1, kLeast, kLeast + 1,
                                    kPrime, std::size_t{50000}}) {
      CREW_TRY(check_sum(rank, count, false));
      CREW_TRY(check_sum(rank, count, true));
    }
    return rank.end();
  }));
}

namespace {

/// Bytes as a rank's elements of every type, all ones: for sums that no rounding touches.
struct TypeCase {
  ncclDataType_t type;
  std::size_t bytes;
  std::uint64_t one;
  std::uint64_t four;
  std::uint64_t five;
};
constexpr TypeCase kTypes[] = {{ncclInt8, 1, 1, 4, 5},
                               {ncclUint8, 1, 1, 4, 5},
                               {ncclInt32, 4, 1, 4, 5},
                               {ncclUint32, 4, 1, 4, 5},
                               {ncclInt64, 8, 1, 4, 5},
                               {ncclUint64, 8, 1, 4, 5},
                               {ncclFloat16, 2, 0x3c00, 0x4400, 0x4500},
                               {ncclBfloat16, 2, 0x3f80, 0x4080, 0x40a0},
                               {ncclFloat32, 4, 0x3f800000, 0x40800000, 0x40a00000},
                               {ncclFloat64, 8, 0x3ff0000000000000, 0x4010000000000000, 0x4014000000000000},
                               {ncclFloat8e4m3, 1, 0x38, 0x48, 0x4a},
                               {ncclFloat8e5m2, 1, 0x3c, 0x44, 0x45}};

std::vector<std::uint8_t> filled(std::size_t count, std::size_t bytes, std::uint64_t with) {
  std::vector<std::uint8_t> all(count * bytes);
  for (std::size_t i = 0; i < count; ++i) std::memcpy(all.data() + i * bytes, &with, bytes);
  return all;
}

/// Numbers of four or five ranks, whose average is another one if it is made of hosts' averages.
std::int32_t uneven(int rank, std::size_t i) {
  return (rank == 0 ? 1 : rank == 3 ? 3 : 2) + static_cast<std::int32_t>(4 * (i % 7));
}

}  // namespace

TEST_CASE("teams: every type, every operation", "[teams]") {
  const Hosts& hosts = GENERATE(kTwoEach, kOneAndThree, kTwoAndThree);
  INFO(hosts.ranks);
  const Placed placed(hosts.ranks);
  crew::check(crew::run(hosts.all, [](const Member& m) -> std::string {
    Rank rank;
    CREW_TRY(make(m, rank));
    for (const TypeCase& t : kTypes) {
      const std::size_t count = 65599 / t.bytes + 1;
      const OnGpu<std::uint8_t> data(filled(count, t.bytes, t.one));
      for (const auto& [op, wanted] : {std::pair(ncclSum, m.ranks == 4 ? t.four : t.five), std::pair(ncclAvg, t.one),
                                       std::pair(ncclProd, t.one)}) {
        data.write(filled(count, t.bytes, t.one));
        CREW_TRY(fine(ncclAllReduce(data.data(), data.data(), count, t.type, op, rank.comm, rank.stream), "a type"));
        Gpu::get().wait(rank.stream);
        if (data.read() != filled(count, t.bytes, wanted))
          return "type " + std::to_string(t.type) + ", operation " + std::to_string(op);
      }
    }
    const auto ints = [&](ncclRedOp_t op, const char* name, const std::function<std::int32_t(int, std::size_t)>& given,
                          const std::function<std::int32_t(std::size_t)>& wanted) -> std::string {
      Ints mine(kPrime);
      for (std::size_t i = 0; i < kPrime; ++i) mine[i] = given(m.rank, i);
      const IntsOnGpu data(mine);
      CREW_TRY(fine(ncclAllReduce(data.data(), data.data(), kPrime, ncclInt32, op, rank.comm, rank.stream), name));
      Gpu::get().wait(rank.stream);
      return compare(data.read(), wanted, name);
    };
    CREW_TRY(ints(ncclMax, "max", value, [&](std::size_t i) { return value(m.ranks - 1, i); }));
    CREW_TRY(ints(ncclMin, "min", value, [](std::size_t i) { return value(0, i); }));
    CREW_TRY(
        ints(ncclAvg, "average", uneven, [](std::size_t i) { return 2 + static_cast<std::int32_t>(4 * (i % 7)); }));
    return rank.end();
  }));
}

TEST_CASE("teams: a factor is applied once, whether the host or the GPU has it", "[teams]") {
  const Hosts& hosts = GENERATE(kTwoEach, kOneAndThree, kTwoAndThree);
  INFO(hosts.ranks);
  const Placed placed(hosts.ranks);
  crew::check(crew::run(hosts.all, [](const Member& m) -> std::string {
    Rank rank;
    CREW_TRY(make(m, rank));
    const std::vector<double> own{10.0 + m.rank};
    const OnGpu<double> factor({0});
    for (const ncclScalarResidence_t where : {ncclScalarHostImmediate, ncclScalarDevice}) {
      const OnGpu<double> data(std::vector<double>(kPrime, 0.25 * (m.rank + 1)));
      ncclRedOp_t scaled = ncclSum;
      auto* const scalar = where == ncclScalarDevice ? factor.data() : const_cast<double*>(own.data());
      CREW_TRY(fine(ncclRedOpCreatePreMulSum(&scaled, scalar, ncclFloat64, where, rank.comm), "op"));
      // Written in the stream's order, after the operation was made.
      Gpu::get().copy(factor.data(), own.data(), sizeof(double), rank.stream);
      CREW_TRY(
          fine(ncclAllReduce(data.data(), data.data(), kPrime, ncclFloat64, scaled, rank.comm, rank.stream), "sum"));
      CREW_TRY(fine(ncclRedOpDestroy(scaled, rank.comm), "ncclRedOpDestroy"));
      Gpu::get().wait(rank.stream);
      double wanted = 0;
      for (int r = 0; r < m.ranks; ++r) wanted += 0.25 * (r + 1) * (10.0 + r);
      if (data.read() != std::vector<double>(kPrime, wanted)) return "the scaled sum is wrong";
    }
    return rank.end();
  }));
}

TEST_CASE("teams: groups, other collectives beside, several communicators, and a part of one", "[teams]") {
  const Placed placed(GENERATE("2", "1,3"));
  crew::check(crew::run(
      4,
      [](const Member& m) -> std::string {
        Rank rank;
        CREW_TRY(make(m, rank));
        ncclComm_t second = nullptr;
        CREW_TRY(fine(ncclCommInitRank(&second, m.ranks, m.ids[1], m.rank), "ncclCommInitRank"));
        const IntsOnGpu in(values(m.rank, kPrime));
        const IntsOnGpu a(Ints(kPrime, kPoison));
        const IntsOnGpu b(Ints(kPrime, kPoison));
        const IntsOnGpu c(Ints(kPrime, kPoison));
        const IntsOnGpu got(Ints(100, kPoison));
        CREW_TRY(fine(ncclGroupStart(), "ncclGroupStart"));
        ncclSend(in.data(), 100, ncclInt32, (m.rank + 1) % 4, rank.comm, rank.stream);
        sum_up(rank, in.data(), a.data(), kPrime);
        ncclAllReduce(in.data(), c.data(), kLeast, ncclInt32, ncclMax, second, rank.stream);
        ncclBroadcast(in.data(), b.data(), 10, ncclInt32, 2, rank.comm, rank.stream);
        ncclAllReduce(a.data(), b.data() + 10, kPrime - 10, ncclInt32, ncclMax, rank.comm, rank.stream);
        ncclRecv(got.data(), 100, ncclInt32, (m.rank + 3) % 4, rank.comm, rank.stream);
        CREW_TRY(fine(ncclGroupEnd(), "ncclGroupEnd"));
        Gpu::get().wait(rank.stream);
        CREW_TRY(compare(
            a.read(), [](std::size_t i) { return sum(4, i); }, "sum"));
        CREW_TRY(compare(
            b.read(), [](std::size_t i) { return i < 10 ? value(2, i) : sum(4, i - 10); }, "of the sum"));
        CREW_TRY(compare(
            c.read(), [](std::size_t i) { return i < kLeast ? value(3, i) : kPoison; }, "of the second"));
        CREW_TRY(compare(
            got.read(), [&](std::size_t i) { return value((m.rank + 3) % 4, i); }, "received"));
        // Backwards: hosts begin with other ranks.
        ncclComm_t part = nullptr;
        CREW_TRY(fine(ncclCommSplit(rank.comm, 0, -m.rank, &part, nullptr), "ncclCommSplit"));
        CREW_TRY(
            fine(ncclAllReduce(in.data(), a.data(), kPrime, ncclInt32, ncclSum, part, rank.stream), "of the part"));
        Gpu::get().wait(rank.stream);
        CREW_TRY(compare(
            a.read(), [](std::size_t i) { return sum(4, i); }, "of the part"));
        CREW_TRY(fine(ncclCommFinalize(part), "ncclCommFinalize"));
        CREW_TRY(fine(ncclCommDestroy(part), "ncclCommDestroy"));
        CREW_TRY(fine(ncclCommDestroy(second), "ncclCommDestroy"));
        return rank.end();
      },
      30, 2));
}

TEST_CASE("teams: captured sums are replayed, between others", "[teams][graph]") {
  const int devices = GENERATE(1, 4);
  const Placed placed(GENERATE("2", "1,3"));
  crew::check(crew::run(4, [devices](const Member& m) -> std::string {
    const Gpu& gpu = Gpu::get();
    Rank rank;
    CREW_TRY(make(m, rank, devices));
    const IntsOnGpu in(Ints(kPrime, kPoison));
    const IntsOnGpu out(Ints(kPrime, kPoison));
    const IntsOnGpu eager(Ints(kPrime, kPoison));
    gpu.begin_capture(rank.stream);
    CREW_TRY(fine(sum_up(rank, in.data(), out.data(), kPrime), "captured sum"));
    CREW_TRY(fine(sum_up(rank, out.data(), out.data(), kPrime), "captured sum of sums"));
    CUgraph graph = gpu.end_capture(rank.stream);
    if (!graph) return "the capture was spoilt";
    CUgraphExec executable = gpu.make_executable(graph);
    gpu.destroy(graph);
    for (int replay = 0; replay < 20; ++replay) {
      const Ints mine = values(m.rank + replay, kPrime);
      gpu.copy(in.data(), mine.data(), kPrime * 4, rank.stream);
      if (replay % 3 == 1) CREW_TRY(fine(sum_up(rank, in.data(), eager.data(), kPrime), "a sum before"));
      gpu.launch(executable, rank.stream);
      if (replay % 3 == 2) CREW_TRY(fine(sum_up(rank, in.data(), eager.data(), kPrime), "a sum after"));
      gpu.wait(rank.stream);
      const std::string name = "replay " + std::to_string(replay);
      const auto wanted = [&](std::size_t i) { return sum(4 + replay, i) - sum(replay, i); };
      CREW_TRY(compare(
          out.read(), [&](std::size_t i) { return 4 * wanted(i); }, name));
      if (replay % 3 != 0) CREW_TRY(compare(eager.read(), wanted, name + ", the sum beside"));
    }
    gpu.destroy(executable);
    CREW_TRY(check_mixed_calls(rank.comm, m.ranks, m.rank, kPrime));
    return rank.end();
  }));
}

namespace {

/// Every collective that goes by teams, with `count` elements in the longer buffer, or about as many, of a communicator whose rank r is `rank_of(r)`
/// of the job.
std::string every_collective(const Rank& rank, ncclComm_t comm, const std::function<int(int)>& rank_of,
                             std::size_t count, bool in_place) {
  int me = 0;
  int n = 0;
  CREW_TRY(fine(ncclCommUserRank(comm, &me), "ncclCommUserRank"));
  CREW_TRY(fine(ncclCommCount(comm, &n), "ncclCommCount"));
  const std::size_t block = count / static_cast<std::size_t>(n) + 1;
  const std::size_t whole = block * static_cast<std::size_t>(n);
  const std::size_t own = static_cast<std::size_t>(me) * block;
  const auto total = [&](std::size_t i) { return sum(n, i); };
  const IntsOnGpu in(Ints(whole, kPoison));
  const IntsOnGpu out(Ints(whole, kPoison));
  const auto begin = [&](std::size_t first, std::size_t elements) {
    Ints mine(whole, kPoison);
    for (std::size_t i = 0; i < elements; ++i) mine[first + i] = value(rank_of(me), i);
    in.write(mine);
    out.write(Ints(whole, kPoison));
  };
  const auto check = [&](const std::string& name, ncclResult_t result,
                         const std::function<std::int32_t(std::size_t)>& wanted, std::size_t first,
                         std::size_t elements) -> std::string {
    CREW_TRY(fine(result, name.c_str()));
    Gpu::get().wait(rank.stream);
    const Ints found = (in_place ? in : out).read();
    return compare(Ints(found.begin() + static_cast<std::ptrdiff_t>(first),
                        found.begin() + static_cast<std::ptrdiff_t>(first + elements)),
                   wanted, name + " of " + std::to_string(count) + (in_place ? " in place" : ""));
  };
  std::int32_t* const to = in_place ? in.data() : out.data();
  const auto i32 = ncclInt32;
  begin(own, block);
  CREW_TRY(check(
      "all_gather", ncclAllGather(in.data() + own, to, block, i32, comm, rank.stream),
      [&](std::size_t i) { return value(rank_of(static_cast<int>(i / block)), i % block); }, 0, whole));
  begin(0, whole);
  const std::size_t at = in_place ? own : 0;
  CREW_TRY(check(
      "reduce_scatter", ncclReduceScatter(in.data(), to + at, block, i32, ncclSum, comm, rank.stream),
      [&](std::size_t i) { return total(own + i); }, at, block));
  begin(0, whole);
  CREW_TRY(check(
      "reduce_scatter, average", ncclReduceScatter(in.data(), to + at, block, i32, ncclAvg, comm, rank.stream),
      [&](std::size_t i) { return total(own + i) / n; }, at, block));
  for (int root = 0; root < n; ++root) {
    const std::string name = " from or to " + std::to_string(root);
    begin(0, whole);
    CREW_TRY(check(
        "broadcast" + name, ncclBroadcast(in.data(), to, whole, i32, root, comm, rank.stream),
        [&](std::size_t i) { return value(rank_of(root), i); }, 0, whole));
    begin(0, whole);
    CREW_TRY(check(
        "reduce" + name, ncclReduce(in.data(), to, whole, i32, ncclSum, root, comm, rank.stream),
        [&](std::size_t i) { return me == root ? total(i)
                                    : in_place ? value(rank_of(me), i)
                                               : kPoison; }, 0, whole));
  }
  begin(0, count);
  return check("all_reduce", ncclAllReduce(in.data(), to, count, i32, ncclSum, comm, rank.stream), total, 0, count);
}

}  // namespace

TEST_CASE("teams: every collective, in one part and in several, also where hosts' ranks alternate", "[teams]") {
  const Hosts& hosts = GENERATE(kTwoEach, kThreeEach, kOneAndTwo, kTwoAndThree, kThreeOneTwo);
  const int devices = GENERATE(1, 4);
  INFO(hosts.ranks << ", devices " << devices);
  const Placed placed(hosts.ranks);
  crew::check(crew::run(
      hosts.all,
      [devices](const Member& m) -> std::string {
        setenv("TUTTI_STAGING_BYTES", m.ranks <= 4 ? "65536" : "8192", 1);
        Rank rank;
        CREW_TRY(make(m, rank, devices));
        for (const tuttiCollective_t one :
             {tuttiAllReduce, tuttiReduce, tuttiBroadcast, tuttiReduceScatter, tuttiAllGather}) {
          char text[8192];
          CREW_TRY(
              fine(tuttiExplain(rank.comm, one, kLeast, ncclInt32, ncclSum, 0, text, sizeof text, nullptr), "explain"));
          if (std::string(text).find("teams: ") == std::string::npos) return text;
        }
        for (const std::size_t count : {kLeast, kPrime, std::size_t{30011}}) {
          for (const bool in_place : {false, true})
            CREW_TRY(every_collective(
                rank, rank.comm, [](int r) { return r; }, count, in_place));
        }
        // Every third rank, so that the hosts' alternate.
        std::vector<int> ranks;
        for (int first = 0; first < 3; ++first) {
          for (int r = first; r < m.ranks; r += 3) ranks.push_back(r);
        }
        ncclComm_t mixed = nullptr;
        const auto key = static_cast<int>(std::ranges::find(ranks, m.rank) - ranks.begin());
        CREW_TRY(fine(ncclCommSplit(rank.comm, 0, key, &mixed, nullptr), "ncclCommSplit"));
        const auto rank_of = [&](int r) { return ranks[static_cast<std::size_t>(r)]; };
        for (const bool in_place : {false, true}) CREW_TRY(every_collective(rank, mixed, rank_of, kPrime, in_place));
        CREW_TRY(fine(ncclCommDestroy(mixed), "ncclCommDestroy"));
        return rank.end();
      },
      60));
}

}  // namespace tutti::test
