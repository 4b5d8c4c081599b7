// Communicators on device memory whose ranks are processes: every collective end to end, on the fake driver or a real one. The parent
// never opens the driver, as children that are forked afterwards could not use it.
#include "mixed_calls.h"
#include "process_ranks.h"

#include <tutti/tutti.h>
#include <catch2/catch.hpp>

#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>

namespace tutti::test {
namespace {

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
  const int devices = GENERATE(from_range(over_gpus({1, 2, 4})));
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

TEST_CASE("processes: kernels on a GPU that processes have by turns wait for nobody", "[device][processes]") {
  char turns[] = "/tmp/fake-cuda-turns-XXXXXX";
  const int file = mkstemp(turns);
  REQUIRE(file >= 0);
  close(file);
  setenv("FAKE_CUDA_TURNS", turns, 1);
  crew::check(crew::run(3, [&](const Member& m) -> std::string {
    Rank rank(m);
    CREW_TRY(rank.open(1));
    for (const std::size_t count : {std::size_t{7}, std::size_t{20011}}) CREW_TRY(all_collectives(rank, count, 1));
    CREW_TRY(check_mixed_calls(rank.comm, m.ranks, m.rank, 20011));
    return rank.close();
  }));
  unsetenv("FAKE_CUDA_TURNS");
  unlink(turns);
}

TEST_CASE("processes: few bytes go through host memory on a GPU that processes have by turns, many by kernels",
          "[device][processes]") {
  const int devices = GENERATE(from_range(over_gpus({1, 2})));
  crew::check(crew::run(3, [&](const Member& m) -> std::string {
    setenv("TUTTI_SHARED_GPU_HOST_BYTES", "4000", 1);
    Rank rank(m);
    CREW_TRY(rank.open(devices));
    const auto goes_through_host = [&](tuttiCollective_t collective, std::size_t count) {
      char text[8192] = {};
      (void)tuttiExplain(rank.comm, collective, count, ncclInt32, ncclSum, 0, text, sizeof text, nullptr);
      return std::string_view(text).find("staged: ") != std::string_view::npos;
    };
    // The longest buffer counts.
    if (!goes_through_host(tuttiAllReduce, 1000) || goes_through_host(tuttiAllReduce, 1001)) return "all-reduce";
    if (!goes_through_host(tuttiAllGather, 333) || goes_through_host(tuttiAllGather, 334)) return "all-gather";
    for (const std::size_t count : {std::size_t{7}, std::size_t{400}, std::size_t{1000}, std::size_t{20011}}) {
      CREW_TRY(all_collectives(rank, count, 1));
    }
    CREW_TRY(check_mixed_calls(rank.comm, m.ranks, m.rank, 900));
    return rank.close();
  }));
}

TEST_CASE("processes: a call by kernels does not wait for one through host memory that others have yet to make",
          "[device][processes]") {
  // Ranks 0 and 1 are one thread's.
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    setenv("TUTTI_TIMEOUT_S", "10", 1);
    setenv("TUTTI_SHARED_GPU_HOST_BYTES", "4000", 1);
    TwoAndOne ranks(m);
    CREW_TRY(ranks.open(m));
    const auto& [first, devices, comms] = ranks;
    const Gpu& gpu = Gpu::get();
    std::vector<std::unique_ptr<OnGpu<std::int32_t>>> buffers;
    std::vector<CUstream> streams;
    for (std::size_t i = 0; i < comms.size(); ++i) {
      streams.push_back(gpu.make_stream());
      for (const std::size_t count : {std::size_t{100}, std::size_t{20000}, std::size_t{200}}) {
        buffers.push_back(std::make_unique<OnGpu<std::int32_t>>(values(first + static_cast<int>(i), count)));
        void* const data = buffers.back()->data();
        CREW_TRY(fine(ncclAllReduce(data, data, count, ncclInt32, ncclSum, comms[i], streams[i]), "sum"));
      }
    }
    for (CUstream stream : streams) gpu.wait(stream);
    for (const auto& buffer : buffers) {
      const Values found = buffer->read();
      CREW_TRY(differs(
          "sum", found, [&](std::size_t i) { return sum(3, i); }, found.size()));
    }
    for (ncclComm_t comm : comms) CREW_TRY(fine(ncclCommDestroy(comm), "ncclCommDestroy"));
    for (CUstream stream : streams) gpu.destroy(stream);
    return "";
  }));
}

TEST_CASE("processes: calls that differ so much that one goes through host memory are told", "[device][processes]") {
  const std::size_t odd = GENERATE(0, 1);
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    setenv("TUTTI_SHARED_GPU_HOST_BYTES", "1M", 1);
    Rank rank(m);
    CREW_TRY(rank.open());
    const std::size_t count = static_cast<std::size_t>(m.rank) == odd ? 300000 : 5;
    const OnGpu<std::int32_t> a(values(m.rank, count));
    (void)ncclAllReduce(a.data(), a.data(), count, ncclInt32, ncclSum, rank.comm, rank.stream);
    CREW_TRY(fails(rank.comm, ncclInvalidUsage, {"calls differ", "count 300000", "count 5", "through host memory"}));
    Gpu::get().wait(rank.stream);
    return fine(ncclCommAbort(rank.comm), "ncclCommAbort");
  }));
}

TEST_CASE("processes: calls larger than the staging, in place, of all widths", "[device][processes]") {
  const int devices = GENERATE(from_range(over_gpus({1, 4})));
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
    // A factor on the GPU, which may change until the call's turn.
    const OnGpu<std::int32_t> factors(Values(1, m.rank + 5));
    CREW_TRY(fine(ncclRedOpCreatePreMulSum(&scaled, factors.data(), ncclInt32, ncclScalarDevice, rank.comm), "premul"));
    const OnGpu<std::int32_t> twos(Values(100, 2));
    CREW_TRY(fine(ncclAllReduce(twos.data(), twos.data(), 100, ncclInt32, scaled, rank.comm, rank.stream), "scaled"));
    Gpu::get().wait(rank.stream);
    if (twos.read()[99] != 2 * (5 + 6 + 7)) return "the sum scaled by what is on the GPU differs";
    CREW_TRY(fine(ncclRedOpDestroy(scaled, rank.comm), "ncclRedOpDestroy"));
    return rank.close();
  }));
}

TEST_CASE("processes: streams, groups and two communicators", "[device][processes]") {
  const int devices = GENERATE(from_range(over_gpus({1, 4})));
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
  const int devices = GENERATE(from_range(over_gpus({1, 4})));
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

TEST_CASE("processes: a group of two communicators comes behind a graph's send of one and a send of the other",
          "[device][processes]") {
  const int devices = GENERATE(from_range(over_gpus({1, 4})));
  CAPTURE(devices);
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    setenv("TUTTI_TIMEOUT_S", "10", 1);
    const Gpu& gpu = Gpu::get();
    Rank rank(m);
    CREW_TRY(rank.open(devices));
    Rank second(m);
    CREW_TRY(second.open(devices, 1));
    constexpr std::size_t kCount = 5000;
    const OnGpu<std::int32_t> sent(values(m.rank, kCount));
    const OnGpu<std::int32_t> received[] = {OnGpu(Values(kCount, kPoison)), OnGpu(Values(kCount, kPoison))};
    const OnGpu<std::int32_t> sums[] = {OnGpu(Values(kCount, kPoison)), OnGpu(Values(kCount, kPoison))};
    const auto swap = [&](const Rank& with, int at) -> std::string {
      CREW_TRY(fine(ncclGroupStart(), "group"));
      CREW_TRY(fine(ncclSend(sent.data(), kCount, ncclInt32, 1 - m.rank, with.comm, rank.stream), "send"));
      CREW_TRY(fine(ncclRecv(received[at].data(), kCount, ncclInt32, 1 - m.rank, with.comm, rank.stream), "receive"));
      return fine(ncclGroupEnd(), "group of a send and a receive");
    };
    gpu.begin_capture(rank.stream);
    CREW_TRY(swap(rank, 0));
    CUgraph graph = gpu.end_capture(rank.stream);
    if (!graph) return "the capture was spoilt";
    CUgraphExec executable = gpu.make_executable(graph);
    gpu.destroy(graph);
    // The program is ahead of its stream.
    auto* const gate = static_cast<std::uint32_t*>(gpu.allocate_pinned(4096));
    *gate = 0;
    gpu.wait_for_word(rank.stream, gate, 1);
    gpu.launch(executable, rank.stream);
    CREW_TRY(swap(second, 1));
    const std::jthread opens([gate] {
      usleep(200000);
      std::atomic_ref(*gate).store(1);
    });
    CREW_TRY(fine(ncclGroupStart(), "group"));
    for (int i = 0; i < 2; ++i) {
      const ncclComm_t comm = i == 0 ? rank.comm : second.comm;
      CREW_TRY(fine(ncclAllReduce(sent.data(), sums[i].data(), kCount, ncclInt32, ncclSum, comm, rank.stream), "sum"));
    }
    CREW_TRY(fine(ncclGroupEnd(), "group of two communicators"));
    gpu.wait(rank.stream);
    for (int i = 0; i < 2; ++i) {
      CREW_TRY(differs(
          "received", received[i].read(), [&](std::size_t at) { return value(1 - m.rank, at); }, kCount));
      CREW_TRY(differs(
          "sum", sums[i].read(), [&](std::size_t at) { return sum(2, at); }, kCount));
    }
    gpu.destroy(executable);
    gpu.release_pinned(gate);
    CREW_TRY(second.close());
    return rank.close();
  }));
}

TEST_CASE("processes: graphs and calls on any streams go in the order in which the program gives them",
          "[device][processes]") {
  const int devices = GENERATE(from_range(over_gpus({1, 4})));
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    Rank rank(m);
    CREW_TRY(rank.open(devices));
    for (const std::size_t count : {std::size_t{5}, std::size_t{300001}}) {
      CREW_TRY(check_mixed_calls(rank.comm, m.ranks, m.rank, count));
    }
    return rank.close();
  }));
}

TEST_CASE("processes: threads of one process and another process", "[device][processes]") {
  // Ranks 0 and 1 are in the first process, rank 2 in the second.
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    setenv("TUTTI_DEVICE", "cuda", 1);
    setenv("TUTTI_SHARED_GPU_HOST_BYTES", "0", 1);
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

}  // namespace tutti::test
