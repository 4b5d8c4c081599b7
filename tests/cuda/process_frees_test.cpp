// What one rank's thread frees of what others have left, while kernels of another rank of its process, on another GPU, wait for what it does next:
// to free memory waits for all that is on its device (FAKE_CUDA_IDLE_MAPPING).
#include "fake_driver.h"
#include "shared_buffers.h"

#include <catch2/catch.hpp>

#include <array>
#include <atomic>
#include <list>
#include <vector>

#include <unistd.h>

namespace tutti::test {
namespace {

constexpr std::size_t kCount = 300007;

/// Ranks 0 and 1 in one process, 2 in another, each with a GPU of its own.
struct RanksApart : TwoAndOne {
  std::vector<CUstream> streams;

  explicit RanksApart(const Member& m) : TwoAndOne(m, {0, 1, 2}) {
    setenv("FAKE_CUDA_IDLE_MAPPING", "1", 1);
    setenv("TUTTI_IN_PLACE_WAIT_S", "20", 1);
    unsetenv("NCCL_ALGO");
  }
  void make_streams() {
    for (std::size_t i = 0; i < comms.size(); ++i) {
      use(i);
      streams.push_back(Gpu::get().make_stream());
    }
    use(0);
  }
  std::string sum(std::size_t own, void* data, std::size_t count) const {
    use(own);
    return fine(ncclAllReduce(data, data, count, ncclInt32, ncclSum, comms[own], streams[own]), "ncclAllReduce");
  }
  std::string wait_for(const OnGpu<std::int32_t>& numbers, std::size_t own) const {
    use(own);
    Gpu::get().wait(streams[own]);
    return differs(
        "sum", numbers.read(), [](std::size_t) { return 3; }, 1);
  }
  std::string destroy(std::size_t own) const {
    use(own);
    return fine(ncclCommDestroy(comms[own]), "ncclCommDestroy");
  }
};

void come_to(std::atomic<int>& point, int number) {
  ++point;
  while (point < number) usleep(100);
}

std::int64_t allocations() { return fake_driver::live().device_allocations; }

}  // namespace

TEST_CASE("processes: memory of a GPU whose kernels wait is not freed by another GPU's rank",
          "[device][processes][places]") {
  auto* const point = static_cast<std::atomic<int>*>(crew::shared_page());
  *point = 0;
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    RanksApart ranks(m);
    CREW_TRY(ranks.open(m));
    ranks.make_streams();
    const OnGpu<std::int32_t> number(Ints(1, 1));
    std::list<SharedBuffer> buffers;
    CREW_TRY(fine(ncclGroupStart(), "group"));
    for (std::size_t i = 0; i < ranks.comms.size(); ++i) {
      ranks.use(i);
      CREW_TRY(buffers.emplace_back().open(ranks.comms[i], BufferKind::kAllocated, kCount));
      CREW_TRY(ranks.sum(i, buffers.back().data(), kCount));
    }
    CREW_TRY(fine(ncclGroupEnd(), "ncclGroupEnd"));
    for (CUstream stream : ranks.streams) Gpu::get().wait(stream);
    const std::int64_t before = allocations();
    ranks.use(0);
    if (m.rank == 0) CREW_TRY(buffers.front().close());
    if (allocations() != before) return "what another rank has open was freed";
    come_to(*point, 2);
    // Rank 2 lets go.
    if (m.rank == 1) CREW_TRY(buffers.front().close());
    come_to(*point, 4);
    CREW_TRY(ranks.sum(0, number.data(), 1));
    if (m.rank == 0) {
      ranks.use(1);
      const OnGpu<std::int32_t> second(Ints(1, 1));
      void* memory = nullptr;
      CREW_TRY(fine(ncclMemAlloc(&memory, 1), "ncclMemAlloc"));
      CREW_TRY(fine(ncclMemFree(memory), "ncclMemFree"));
      CREW_TRY(ranks.sum(1, second.data(), 1));
      CREW_TRY(ranks.wait_for(second, 1));
    }
    CREW_TRY(ranks.wait_for(number, 0));
    if (m.rank == 0) {
      // Its own GPU's does.
      ranks.use(0);
      void* memory = nullptr;
      CREW_TRY(fine(ncclMemAlloc(&memory, 1), "ncclMemAlloc"));
      CREW_TRY(fine(ncclMemFree(memory), "ncclMemFree"));
      if (allocations() != before - 1) return "it was not freed";
      ranks.use(1);
      CREW_TRY(buffers.back().close());
    }
    for (std::size_t i = 0; i < ranks.comms.size(); ++i) CREW_TRY(ranks.destroy(i));
    return "";
  }));
}

TEST_CASE("processes: what a communicator has left on a GPU whose kernels wait is not freed by another GPU's rank",
          "[device][processes]") {
  const bool has_graph = GENERATE(false, true);
  auto* const point = static_cast<std::atomic<int>*>(crew::shared_page());
  *point = 0;
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    RanksApart first(m);
    RanksApart ranks(m);
    CREW_TRY(first.open(m, 0));
    CREW_TRY(ranks.open(m, 1));
    first.make_streams();
    ranks.make_streams();
    const Gpu& gpu = Gpu::get();
    const OnGpu<std::int32_t> number(Ints(1, 1));
    CUgraphExec executable = nullptr;
    if (has_graph && m.rank == 0) {
      gpu.begin_capture(first.streams[0]);
      CREW_TRY(first.sum(0, number.data(), 1));
      CUgraph graph = gpu.end_capture(first.streams[0]);
      if (!graph) return "the capture was spoilt";
      executable = gpu.make_executable(graph);
      gpu.destroy(graph);
    }
    CREW_TRY(first.destroy(0));
    come_to(*point, 2);
    CREW_TRY(ranks.sum(0, number.data(), 1));
    if (m.rank == 0) {
      if (executable) gpu.destroy(executable);
      CREW_TRY(first.destroy(1));
      const OnGpu<std::int32_t> second(Ints(1, 1));
      CREW_TRY(ranks.sum(1, second.data(), 1));
      CREW_TRY(ranks.wait_for(second, 1));
    }
    CREW_TRY(ranks.wait_for(number, 0));
    for (std::size_t i = 0; i < ranks.comms.size(); ++i) CREW_TRY(ranks.destroy(i));
    come_to(*point, 4);
    if (m.rank == 0) CREW_TRY(settle(1));
    CREW_TRY(settle(m.rank == 0 ? 0 : 2));
    const auto numbers = std::int64_t{1};
    return allocations() == numbers ? "" : "left: " + fake_driver::describe(fake_driver::live());
  }));
}

TEST_CASE(
    "processes: what ranks of one process have left on a GPU whose kernels wait is not freed by another GPU's rank",
    "[device][processes]") {
  const bool has_lanes = GENERATE(false, true);
  auto* const point = static_cast<std::atomic<int>*>(crew::shared_page());
  *point = 0;
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    RanksApart ranks(m);
    if (has_lanes) setenv("NCCL_ALGO", "ring", 1);
    CREW_TRY(ranks.open(m));
    ranks.make_streams();
    const OnGpu<std::int32_t> number(Ints(1, 1));
    const std::int64_t before = allocations();
    std::array<ncclComm_t, 2> pair{};
    const int devices[] = {0, 1 % Gpu::get().devices()};
    come_to(*point, 2);
    if (m.rank == 0) {
      CREW_TRY(fine(ncclCommInitAll(pair.data(), 2, devices), "ncclCommInitAll"));
      ranks.use(1);
      CREW_TRY(fine(ncclCommDestroy(pair[1]), "ncclCommDestroy"));
      const OnGpu<std::int32_t> second(Ints(1, 1));
      CREW_TRY(ranks.sum(1, second.data(), 1));
      ranks.use(0);
      CREW_TRY(fine(ncclCommDestroy(pair[0]), "ncclCommDestroy"));
      CREW_TRY(ranks.sum(0, number.data(), 1));
      CREW_TRY(ranks.wait_for(second, 1));
    } else {
      CREW_TRY(ranks.sum(0, number.data(), 1));
    }
    CREW_TRY(ranks.wait_for(number, 0));
    // The next that begins there does it.
    if (m.rank == 0) {
      CREW_TRY(settle(1));
      CREW_TRY(settle(0));
      ranks.use(0);
    }
    if (allocations() != before) return "left: " + fake_driver::describe(fake_driver::live());
    come_to(*point, 4);
    for (std::size_t i = 0; i < ranks.comms.size(); ++i) CREW_TRY(ranks.destroy(i));
    return "";
  }));
}

// A stream that the program holds up does not come to an end by an abort.
TEST_CASE("processes: memory of a call that an abort has left on a stream is refused to ncclMemFree, for now",
          "[device][processes][places]") {
  auto* const called = static_cast<std::atomic<int>*>(crew::shared_page());
  *called = 0;
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    setenv("TUTTI_IN_PLACE_WAIT_S", "20", 1);
    setenv("TUTTI_TIMEOUT_S", "0", 1);
    unsetenv("NCCL_ALGO");
    Rank rank(m);
    CREW_TRY(rank.open(2));
    const Gpu& gpu = Gpu::get();
    SharedBuffer buffer;
    CREW_TRY(buffer.open(rank.comm, BufferKind::kAllocated, kCount));
    auto* const gate = static_cast<std::uint32_t*>(gpu.allocate_pinned(4096));
    *gate = 0;
    if (m.rank == 1) gpu.wait_for_word(rank.stream, gate, 1);
    CREW_TRY(
        fine(ncclAllReduce(buffer.data(), buffer.data(), kCount, ncclInt32, ncclSum, rank.comm, rank.stream), "sum"));
    come_to(*called, 2);
    CREW_TRY(fine(ncclCommAbort(rank.comm), "ncclCommAbort"));
    if (m.rank == 1) CREW_TRY(buffer.close_refused(ncclInvalidUsage, {"is not freed", "has failed"}));
    std::atomic_ref(*gate).store(1);
    gpu.wait(rank.stream);
    CREW_TRY(buffer.close());
    gpu.release_pinned(gate);
    gpu.destroy(rank.stream);
    return "";
  }));
}

TEST_CASE("processes: ncclMemAlloc waits a little for memory that others are about to let go of",
          "[device][processes][places]") {
  const bool lets_go = GENERATE(true, false);
  auto* const point = static_cast<std::atomic<int>*>(crew::shared_page());
  *point = 0;
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    setenv("TUTTI_IN_PLACE_WAIT_S", "20", 1);
    unsetenv("NCCL_ALGO");
    Rank rank(m);
    CREW_TRY(rank.open(2));
    SharedBuffer buffer;
    CREW_TRY(buffer.open(rank.comm, BufferKind::kAllocated, kCount));
    CREW_TRY(
        fine(ncclAllReduce(buffer.data(), buffer.data(), kCount, ncclInt32, ncclSum, rank.comm, rank.stream), "sum"));
    Gpu::get().wait(rank.stream);
    if (m.rank == 0) {
      const std::int64_t before = allocations();
      CREW_TRY(buffer.close());
      if (allocations() != before) return "what another rank has open was freed";
      fake_driver::set_memory(fake_driver::live().device_bytes);
      come_to(*point, 2);
      void* memory = nullptr;
      const ncclResult_t made = ncclMemAlloc(&memory, kCount * 4);
      if (lets_go) CREW_TRY(fine(made, "ncclMemAlloc"));
      if (!lets_go) CREW_TRY(refused(made, ncclUnhandledCudaError, {"CUDA_ERROR_OUT_OF_MEMORY"}));
      fake_driver::set_memory(0);
      come_to(*point, 4);
      if (lets_go) CREW_TRY(fine(ncclMemFree(memory), "ncclMemFree"));
    } else {
      come_to(*point, 2);
      usleep(10000);
      if (lets_go) CREW_TRY(buffer.close());
      come_to(*point, 4);
      if (!lets_go) CREW_TRY(buffer.close());
    }
    return rank.close();
  }));
}

}  // namespace tutti::test
