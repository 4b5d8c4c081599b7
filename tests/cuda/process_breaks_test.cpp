// Calls of several pieces that break off in between: what they have put keeps what it uses, and nothing more is put.
#include "fake_driver.h"
#include "process_ranks.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <atomic>

#include <unistd.h>

namespace tutti::test {
namespace {

/// Of an all-reduce through staging.
constexpr std::size_t kPieceBytes = std::size_t{9} << 19;
constexpr std::size_t kPieceCount = kPieceBytes / sizeof(std::int32_t);

ncclResult_t sum_up(const Rank& rank, void* memory, std::size_t pieces) {
  return ncclAllReduce(memory, memory, pieces * kPieceCount, ncclInt32, ncclSum, rank.comm, rank.stream);
}

/// Copies of data, words apart, since note_given().
std::size_t copies() {
  using What = fake_driver::Given::What;
  const auto all = fake_driver::given();
  return static_cast<std::size_t>(std::ranges::count_if(
      all, [](const fake_driver::Given& one) { return one.what == What::kCopy && one.bytes == kPieceBytes; }));
}

std::string open_through_staging(Rank& rank, int devices) {
  unsetenv("NCCL_ALGO");  // lanes have no pieces
  return rank.open(devices);
}

}  // namespace

TEST_CASE("processes: what a call has put before a piece of it fails keeps the memory that it uses",
          "[device][processes][failure]") {
  const int devices = GENERATE(from_range(over_gpus({1, 2})));
  CAPTURE(devices);
  auto* const failed = static_cast<std::atomic<int>*>(crew::shared_page());
  *failed = 0;
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    Rank rank(m);
    CREW_TRY(open_through_staging(rank, devices));
    const Gpu& gpu = Gpu::get();
    // The call says three pieces, of which the second one is not all there.
    void* const memory = gpu.allocate(kPieceBytes / 2 * 3);
    if (m.rank == 1) {
      while (*failed == 0) usleep(1000);
      CREW_TRY(fine(ncclCommAbort(rank.comm), "ncclCommAbort"));
      gpu.destroy(rank.stream);
      return "";
    }
    auto* const gate = static_cast<std::uint32_t*>(gpu.allocate_pinned(4096));
    *gate = 0;
    gpu.wait_for_word(rank.stream, gate, 1);
    const fake_driver::Live before = fake_driver::live();
    CREW_TRY(refused(sum_up(rank, memory, 3), ncclUnhandledCudaError, {"cuMemcpyAsync"}));
    CREW_TRY(fine(ncclCommAbort(rank.comm), "ncclCommAbort"));
    *failed = 1;
    const fake_driver::Live after = fake_driver::live();
    if (after.imports != before.imports || after.registrations != before.registrations ||
        after.device_allocations != before.device_allocations) {
      return "before: " + fake_driver::describe(before) + "; after: " + fake_driver::describe(after);
    }
    // The stream comes to its end by itself, and the next communicator takes that memory away.
    std::atomic_ref(*gate).store(1);
    gpu.wait(rank.stream);
    CREW_TRY(settle(0));
    if (fake_driver::live().imports != 0) return fake_driver::describe(fake_driver::live());
    gpu.release_pinned(gate);
    gpu.release(memory);
    gpu.destroy(rank.stream);
    return "";
  }));
}

TEST_CASE("processes: a call that is being put when the communicator fails puts no more",
          "[device][processes][failure]") {
  const int devices = GENERATE(from_range(over_gpus({1, 2})));
  CAPTURE(devices);
  constexpr std::size_t kPieces = 24;
  auto* const calls = static_cast<std::atomic<int>*>(crew::shared_page());
  *calls = 0;
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    setenv("FAKE_CUDA_ROOM", "16", 1);
    Rank rank(m);
    CREW_TRY(open_through_staging(rank, devices));
    const Gpu& gpu = Gpu::get();
    if (m.rank == 1) {
      while (*calls == 0) usleep(1000);
      usleep(200000);
    } else {
      void* const memory = gpu.allocate(kPieces * kPieceBytes);
      *calls = 1;
      fake_driver::note_given();
      const ncclResult_t result = sum_up(rank, memory, kPieces);
      if (copies() > kPieces) return std::to_string(copies()) + " copies";
      CREW_TRY(refused(result, ncclRemoteError, {"rank 1"}));
      gpu.wait(rank.stream);
    }
    CREW_TRY(fine(ncclCommAbort(rank.comm), "ncclCommAbort"));
    gpu.destroy(rank.stream);
    return "";
  }));
}

TEST_CASE("processes: a stream that has the handle of one that was destroyed is another one", "[device][processes]") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    setenv("TUTTI_SHARED_GPU_HOST_BYTES", "0", 1);
    TwoAndOne ranks(m);
    CREW_TRY(ranks.open(m));
    fake_driver::set_quick_ends(true);
    const Gpu& gpu = Gpu::get();
    const auto& [first, devices, comms] = ranks;
    const OnGpu<std::int32_t> a(values(first, 100));
    const OnGpu<std::int32_t> b(values(first + 1, 100));
    const auto sum_up = [](const OnGpu<std::int32_t>& data, ncclComm_t comm, CUstream stream) {
      return fine(ncclAllReduce(data.data(), data.data(), 100, ncclInt32, ncclSum, comm, stream), "sum");
    };
    const CUstream stream = gpu.make_stream();
    CREW_TRY(sum_up(a, comms[0], stream));
    if (m.rank == 0) {
      gpu.destroy(stream);
      if (gpu.make_stream() != stream) return "another handle";
      CREW_TRY(sum_up(b, comms[1], stream));
    }
    gpu.wait(stream);
    CREW_TRY(differs(
        "the sum", (m.rank == 0 ? b : a).read(), [](std::size_t i) { return sum(3, i); }, 100));
    gpu.destroy(stream);
    for (ncclComm_t comm : comms) CREW_TRY(fine(ncclCommDestroy(comm), "ncclCommDestroy"));
    return "";
  }));
}

// A graph's kernels would go on in memory that is closed, or freed.
TEST_CASE("processes: the end of a window of which kernels cannot be told fails the communicator",
          "[device][processes][failure]") {
  const int devices = GENERATE(from_range(over_gpus({1, 2})));
  auto* const rounds = static_cast<Rounds*>(crew::shared_page());
  crew::check(crew::run(2, [=](const Member& m) -> std::string {
    Rank rank(m);
    CREW_TRY(rank.open(devices));
    constexpr std::size_t kCount = 1 << 18;  // too many for lines
    void* memory = nullptr;
    CREW_TRY(fine(ncclMemAlloc(&memory, kCount * 4), "ncclMemAlloc"));
    int told = 0;
    for (int round = 1; rounds->over == 0; ++round) {
      ncclComm_t comm = nullptr;
      ncclWindow_t window = nullptr;
      CREW_TRY(fine(ncclCommSplit(rank.comm, 0, m.rank, &comm, nullptr), "ncclCommSplit"));
      CREW_TRY(fine(ncclCommWindowRegister(comm, memory, kCount * 4, &window, NCCL_WIN_COLL_SYMMETRIC), "register"));
      CREW_TRY(fine(ncclAllReduce(memory, memory, kCount, ncclInt32, ncclSum, comm, rank.stream), "sum"));
      Gpu::get().wait(rank.stream);
      meet(m, *rounds, 2 * round);
      if (m.rank == 0) {
        fake_driver::fail_after(static_cast<std::uint64_t>(round), CUDA_ERROR_OUT_OF_MEMORY);
        fake_driver::set_counting(true);
      }
      CREW_TRY(fine(ncclCommWindowDeregister(comm, window), "deregister"));
      fake_driver::set_counting(false);
      const std::string function = fake_driver::failed_function();
      fake_driver::fail_after(0, CUDA_SUCCESS);
      const bool writes =
          function == "cuStreamCreate" || function == "cuMemcpyAsync" || function == "cuStreamSynchronize";
      if (writes) CREW_TRY(fails(comm, ncclUnhandledCudaError, {function}));
      told += writes;
      if (m.rank == 0 && function.empty()) rounds->over = 1;
      meet(m, *rounds, 2 * round + 1);
      CREW_TRY(fine(ncclCommAbort(comm), "ncclCommAbort"));
    }
    if (m.rank == 0 && told != 6) return std::to_string(told) + " writes";
    CREW_TRY(fine(ncclMemFree(memory), "ncclMemFree"));
    return rank.close();
  }));
}

}  // namespace tutti::test
