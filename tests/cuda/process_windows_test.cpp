// Windows of ranks that are processes.
#include "process_ranks.h"

#include <catch2/catch.hpp>

#include <array>
#include <thread>
#include <utility>

namespace tutti::test {
namespace {

/// What a window lies in.
enum class Memory { kAllocated, kMapped, kUnshareable };

/// Memory in a window of all ranks: of ncclMemAlloc, or pieces of cuMemMap, in whose first one it begins.
struct Window {
  static constexpr std::size_t kPiece = std::size_t{2} << 20;
  static constexpr std::size_t kInPiece = 8192;

  ncclComm_t comm = nullptr;
  void* memory = nullptr;
  ncclWindow_t window = nullptr;
  void* reserved = nullptr;
  std::size_t pieces = 0;

  std::string open(const Rank& rank, std::size_t bytes, Memory kind) {
    return open(rank.comm, rank.device, bytes, kind);
  }
  std::string open(ncclComm_t of, int device, std::size_t bytes, Memory kind) {
    comm = of;
    if (kind == Memory::kAllocated) {
      CREW_TRY(fine(ncclMemAlloc(&memory, bytes), "ncclMemAlloc"));
    } else {
      pieces = (kInPiece + bytes + kPiece - 1) / kPiece;
      reserved = Gpu::get().map(device, kPiece, pieces, kind == Memory::kMapped);
      memory = static_cast<std::byte*>(reserved) + kInPiece;
    }
    // On a thread that has no CUDA context.
    ncclResult_t registered = ncclSuccess;
    std::thread([&] {
      registered = ncclCommWindowRegister(comm, memory, bytes, &window, NCCL_WIN_COLL_SYMMETRIC);
    }).join();
    return fine(registered, "ncclCommWindowRegister");
  }
  std::string close() const {
    CREW_TRY(fine(ncclCommWindowDeregister(comm, window), "ncclCommWindowDeregister"));
    if (!reserved) return fine(ncclMemFree(memory), "ncclMemFree");
    Gpu::get().unmap(reserved, kPiece, pieces);
    return "";
  }
  std::int32_t* at(std::size_t element) const { return static_cast<std::int32_t*>(memory) + element; }
  void write(const Values& values) const { Gpu::get().copy(memory, values.data(), values.size() * 4); }
  Values read(std::size_t first, std::size_t count) const {
    Values values(count);
    Gpu::get().copy(values.data(), at(first), count * 4);
    return values;
  }
};

}  // namespace

TEST_CASE("processes: windows of all ranks are worked on in place", "[device][processes]") {
  // Each rank's may be of another kind; one whose memory cannot be shared has all go through the staging.
  constexpr Memory kA = Memory::kAllocated;
  constexpr Memory kM = Memory::kMapped;
  const auto [devices, kinds] =
      GENERATE(std::pair(1, std::array{kA, kA, kA}), std::pair(4, std::array{kM, kM, kM}),
               std::pair(4, std::array{kA, kM, kA}), std::pair(1, std::array{kM, kM, Memory::kUnshareable}));
  crew::check(crew::run(3, [devices = devices, kinds = kinds](const Member& m) -> std::string {
    Rank rank(m);
    CREW_TRY(rank.open(devices));
    const Memory kind = kinds[static_cast<std::size_t>(m.rank)];
    // More than the staging holds, and not at the window's beginning.
    const std::size_t count = 2000003;
    Window in;
    Window out;
    CREW_TRY(in.open(rank, 4 * (3 * count + 5), kind));
    CREW_TRY(out.open(rank, 4 * (3 * count + 5), kind));
    in.write(values(m.rank, 3 * count + 5));
    const auto check = [&](const char* name, ncclResult_t called,
                           const std::function<std::int32_t(std::size_t)>& wanted, std::size_t written) -> std::string {
      CREW_TRY(fine(called, name));
      Gpu::get().wait(rank.stream);
      return differs(name, out.read(1, written), wanted, written);
    };
    const auto total = [&](std::size_t i) { return sum(3, i + 3); };
    CREW_TRY(check("all_reduce", ncclAllReduce(in.at(3), out.at(1), count, ncclInt32, ncclSum, rank.comm, rank.stream),
                   total, count));
    CREW_TRY(check("in place", ncclAllReduce(out.at(1), out.at(1), count, ncclInt32, ncclMax, rank.comm, rank.stream),
                   total, count));
    const auto own = static_cast<std::size_t>(m.rank);
    CREW_TRY(check(
        "reduce_scatter", ncclReduceScatter(in.at(3), out.at(1), count, ncclInt32, ncclSum, rank.comm, rank.stream),
        [&](std::size_t i) { return sum(3, own * count + i + 3); }, count));
    CREW_TRY(check(
        "all_gather", ncclAllGather(in.at(3), out.at(1), count, ncclInt32, rank.comm, rank.stream),
        [&](std::size_t i) { return value(static_cast<int>(i / count), i % count + 3); }, 3 * count));
    CREW_TRY(check(
        "all_to_all", ncclAlltoAll(in.at(0), out.at(1), count, ncclInt32, rank.comm, rank.stream),
        [&](std::size_t i) { return value(static_cast<int>(i / count), own * count + i % count); }, 3 * count));
    CREW_TRY(check(
        "broadcast", ncclBroadcast(in.at(0), out.at(1), count, ncclInt32, 2, rank.comm, rank.stream),
        [&](std::size_t i) { return value(2, i); }, count));
    // The window goes, and its address comes back with other memory: that is in none.
    CREW_TRY(out.close());
    for (int i = 0; i < 4; ++i) {
      const OnGpu<std::int32_t> fresh(Values(100, m.rank));
      CREW_TRY(
          fine(ncclAllReduce(fresh.data(), fresh.data(), 100, ncclInt32, ncclSum, rank.comm, rank.stream), "fresh"));
      Gpu::get().wait(rank.stream);
      CREW_TRY(differs(
          "fresh", fresh.read(), [](std::size_t) { return 3; }, 100));
    }
    CREW_TRY(in.close());
    return rank.close();
  }));
}

TEST_CASE("processes: a window that one rank does not use is a call that differs", "[device][processes]") {
  const Memory kind = GENERATE(Memory::kAllocated, Memory::kMapped);
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    Rank rank(m);
    CREW_TRY(rank.open());
    Window window;
    CREW_TRY(window.open(rank, 4096, kind));
    const OnGpu<std::int32_t> outside(Values(9, 1));
    std::int32_t* const data = m.rank == 0 ? window.at(0) : outside.data();
    CREW_TRY(fine(ncclAllReduce(data, data, 9, ncclInt32, ncclSum, rank.comm, rank.stream), "unlike"));
    Gpu::get().wait(rank.stream);
    ncclResult_t state = ncclSuccess;
    while (state == ncclSuccess) CREW_TRY(fine(ncclCommGetAsyncError(rank.comm, &state), "ncclCommGetAsyncError"));
    CREW_TRY(refused(state, ncclInvalidUsage, {"count 9 int32 sum in windows on rank 0", "sum on rank 1"}, rank.comm));
    CREW_TRY(window.close());
    Gpu::get().destroy(rank.stream);
    return fine(ncclCommAbort(rank.comm), "ncclCommAbort");
  }));
}

TEST_CASE("processes: a window that a rank has not registered when it leaves is told", "[device][processes]") {
  // Also where the call would go through host memory without it.
  const char* const host_bytes = GENERATE("0", "1M");
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    setenv("TUTTI_SHARED_GPU_HOST_BYTES", host_bytes, 1);
    Rank rank(m);
    CREW_TRY(rank.open());
    ncclComm_t other = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&other, m.ranks, m.ids[1], m.rank), "ncclCommInitRank"));
    const OnGpu<std::int32_t> numbers(values(m.rank, 9));
    const auto sum_up = [&] {
      return ncclAllReduce(numbers.data(), numbers.data(), 9, ncclInt32, ncclSum, other, rank.stream);
    };
    // Another communicator's call of the group is made all the same.
    const auto check = [&]() -> std::string {
      Gpu::get().wait(rank.stream);
      CREW_TRY(differs(
          "the other's", numbers.read(), [&](std::size_t i) { return sum(2, i); }, 9));
      return fine(ncclCommDestroy(other), "ncclCommDestroy");
    };
    if (m.rank == 1) {
      CREW_TRY(fine(sum_up(), "sum"));
      CREW_TRY(fine(ncclCommDestroy(rank.comm), "ncclCommDestroy"));  // which the other rank is told of
      CREW_TRY(check());
      Gpu::get().destroy(rank.stream);
      return "";
    }
    Window window;
    CREW_TRY(window.open(rank, 4096, Memory::kAllocated));
    CREW_TRY(fine(ncclGroupStart(), "group"));
    CREW_TRY(fine(ncclAllReduce(window.at(0), window.at(0), 9, ncclInt32, ncclSum, rank.comm, rank.stream), "sum"));
    CREW_TRY(fine(sum_up(), "sum"));
    CREW_TRY(refused(ncclGroupEnd(), ncclRemoteError, {"rank 1 has no window 1, with which rank 0 calls"}, rank.comm));
    CREW_TRY(check());
    CREW_TRY(fails(rank.comm, ncclRemoteError, {"rank 1 has no window 1"}));
    Gpu::get().destroy(rank.stream);
    return fine(ncclCommAbort(rank.comm), "ncclCommAbort");
  }));
}

TEST_CASE("processes: windows of threads of one process and of another process", "[device][processes]") {
  const Memory kind = GENERATE(Memory::kAllocated, Memory::kMapped);
  // Ranks 0 and 1 are in the first process, rank 2 in the second; each has a GPU.
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    setenv("TUTTI_DEVICE", "cuda", 1);
    setenv("TUTTI_SHARED_GPU_HOST_BYTES", "0", 1);
    if (const std::string reason = Gpu::why_not(); !reason.empty()) return reason;
    if (Gpu::get().devices() < 3) return "";
    const std::vector<int> own = m.rank == 0 ? std::vector{0, 1} : std::vector{2};
    std::vector<ncclComm_t> comms(own.size());
    std::vector<CUstream> streams;
    std::vector<Window> windows(own.size());
    CREW_TRY(fine(ncclGroupStart(), "group"));
    for (std::size_t i = 0; i < own.size(); ++i) {
      Gpu::get().use(own[i]);
      streams.push_back(Gpu::get().make_stream());
      CREW_TRY(fine(ncclCommInitRank(&comms[i], 3, m.ids[0], own[i]), "ncclCommInitRank"));
    }
    CREW_TRY(fine(ncclGroupEnd(), "ncclGroupEnd"));
    constexpr std::size_t kCount = 700001;  // three pieces
    for (std::size_t i = 0; i < own.size(); ++i) {
      Gpu::get().use(own[i]);
      CREW_TRY(windows[i].open(comms[i], own[i], 4 * kCount, kind));
      windows[i].write(values(own[i], kCount));
    }
    for (int round = 1; round <= 2; ++round) {
      CREW_TRY(fine(ncclGroupStart(), "group"));
      for (std::size_t i = 0; i < own.size(); ++i) {
        std::int32_t* const data = windows[i].at(0);
        const ncclRedOp_t op = round == 1 ? ncclSum : ncclMax;
        CREW_TRY(fine(ncclAllReduce(data, data, kCount, ncclInt32, op, comms[i], streams[i]), "ncclAllReduce"));
      }
      CREW_TRY(fine(ncclGroupEnd(), "ncclGroupEnd"));
      for (std::size_t i = 0; i < own.size(); ++i) {
        Gpu::get().use(own[i]);
        Gpu::get().wait(streams[i]);
        CREW_TRY(differs(
            "sum", windows[i].read(0, kCount), [&](std::size_t k) { return sum(3, k); }, kCount));
      }
    }
    for (std::size_t i = 0; i < own.size(); ++i) {
      Gpu::get().use(own[i]);
      CREW_TRY(windows[i].close());
      Gpu::get().destroy(streams[i]);
      CREW_TRY(fine(ncclCommDestroy(comms[i]), "ncclCommDestroy"));
    }
    return "";
  }));
}

TEST_CASE("processes: a graph's window that is registered no more, when another one has its place",
          "[device][processes][in place]") {
  const int devices = GENERATE(from_range(over_gpus({1, 2})));
  const int others = GENERATE(0, 8);  // so many have places
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    Rank rank(m);
    CREW_TRY(rank.open(devices));
    const Gpu& gpu = Gpu::get();
    constexpr std::size_t kMany = 100000;
    const auto sum_up = [&](const Window& window) {
      return fine(ncclAllReduce(window.at(0), window.at(0), kMany, ncclInt32, ncclSum, rank.comm, rank.stream), "sum");
    };
    Window captured;
    CREW_TRY(captured.open(rank, 4 * kMany, Memory::kAllocated));
    gpu.begin_capture(rank.stream);
    CREW_TRY(sum_up(captured));
    CUgraph graph = gpu.end_capture(rank.stream);
    if (!graph) return "the capture was spoilt";
    CUgraphExec executable = gpu.make_executable(graph);
    gpu.destroy(graph);
    CREW_TRY(fine(ncclCommWindowDeregister(rank.comm, captured.window), "ncclCommWindowDeregister"));
    for (int i = 0; i < others; ++i) {
      Window other;
      CREW_TRY(other.open(rank, 4 * kMany, Memory::kAllocated));
      CREW_TRY(sum_up(other));
      gpu.wait(rank.stream);
      if (i + 1 < others) CREW_TRY(other.close());
    }
    gpu.launch(executable, rank.stream);
    gpu.wait(rank.stream);
    CREW_TRY(fails(rank.comm, ncclInternalError, {"no mapping", "registered no more"}));
    CREW_TRY(fine(ncclCommAbort(rank.comm), "ncclCommAbort"));
    gpu.destroy(executable);
    gpu.destroy(rank.stream);
    return "";
  }));
}

TEST_CASE("processes: windows of mapped memory come and go", "[device][processes]") {
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    Rank rank(m);
    CREW_TRY(rank.open(2));
    crew::Belongings before{};
    for (int i = 0; i < 60; ++i) {
      Window window;
      CREW_TRY(window.open(rank, 5 << 20, Memory::kMapped));
      // Not all are called with, and those that are come back at the same addresses with other memory.
      if (i % 3 == 0) {
        window.write(Values(700000, m.rank + i));
        CREW_TRY(fine(ncclAllReduce(window.at(0), window.at(0), 700000, ncclInt32, ncclSum, rank.comm, rank.stream),
                      "ncclAllReduce"));
        Gpu::get().wait(rank.stream);
        CREW_TRY(differs(
            "all_reduce", window.read(0, 700000), [i](std::size_t) { return 2 * i + 1; }, 700000));
      }
      CREW_TRY(window.close());
      if (i == 10) before = crew::Belongings::count();
    }
    CREW_TRY(crew::left_behind(before));
    return rank.close();
  }));
}

}  // namespace tutti::test
