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

}  // namespace tutti::test
