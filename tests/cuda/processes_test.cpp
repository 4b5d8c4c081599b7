// Communicators on device memory whose ranks are processes: every collective end to end, on the fake driver or a real one. The parent
// never opens the driver, as children that are forked afterwards could not use it.
#include "comm/crew.h"
#include "gpu.h"

#include <nccl.h>
#include <tutti/tutti.h>

#include <catch2/catch.hpp>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <memory>

#include <unistd.h>

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
  /// `devices`: the ranks are on so many, if there are, by turns. On one their streams meet, on several the kernels do.
  std::string open(int devices = 1, int id = 0) {
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    setenv("TUTTI_DEVICE", "cuda", 1);
    if (const std::string reason = Gpu::why_not(); !reason.empty()) return reason;
    Gpu::get().use(m.rank % std::min(devices, Gpu::get().devices()));
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
      [&](std::int32_t* out) { return ncclBroadcast(in.data(), out, count, ncclInt32, root, rank.comm, rank.stream); },
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

TEST_CASE("processes: calls larger than the staging, in place, of all widths", "[device][processes]") {
  const int devices = GENERATE(1, 4);
  crew::check(crew::run(3, [&](const Member& m) -> std::string {
    Rank rank(m);
    CREW_TRY(rank.open(devices));
    CREW_TRY(all_collectives(rank, 300001, 1));
    // In place, and twice without waiting.
    const std::size_t count = 2000001;
    const OnGpu<std::int32_t> both(values(m.rank, count));
    for (int i = 0; i < 2; ++i) {
      CREW_TRY(fine(ncclAllReduce(both.data(), both.data(), count, ncclInt32, ncclSum, rank.comm, rank.stream), "sum"));
    }
    Gpu::get().wait(rank.stream);
    CREW_TRY(differs(
        "in place", both.read(), [&](std::size_t i) { return 3 * sum(3, i); }, count));
    // Bytes, and an average of doubles.
    const OnGpu<std::uint8_t> bytes(std::vector<std::uint8_t>(1001, static_cast<std::uint8_t>(m.rank + 1)));
    const OnGpu<double> doubles(std::vector<double>(33, m.rank));
    CREW_TRY(fine(ncclAllReduce(bytes.data() + 1, bytes.data() + 1, 999, ncclUint8, ncclProd, rank.comm, rank.stream),
                  "bytes"));
    CREW_TRY(
        fine(ncclAllReduce(doubles.data(), doubles.data(), 33, ncclFloat64, ncclAvg, rank.comm, rank.stream), "avg"));
    ncclRedOp_t scaled = ncclSum;
    std::int32_t factor = m.rank + 2;
    const OnGpu<std::int32_t> ones(Values(100, 1));
    CREW_TRY(fine(ncclRedOpCreatePreMulSum(&scaled, &factor, ncclInt32, ncclScalarHostImmediate, rank.comm), "premul"));
    CREW_TRY(fine(ncclAllReduce(ones.data(), ones.data(), 100, ncclInt32, scaled, rank.comm, rank.stream), "scaled"));
    Gpu::get().wait(rank.stream);
    const std::vector<std::uint8_t> found = bytes.read();
    if (found[0] != m.rank + 1 || found[1] != 6 || found[999] != 6 || found[1000] != m.rank + 1) return "bytes differ";
    if (doubles.read()[32] != 1.0) return "the average differs";
    if (ones.read()[99] != 2 + 3 + 4) return "the scaled sum differs";
    CREW_TRY(fine(ncclRedOpDestroy(scaled, rank.comm), "ncclRedOpDestroy"));
    return rank.close();
  }));
}

TEST_CASE("processes: streams, groups and two communicators", "[device][processes]") {
  const int devices = GENERATE(1, 4);
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    Rank rank(m);
    CREW_TRY(rank.open(devices));
    Rank second(m);
    CREW_TRY(second.open(devices, 1));
    const std::size_t count = 5000;
    const OnGpu<std::int32_t> a(values(m.rank, count));
    const OnGpu<std::int32_t> b(Values(count, kPoison));
    const OnGpu<std::int32_t> c(Values(count, m.rank));
    // The second call reads what the first writes, on another stream of the program's, behind it by the communicator's order alone.
    CREW_TRY(fine(ncclAllReduce(a.data(), b.data(), count, ncclInt32, ncclSum, rank.comm, rank.stream), "first"));
    CREW_TRY(fine(ncclAllReduce(b.data(), b.data(), count, ncclInt32, ncclSum, rank.comm, second.stream), "second"));
    CREW_TRY(fine(ncclGroupStart(), "group"));
    for (int i = 0; i < 3; ++i) {
      CREW_TRY(
          fine(ncclAllReduce(c.data(), c.data(), count, ncclInt32, ncclSum, second.comm, second.stream), "grouped"));
    }
    CREW_TRY(fine(ncclBroadcast(a.data(), a.data(), count, ncclInt32, 1, rank.comm, second.stream), "grouped"));
    CREW_TRY(fine(ncclGroupEnd(), "group"));
    Gpu::get().wait(second.stream);
    CREW_TRY(differs(
        "two streams", b.read(), [&](std::size_t i) { return 2 * sum(2, i); }, count));
    CREW_TRY(differs(
        "in a group", c.read(), [&](std::size_t) { return 4; }, count));
    CREW_TRY(differs(
        "broadcast", a.read(), [&](std::size_t i) { return value(1, i); }, count));
    // A part of it, which meets through the parent's host side.
    ncclComm_t part = nullptr;
    CREW_TRY(fine(ncclCommSplit(rank.comm, 0, 1 - m.rank, &part, nullptr), "ncclCommSplit"));
    CREW_TRY(fine(ncclBroadcast(c.data(), b.data(), 10, ncclInt32, 0, part, rank.stream), "in the part"));
    Gpu::get().wait(rank.stream);
    if (b.read()[9] != 4) return "the part's broadcast differs";
    CREW_TRY(fine(ncclCommDestroy(part), "ncclCommDestroy"));
    CREW_TRY(second.close());
    return rank.close();
  }));
}

TEST_CASE("processes: a graph is replayed, with eager calls between", "[device][processes]") {
  const int devices = GENERATE(1, 4);
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    Rank rank(m);
    CREW_TRY(rank.open(devices));
    const Gpu& gpu = Gpu::get();
    const std::size_t count = 2000001;  // two pieces
    const OnGpu<std::int32_t> a(Values(count, 1));
    gpu.begin_capture(rank.stream);
    for (int i = 0; i < 2; ++i) {
      CREW_TRY(fine(ncclAllReduce(a.data(), a.data(), count, ncclInt32, ncclSum, rank.comm, rank.stream), "captured"));
    }
    CUgraph graph = gpu.end_capture(rank.stream);
    if (!graph) return "the capture was spoilt";
    CUgraphExec executable = gpu.make_executable(graph);
    for (int i = 0; i < 3; ++i) {
      gpu.launch(executable, rank.stream);
      CREW_TRY(fine(ncclAllReduce(a.data(), a.data(), count, ncclInt32, ncclMax, rank.comm, rank.stream), "eager"));
    }
    gpu.wait(rank.stream);
    CREW_TRY(differs(
        "replayed", a.read(), [&](std::size_t) { return 64; }, count));
    gpu.destroy(executable);
    gpu.destroy(graph);
    // A call that is captured does not part two that are not, on streams of their own.
    CUstream third = gpu.make_stream();
    const OnGpu<std::int32_t> b(Values(count, 1));
    CREW_TRY(fine(ncclAllReduce(b.data(), b.data(), count, ncclInt32, ncclSum, rank.comm, rank.stream), "first"));
    CUstream captured = gpu.make_stream();
    gpu.begin_capture(captured);
    CREW_TRY(fine(ncclAllReduce(a.data(), a.data(), 5, ncclInt32, ncclSum, rank.comm, captured), "captured"));
    gpu.destroy(gpu.end_capture(captured));
    CREW_TRY(fine(ncclAllReduce(b.data(), b.data(), count, ncclInt32, ncclSum, rank.comm, third), "second"));
    gpu.wait(third);
    CREW_TRY(differs(
        "in order", b.read(), [&](std::size_t) { return 4; }, count));
    gpu.destroy(third);
    gpu.destroy(captured);
    return rank.close();
  }));
}

TEST_CASE("processes: threads of one process and another process", "[device][processes]") {
  // Ranks 0 and 1 are in the first process, rank 2 in the second.
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    setenv("TUTTI_DEVICE", "cuda", 1);
    if (const std::string reason = Gpu::why_not(); !reason.empty()) return reason;
    Gpu::get().use(0);
    const int first = m.rank == 0 ? 0 : 2;
    const int own = m.rank == 0 ? 2 : 1;
    std::vector<ncclComm_t> comms(static_cast<std::size_t>(own));
    std::vector<CUstream> streams;
    std::vector<std::unique_ptr<OnGpu<std::int32_t>>> buffers;
    CREW_TRY(fine(ncclGroupStart(), "group"));
    for (int i = 0; i < own; ++i) {
      CREW_TRY(fine(ncclCommInitRank(&comms[static_cast<std::size_t>(i)], 3, m.ids[0], first + i), "ncclCommInitRank"));
      streams.push_back(Gpu::get().make_stream());
      buffers.push_back(std::make_unique<OnGpu<std::int32_t>>(values(first + i, 4000)));
    }
    CREW_TRY(fine(ncclGroupEnd(), "ncclGroupEnd"));
    CREW_TRY(fine(ncclGroupStart(), "group"));
    for (std::size_t i = 0; i < comms.size(); ++i) {
      std::int32_t* const data = buffers[i]->data();
      CREW_TRY(fine(ncclAllReduce(data, data, 4000, ncclInt32, ncclSum, comms[i], streams[i]), "sum"));
    }
    CREW_TRY(fine(ncclGroupEnd(), "ncclGroupEnd"));
    for (std::size_t i = 0; i < comms.size(); ++i) {
      Gpu::get().wait(streams[i]);
      CREW_TRY(differs(
          "sum", buffers[i]->read(), [&](std::size_t k) { return sum(3, k); }, 4000));
    }
    for (ncclComm_t comm : comms) CREW_TRY(fine(ncclCommDestroy(comm), "ncclCommDestroy"));
    return "";
  }));
}

// What goes wrong.

namespace {

/// Asks until the communicator has failed so.
std::string fails(ncclComm_t comm, ncclResult_t wanted, const std::vector<std::string>& parts) {
  ncclResult_t state = ncclSuccess;
  for (const double end = crew::now_s() + 10; crew::now_s() < end && state == ncclSuccess; usleep(1000)) {
    CREW_TRY(fine(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError"));
  }
  return refused(state, wanted, parts, comm);
}

}  // namespace

TEST_CASE("processes: calls that differ are found by the kernels, and named", "[device][processes]") {
  const int devices = GENERATE(1, 4);
  crew::check(crew::run(3, [&](const Member& m) -> std::string {
    Rank rank(m);
    CREW_TRY(rank.open(devices));
    const OnGpu<std::int32_t> a(values(m.rank, 100));
    CREW_TRY(fine(ncclAllReduce(a.data(), a.data(), 100, ncclInt32, ncclSum, rank.comm, rank.stream), "alike"));
    CREW_TRY(fine(ncclAllReduce(a.data(), a.data(), m.rank == 1 ? 7 : 5, ncclInt32, ncclSum, rank.comm, rank.stream),
                  "unlike"));
    Gpu::get().wait(rank.stream);  // the kernel gives up
    CREW_TRY(fails(rank.comm, ncclInvalidUsage, {"count 7 int32 sum on rank 1", "count 5 int32 sum on rank"}));
    CREW_TRY(refused(ncclAllReduce(a.data(), a.data(), 5, ncclInt32, ncclSum, rank.comm, rank.stream), ncclInvalidUsage,
                     {"count 7 int32 sum on rank 1"}));
    Gpu::get().destroy(rank.stream);
    CREW_TRY(fine(ncclCommAbort(rank.comm), "ncclCommAbort"));
    return "";
  }));
}

TEST_CASE("processes: a rank that is killed ends the others' kernels", "[device][processes]") {
  const int devices = GENERATE(1, 4);
  auto* const called = static_cast<std::atomic<int>*>(crew::shared_page());
  const auto endings = crew::run(3, [&](const Member& m) -> std::string {
    Rank rank(m);
    CREW_TRY(rank.open(devices));
    const OnGpu<std::int32_t> a(values(m.rank, 100));
    CREW_TRY(fine(ncclAllReduce(a.data(), a.data(), 100, ncclInt32, ncclSum, rank.comm, rank.stream), "all"));
    Gpu::get().wait(rank.stream);
    while (m.rank == 1 && *called < 2) usleep(200);
    if (m.rank == 1) raise(SIGKILL);
    CREW_TRY(fine(ncclAllReduce(a.data(), a.data(), 100, ncclInt32, ncclSum, rank.comm, rank.stream), "without one"));
    ++*called;
    Gpu::get().wait(rank.stream);
    CREW_TRY(fails(rank.comm, ncclRemoteError, {"rank 1", "ended without leaving"}));
    Gpu::get().destroy(rank.stream);
    return fine(ncclCommDestroy(rank.comm), "ncclCommDestroy");
  });
  crew::check(endings, {1});
}

TEST_CASE("processes: an abort ends all ranks' kernels", "[device][processes]") {
  const int devices = GENERATE(1, 4);
  auto* const called = static_cast<std::atomic<int>*>(crew::shared_page());
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    Rank rank(m);
    CREW_TRY(rank.open(devices));
    const OnGpu<std::int32_t> a(values(m.rank, 100));
    if (m.rank == 0) {
      CREW_TRY(fine(ncclAllReduce(a.data(), a.data(), 100, ncclInt32, ncclSum, rank.comm, rank.stream), "alone"));
      *called = 1;
      Gpu::get().wait(rank.stream);
      CREW_TRY(fails(rank.comm, ncclRemoteError, {"rank 1 called ncclCommAbort"}));
    }
    while (*called == 0) usleep(200);
    CREW_TRY(fine(ncclCommAbort(rank.comm), "ncclCommAbort"));
    Gpu::get().destroy(rank.stream);
    return "";
  }));
}

TEST_CASE("processes: a rank that left, or does not come, is not waited for", "[device][processes]") {
  const int devices = GENERATE(1, 4);
  const bool leaves = GENERATE(true, false);
  auto* const over = static_cast<std::atomic<int>*>(crew::shared_page());
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    setenv("TUTTI_TIMEOUT_S", leaves ? "20" : "3", 1);
    Rank rank(m);
    CREW_TRY(rank.open(devices));
    const OnGpu<std::int32_t> a(values(m.rank, 100));
    CREW_TRY(fine(ncclAllReduce(a.data(), a.data(), 100, ncclInt32, ncclSum, rank.comm, rank.stream), "all"));
    Gpu::get().wait(rank.stream);
    if (m.rank == 1 && leaves) return rank.close();
    if (m.rank == 1) {
      while (*over == 0) usleep(1000);
      return fine(ncclCommAbort(rank.comm), "ncclCommAbort");
    }
    CREW_TRY(fine(ncclAllReduce(a.data(), a.data(), 7, ncclInt32, ncclSum, rank.comm, rank.stream), "alone"));
    CREW_TRY(fails(rank.comm, ncclRemoteError,
                   {"all_reduce count 7 int32 sum", leaves ? "rank 1 has left" : "TUTTI_TIMEOUT_S"}));
    *over = 1;
    return rank.close();
  }));
}

TEST_CASE("processes: what is not supported says so, and the communicator goes on", "[device][processes]") {
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    Rank rank(m);
    CREW_TRY(rank.open());
    const OnGpu<std::int32_t> a(values(m.rank, 100));
    const ncclResult_t sent = m.rank == 0 ? ncclSend(a.data(), 5, ncclInt32, 1, rank.comm, rank.stream)
                                          : ncclRecv(a.data(), 5, ncclInt32, 0, rank.comm, rank.stream);
    CREW_TRY(refused(sent, ncclInvalidUsage, {"not supported yet", "several processes"}));
    CREW_TRY(fine(ncclAllReduce(a.data(), a.data(), 100, ncclInt32, ncclSum, rank.comm, rank.stream), "afterwards"));
    Gpu::get().wait(rank.stream);
    CREW_TRY(differs(
        "afterwards", a.read(), [&](std::size_t i) { return sum(2, i); }, 100));
    return rank.close();
  }));
}

TEST_CASE("processes: NCCL_P2P_DISABLE refuses, on every rank", "[device][processes]") {
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    setenv("NCCL_P2P_DISABLE", "1", 1);
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    setenv("TUTTI_DEVICE", "cuda", 1);
    if (const std::string reason = Gpu::why_not(); !reason.empty()) return reason;
    ncclComm_t comm = nullptr;
    return refused(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), ncclInvalidUsage, {"NCCL_P2P_DISABLE=1"});
  }));
}

}  // namespace tutti::test
