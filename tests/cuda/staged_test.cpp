// Communicators on device memory whose ranks are processes: their data goes through host memory, in parts. On the fake driver, of which each
// process has its own.
#include "staged_rank.h"

#include <catch2/catch.hpp>

namespace tutti::test {
namespace {

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
  return compare(
      in.read(), [&](std::size_t i) { return value(me, i); }, "an input");
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
      CREW_TRY(compare(
          out.read(), [&](std::size_t i) { return sum(m.ranks, i); }, "sum"));
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

TEST_CASE("staged: in place", "[staged]") {
  crew::check(crew::run(3, [](const Member& m) -> std::string {
    Rank rank;
    CREW_TRY(Rank::make(m, rank));
    constexpr std::size_t kCount = 1500;
    const auto own = static_cast<std::size_t>(m.rank) * kCount;
    const IntsOnGpu all(values(m.rank, 3 * kCount));
    const auto block = [&](std::size_t i) { return static_cast<int>(i / kCount); };
    CREW_TRY(
        fine(ncclAllReduce(all.data(), all.data(), 3 * kCount, ncclInt32, ncclSum, rank.comm, rank.stream), "sum"));
    Gpu::get().wait(rank.stream);
    CREW_TRY(compare(
        all.read(), [&](std::size_t i) { return sum(3, i); }, "all_reduce"));
    all.write(values(m.rank, 3 * kCount));
    CREW_TRY(fine(ncclAlltoAll(all.data(), all.data(), kCount, ncclInt32, rank.comm, rank.stream), "all_to_all"));
    Gpu::get().wait(rank.stream);
    CREW_TRY(compare(
        all.read(), [&](std::size_t i) { return value(block(i), own + i % kCount); }, "all_to_all"));
    all.write(values(m.rank, 3 * kCount));
    CREW_TRY(fine(ncclReduceScatter(all.data(), all.data() + own, kCount, ncclInt32, ncclSum, rank.comm, rank.stream),
                  "reduce_scatter"));
    CREW_TRY(
        fine(ncclAllGather(all.data() + own, all.data(), kCount, ncclInt32, rank.comm, rank.stream), "all_gather"));
    Gpu::get().wait(rank.stream);
    CREW_TRY(compare(
        all.read(), [&](std::size_t i) { return sum(3, i); }, "reduce_scatter and all_gather"));
    return rank.end();
  }));
}

TEST_CASE("staged: other types, and a factor that lies on the GPU", "[staged]") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    Rank rank;
    CREW_TRY(Rank::make(m, rank));
    constexpr std::size_t kCount = 3001;
    const OnGpu<std::uint8_t> bytes(std::vector<std::uint8_t>(kCount, static_cast<std::uint8_t>(m.rank + 3)));
    const OnGpu<double> doubles(std::vector<double>(kCount, 0.25 * (m.rank + 1)));
    const OnGpu<double> factor({0});
    const std::vector<double> ten{10.0 + m.rank};
    CREW_TRY(
        fine(ncclAllReduce(bytes.data(), bytes.data(), kCount, ncclUint8, ncclMax, rank.comm, rank.stream), "max"));
    ncclRedOp_t scaled = ncclSum;
    CREW_TRY(fine(ncclRedOpCreatePreMulSum(&scaled, factor.data(), ncclFloat64, ncclScalarDevice, rank.comm), "op"));
    // Written in the stream's order, after the operation was made.
    Gpu::get().copy(factor.data(), ten.data(), sizeof(double), rank.stream);
    CREW_TRY(fine(ncclAllReduce(doubles.data(), doubles.data(), kCount, ncclFloat64, scaled, rank.comm, rank.stream),
                  "scaled"));
    CREW_TRY(fine(ncclRedOpDestroy(scaled, rank.comm), "ncclRedOpDestroy"));
    Gpu::get().wait(rank.stream);
    // Pinned host memory is as good as a GPU's.
    auto* const pinned = static_cast<std::uint8_t*>(Gpu::get().allocate_pinned(kCount));
    for (std::size_t i = 0; i < kCount; ++i) pinned[i] = static_cast<std::uint8_t>(i + 7 * m.rank);
    CREW_TRY(fine(ncclBroadcast(pinned, pinned, kCount, ncclUint8, 1, rank.comm, rank.stream), "broadcast"));
    Gpu::get().wait(rank.stream);
    for (std::size_t i = 0; i < kCount; ++i) {
      if (pinned[i] != static_cast<std::uint8_t>(i + 7)) return "pinned memory is wrong";
    }
    Gpu::get().release_pinned(pinned);
    if (bytes.read() != std::vector<std::uint8_t>(kCount, 4)) return "the greater byte is wrong";
    if (doubles.read() != std::vector<double>(kCount, 0.25 * 10 + 0.5 * 11)) return "the scaled sum is wrong";
    return rank.end();
  }));
}

}  // namespace tutti::test
