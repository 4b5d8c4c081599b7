// Streams that cannot be used, as a capture was spoilt or stands in the way: the calls are refused, nobody else hears of them, and all go on.
#include "fake_driver.h"
#include "shared_buffers.h"

#include <catch2/catch.hpp>

#include <algorithm>

namespace tutti::test {
namespace {

constexpr std::size_t kCount = 300007;  ///< ranks agree on calls of so many
constexpr std::size_t kFew = 100;

/// A rank and its buffer, which others come to.
struct Caller {
  Rank rank;
  SharedBuffer buffer;
  CUstream blocking = nullptr;

  explicit Caller(const Member& m) : rank(m) {}
  std::string open(int devices, const char* host_bytes) {
    setenv("TUTTI_IN_PLACE_WAIT_S", "20", 1);
    setenv("TUTTI_SHARED_GPU_HOST_BYTES", host_bytes, 1);
    unsetenv("NCCL_ALGO");
    CREW_TRY(rank.open(devices));
    blocking = Gpu::get().make_blocking_stream();
    return buffer.open(rank.comm, BufferKind::kAllocated, kCount);
  }
  ncclResult_t call(std::size_t count, CUstream stream) const {
    return ncclAllReduce(buffer.data(), buffer.data(), count, ncclInt32, ncclSum, rank.comm, stream);
  }
  /// Right sums; of many numbers without a copy of them.
  std::string sums(std::size_t count) const {
    using What = fake_driver::Given::What;
    buffer.write(values(rank.m.rank, kCount));
    fake_driver::note_given();
    CREW_TRY(fine(call(count, rank.stream), "a sum"));
    Gpu::get().wait(rank.stream);
    const auto given = fake_driver::given();
    const auto is_copy = [](const fake_driver::Given& one) { return one.what == What::kCopy && one.bytes > 4096; };
    if (std::ranges::any_of(given, is_copy)) return "it went through staging";
    const Values found = buffer.read();
    return differs(
        "sum", Values(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(count)),
        [](std::size_t i) { return sum(2, i); }, count);
  }
  std::string end() {
    ncclResult_t state = ncclSuccess;
    CREW_TRY(fine(ncclCommGetAsyncError(rank.comm, &state), "ncclCommGetAsyncError"));
    CREW_TRY(fine(state, "the communicator"));
    CREW_TRY(buffer.close());
    Gpu::get().destroy(blocking);
    return rank.close();
  }
};

/// `count`, captured: by a capture that is spoilt before, or by one that is not, which nobody launches.
std::string capture(const Caller& caller, std::size_t count, bool spoils) {
  const Gpu& gpu = Gpu::get();
  const CUstream stream = caller.rank.stream;
  gpu.begin_capture(stream);
  if (spoils) gpu.spoil_capture();
  const ncclResult_t result = caller.call(count, stream);
  const std::string wrong =
      spoils ? refused(result, ncclInvalidUsage, {"invalidated"}) : fine(result, "a captured call");
  CUgraph graph = gpu.end_capture(stream);
  if ((graph == nullptr) != spoils) return spoils ? "the capture was not spoilt" : "the capture was spoilt";
  if (graph) gpu.destroy(graph);
  return wrong;
}

}  // namespace

TEST_CASE("processes: a call in a capture that was spoilt is refused, and fails nobody",
          "[device][processes][failure]") {
  const int devices = GENERATE(from_range(over_gpus({1, 2})));
  const char* const host_bytes = GENERATE("0", "1000");
  const std::size_t count = GENERATE(kFew, kCount);
  CAPTURE(devices, host_bytes, count);
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    Caller caller(m);
    CREW_TRY(caller.open(devices, host_bytes));
    CREW_TRY(caller.sums(count));
    // By all, and the calls that follow are the same ones on all ranks.
    CREW_TRY(capture(caller, count, true));
    CREW_TRY(caller.sums(count));
    // By one, which makes the call again.
    if (m.rank == 1) CREW_TRY(capture(caller, count, true));
    CREW_TRY(capture(caller, count, false));
    CREW_TRY(caller.sums(count));
    if (m.rank == 0) CREW_TRY(capture(caller, count, true));
    CREW_TRY(caller.sums(count));
    // With others in a group.
    const Gpu& gpu = Gpu::get();
    gpu.begin_capture(caller.blocking, CU_STREAM_CAPTURE_MODE_GLOBAL);
    gpu.spoil_capture();
    CREW_TRY(fine(ncclGroupStart(), "group"));
    CREW_TRY(fine(caller.call(count, caller.rank.stream), "in a group"));
    CREW_TRY(fine(caller.call(count, caller.blocking), "in a group"));
    CREW_TRY(refused(ncclGroupEnd(), ncclInvalidUsage, {"invalidated"}));
    if (gpu.end_capture(caller.blocking) != nullptr) return "the capture was not spoilt";
    CREW_TRY(caller.sums(count));
    return caller.end();
  }));
}

TEST_CASE(
    "processes: a call on the legacy stream while a stream that it waits for is captured is refused, and fails nobody",
    "[device][processes][failure]") {
  const int devices = GENERATE(from_range(over_gpus({1, 2})));
  const char* const host_bytes = GENERATE("0", "1000");
  const std::size_t count = GENERATE(kFew, kCount);
  CAPTURE(devices, host_bytes, count);
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    Caller caller(m);
    CREW_TRY(caller.open(devices, host_bytes));
    CREW_TRY(caller.sums(count));
    for (int i = 0; i < 2; ++i) {
      if (m.rank == 1 || i == 0) {
        const Gpu& gpu = Gpu::get();
        gpu.begin_capture(caller.blocking);
        CREW_TRY(refused(caller.call(count, nullptr), ncclInvalidUsage, {"legacy default stream"}));
        CUgraph graph = gpu.end_capture(caller.blocking);
        if (!graph) return "the capture was spoilt";
        gpu.destroy(graph);
      }
      CREW_TRY(caller.sums(count));
    }
    return caller.end();
  }));
}

}  // namespace tutti::test
