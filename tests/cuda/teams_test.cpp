// Sums among GPUs of several hosts, of which each host's ranks share out what crosses: by kernels within hosts, through host memory between
// them. Hosts are made by NCCL_HOSTID; ranks are processes, each with a fake driver of its own.
#include "fake_driver.h"
#include "mixed_calls.h"
#include "staged_rank.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <utility>

namespace tutti::test {
namespace {

/// The shortest sum of ints that goes by teams, and some that have several parts of kPartBytes each.
constexpr std::size_t kLeast = 16384;
constexpr std::size_t kPrime = 16411;

/// How many ranks each host has, until the end of the scope.
struct Placed {
  explicit Placed(const char* ranks_per_host) { setenv("TEST_RANKS_PER_HOST", ranks_per_host, 1); }
  ~Placed() { unsetenv("TEST_RANKS_PER_HOST"); }
};

/// `devices`: the ranks are on so many, by turns.
std::string make(const Member& m, Rank& rank, int devices = 4) {
  if (std::string why = Gpu::why_not(); !why.empty()) return why;
  Gpu::get().use(m.rank % std::min(devices, Gpu::get().devices()));
  return Rank::make(m, rank);
}

ncclResult_t sum_up(const Rank& rank, const std::int32_t* in, std::int32_t* out, std::size_t count) {
  return ncclAllReduce(in, out, count, ncclInt32, ncclSum, rank.comm, rank.stream);
}

std::string check_sum(const Rank& rank, std::size_t count, bool in_place) {
  const Member& m = rank.member;
  const IntsOnGpu in(values(m.rank, count));
  const IntsOnGpu out(Ints(count, kPoison));
  std::int32_t* const to = in_place ? in.data() : out.data();
  CREW_TRY(fine(sum_up(rank, in.data(), to, count), "sum"));
  Gpu::get().wait(rank.stream);
  const std::string name = std::to_string(count) + (in_place ? " in place" : "");
  CREW_TRY(compare(
      in_place ? in.read() : out.read(), [&](std::size_t i) { return sum(m.ranks, i); }, name));
  if (in_place) return "";
  return compare(
      in.read(), [&](std::size_t i) { return value(m.rank, i); }, name + ", the input");
}

}  // namespace

TEST_CASE("teams: sums of all lengths, in place and not", "[teams]") {
  const int per_host = GENERATE(2, 3);
  const int devices = GENERATE(1, 4);  // on one, streams meet; on several, kernels wait for each other
  const Placed placed(std::to_string(per_host).c_str());
  crew::check(crew::run(2 * per_host, [devices](const Member& m) -> std::string {
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
};
constexpr TypeCase kTypes[] = {{ncclInt8, 1, 1, 4},
                               {ncclUint8, 1, 1, 4},
                               {ncclInt32, 4, 1, 4},
                               {ncclUint32, 4, 1, 4},
                               {ncclInt64, 8, 1, 4},
                               {ncclUint64, 8, 1, 4},
                               {ncclFloat16, 2, 0x3c00, 0x4400},
                               {ncclBfloat16, 2, 0x3f80, 0x4080},
                               {ncclFloat32, 4, 0x3f800000, 0x40800000},
                               {ncclFloat64, 8, 0x3ff0000000000000, 0x4010000000000000},
                               {ncclFloat8e4m3, 1, 0x38, 0x48},
                               {ncclFloat8e5m2, 1, 0x3c, 0x44}};

std::vector<std::uint8_t> filled(std::size_t count, std::size_t bytes, std::uint64_t with) {
  std::vector<std::uint8_t> all(count * bytes);
  for (std::size_t i = 0; i < count; ++i) std::memcpy(all.data() + i * bytes, &with, bytes);
  return all;
}

/// Numbers whose average is another one if it is made of hosts' averages.
std::int32_t uneven(int rank, std::size_t i) {
  return (rank == 0 ? 1 : rank == 3 ? 3 : 2) + static_cast<std::int32_t>(4 * (i % 7));
}

}  // namespace

TEST_CASE("teams: every type, every operation", "[teams]") {
  const Placed placed("2");
  crew::check(crew::run(4, [](const Member& m) -> std::string {
    Rank rank;
    CREW_TRY(make(m, rank));
    for (const TypeCase& t : kTypes) {
      const std::size_t count = 65599 / t.bytes + 1;
      const OnGpu<std::uint8_t> data(filled(count, t.bytes, t.one));
      for (const auto& [op, wanted] :
           {std::pair(ncclSum, t.four), std::pair(ncclAvg, t.one), std::pair(ncclProd, t.one)}) {
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
    CREW_TRY(ints(ncclMax, "max", value, [](std::size_t i) { return value(3, i); }));
    CREW_TRY(ints(ncclMin, "min", value, [](std::size_t i) { return value(0, i); }));
    CREW_TRY(
        ints(ncclAvg, "average", uneven, [](std::size_t i) { return 2 + static_cast<std::int32_t>(4 * (i % 7)); }));
    return rank.end();
  }));
}

TEST_CASE("teams: a factor is applied once, whether the host or the GPU has it", "[teams]") {
  const Placed placed("2");
  crew::check(crew::run(4, [](const Member& m) -> std::string {
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
      for (int r = 0; r < 4; ++r) wanted += 0.25 * (r + 1) * (10.0 + r);
      if (data.read() != std::vector<double>(kPrime, wanted)) return "the scaled sum is wrong";
    }
    return rank.end();
  }));
}

TEST_CASE("teams: of each rank's data a share crosses, and the next part is on its way before one is waited for",
          "[teams]") {
  const Placed placed("2");
  crew::check(crew::run(4, [](const Member& m) -> std::string {
    constexpr std::size_t kCount = 40960;  // 40 parts
    constexpr std::size_t kShareBytes = kCount * 4 / 2;
    using What = fake_driver::Given::What;
    Rank rank;
    CREW_TRY(make(m, rank));
    const IntsOnGpu data(values(m.rank, kCount));
    std::uint64_t before = 0;
    std::uint64_t after = 0;
    CREW_TRY(fine(tuttiCommWireBytes(rank.comm, &before), "tuttiCommWireBytes"));
    fake_driver::note_given();
    CREW_TRY(fine(sum_up(rank, data.data(), data.data(), kCount), "sum"));
    const std::vector<fake_driver::Given> given = fake_driver::given();
    Gpu::get().wait(rank.stream);
    CREW_TRY(compare(
        data.read(), [&](std::size_t i) { return sum(4, i); }, "sum"));
    CREW_TRY(fine(tuttiCommWireBytes(rank.comm, &after), "tuttiCommWireBytes"));
    std::size_t copied = 0;
    std::size_t copies = 0;
    std::size_t waits = 0;
    for (const fake_driver::Given& one : given) {
      copied += one.what == What::kCopyToHost ? one.bytes : 0;
      copies += one.what == What::kCopyToHost;
      if (one.what != What::kWaitForWord || waits++ == 0) continue;  // the first: that all make the call
      const std::size_t parts = kCount * 4 / kPartBytes;
      if (copies != std::min(waits, parts))
        return std::to_string(copies) + " shares were copied before the wait for part " + std::to_string(waits - 2);
    }
    if (copied != kShareBytes) return std::to_string(copied) + " bytes were copied to the host";
    if (after - before < kShareBytes) return std::to_string(after - before) + " bytes went to the other host";
    if (after - before > kShareBytes * 3 / 2) return std::to_string(after - before) + " bytes are more than a share";
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
               Way{"1,3", "", "", kLeast, false}, Way{"2", "NCCL_P2P_DISABLE", "1", kLeast, false},
               Way{"2", "NCCL_ALGO", "ring", kLeast, false}, Way{"2", "FAKE_CUDA_IPC", "0", kLeast, false},
               Way{"2", "TUTTI_REPRODUCIBLE", "1", kLeast, false});
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
    const bool says =
        std::string(text).find("teams: GPU memory of 2 hosts with 2 ranks each, in parts of up to 1024") !=
        std::string::npos;
    if (says != way.by_teams) return text;
    return rank.end();
  }));
}

TEST_CASE("teams: groups, other collectives beside, several communicators, and a part of one", "[teams]") {
  const Placed placed("2");
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
  const Placed placed("2");
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
  const int per_host = GENERATE(2, 3);
  const int devices = GENERATE(1, 4);
  const Placed placed(std::to_string(per_host).c_str());
  crew::check(crew::run(2 * per_host, [=](const Member& m) -> std::string {
    setenv("TUTTI_STAGING_BYTES", m.ranks == 4 ? "65536" : "8192", 1);
    Rank rank;
    CREW_TRY(make(m, rank, devices));
    for (const std::size_t count : {kLeast, kPrime, std::size_t{30011}}) {
      for (const bool in_place : {false, true})
        CREW_TRY(every_collective(
            rank, rank.comm, [](int r) { return r; }, count, in_place));
    }
    // Rank 0 of each host, rank 1 of each ...
    ncclComm_t mixed = nullptr;
    const int key = m.rank % per_host * 2 + m.rank / per_host;
    CREW_TRY(fine(ncclCommSplit(rank.comm, 0, key, &mixed, nullptr), "ncclCommSplit"));
    const auto rank_of = [=](int r) { return r % 2 * per_host + r / 2; };
    for (const bool in_place : {false, true}) CREW_TRY(every_collective(rank, mixed, rank_of, kPrime, in_place));
    CREW_TRY(fine(ncclCommDestroy(mixed), "ncclCommDestroy"));
    return rank.end();
  }));
}

}  // namespace tutti::test
