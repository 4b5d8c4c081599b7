// What ranks that are processes copy, open and keep of buffers that are in no window: as the fake driver counts it.
#include "fake_driver.h"
#include "shared_buffers.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>

#include <unistd.h>

namespace tutti::test {
namespace {

constexpr BufferKind kA = BufferKind::kAllocated;
constexpr BufferKind kR = BufferKind::kRegistered;
constexpr BufferKind kO = BufferKind::kOwn;
constexpr BufferKind kM = BufferKind::kMapped;
constexpr BufferKind kP = BufferKind::kPieces;
constexpr std::size_t kCount = 300007;

/// Of calls that go in place if they can, however busy the machine is.
std::string open_for_places(Rank& rank, int devices) {
  setenv("TUTTI_IN_PLACE_WAIT_S", "20", 1);
  unsetenv("NCCL_ALGO");  // lanes neither copy nor open anything
  return rank.open(devices);
}

/// Copies of data, words apart, since note_given().
std::size_t copies() {
  using What = fake_driver::Given::What;
  const auto all = fake_driver::given();
  return static_cast<std::size_t>(std::ranges::count_if(all, [](const fake_driver::Given& one) {
    return (one.what == What::kCopy || one.what == What::kCopyToHost) && one.bytes > 4096;
  }));
}

std::string sum_up(const Rank& rank, const SharedBuffer& buffer, std::int32_t number, std::int32_t wanted) {
  buffer.write(Ints(kCount, number));
  CREW_TRY(
      fine(ncclAllReduce(buffer.data(), buffer.data(), kCount, ncclInt32, ncclSum, rank.comm, rank.stream), "sum"));
  Gpu::get().wait(rank.stream);
  return differs(
      "sum", buffer.read(), [wanted](std::size_t) { return wanted; }, kCount);
}

/// The maximum of so many elements, in the buffer; what is wrong if data is copied though `in_place`, or not.
std::string take_maximum(const Rank& rank, const SharedBuffer& buffer, std::size_t count, bool in_place) {
  fake_driver::note_given();
  void* const data = buffer.data();
  CREW_TRY(fine(ncclAllReduce(data, data, count, ncclInt32, ncclMax, rank.comm, rank.stream), "max"));
  Gpu::get().wait(rank.stream);
  if (in_place == (copies() == 0)) return "";
  return std::to_string(copies()) + " copies of " + std::to_string(count);
}

/// The ranks go on when all have come so far.
void meet(std::atomic<int>& come, int ranks, int times) {
  ++come;
  while (come < ranks * times) usleep(100);
}

}  // namespace

TEST_CASE("processes: nothing is copied if all ranks' buffers are shared", "[device][processes][places]") {
  const int devices = GENERATE(from_range(over_gpus({1, 2})));
  const auto [kinds, exports, in_place] = GENERATE(
      std::tuple(std::array{kA, kA}, "0", true), std::tuple(std::array{kA, kR}, "0", true),
      std::tuple(std::array{BufferKind::kWindow, kR}, "0", true), std::tuple(std::array{kO, kA}, "0", false),
      std::tuple(std::array{kM, kM}, "0", true), std::tuple(std::array{kP, kM}, "0", true),
      std::tuple(std::array{kA, kM}, "0", true), std::tuple(std::array{BufferKind::kUnshareable, kM}, "0", false),
      std::tuple(std::array{kO, kA}, "1", true), std::tuple(std::array{BufferKind::kOwnMapped, kO}, "1", true),
      std::tuple(std::array{BufferKind::kOwnMapped, kM}, "0", false));
  crew::check(crew::run(2, [&, kinds = kinds, exports = exports, in_place = in_place](const Member& m) -> std::string {
    setenv("TUTTI_EXPORT_BUFFERS", exports, 1);
    Rank rank(m);
    CREW_TRY(open_for_places(rank, devices));
    SharedBuffer in;
    SharedBuffer out;
    const BufferKind kind = kinds[static_cast<std::size_t>(m.rank)];
    const fake_driver::Live before = fake_driver::live();
    CREW_TRY(in.open(rank.comm, kind, 2 * kCount));
    CREW_TRY(out.open(rank.comm, kind, 2 * kCount));
    CREW_TRY(collectives_on(rank, in, out, kCount, 1, [&](const char* name, const Call& call) -> std::string {
      // Another registration of the beginning comes and goes.
      for (const SharedBuffer* const buffer : {&in, &out}) {
        if (kind == kO || kind == BufferKind::kOwnMapped) continue;
        void* half = nullptr;
        void* const begin = buffer->data() - SharedBuffer::kFirst;
        CREW_TRY(fine(ncclCommRegister(rank.comm, begin, 4 * kCount, &half), "ncclCommRegister"));
        CREW_TRY(fine(ncclCommDeregister(rank.comm, half), "ncclCommDeregister"));
      }
      fake_driver::note_given();
      CREW_TRY(fine(call(), name));
      Gpu::get().wait(rank.stream);
      return in_place == (copies() == 0) ? "" : std::string(name) + ": " + std::to_string(copies()) + " copies";
    }));
    CREW_TRY(in.close(rank));
    CREW_TRY(out.close(rank));
    const bool are_registered = std::ranges::none_of(
        kinds, [](BufferKind one) { return one == kA || one == kO || one == BufferKind::kOwnMapped; });
    const fake_driver::Live after = fake_driver::live();
    if (are_registered && (after.imports != before.imports || after.device_allocations != before.device_allocations))
      return "registered memory is open though it may be freed";
    return rank.close();
  }));
}

TEST_CASE("processes: nothing is copied before a call that only one rank captures, and what comes behind it is",
          "[device][processes][places]") {
  const int devices = GENERATE(from_range(over_gpus({1, 2})));
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    Rank rank(m);
    CREW_TRY(open_for_places(rank, devices));
    const Gpu& gpu = Gpu::get();
    SharedBuffer buffer;
    CREW_TRY(buffer.open(rank.comm, kA, kCount));
    buffer.write(Ints(kCount, 1));
    const auto capture = [&](CUgraphExec& executable) -> std::string {
      gpu.begin_capture(rank.stream);
      void* const data = buffer.data();
      CREW_TRY(fine(ncclAllReduce(data, data, kCount, ncclInt32, ncclMax, rank.comm, rank.stream), "captured"));
      CUgraph graph = gpu.end_capture(rank.stream);
      if (!graph) return "the capture was spoilt";
      executable = gpu.make_executable(graph);
      gpu.destroy(graph);
      return "";
    };
    CREW_TRY(take_maximum(rank, buffer, kCount, true));
    CUgraphExec executables[2] = {};
    CREW_TRY(capture(executables[0]));
    CREW_TRY(take_maximum(rank, buffer, kCount, true));
    gpu.launch(executables[0], rank.stream);
    CREW_TRY(take_maximum(rank, buffer, kCount, true));
    if (m.rank == 1) CREW_TRY(capture(executables[1]));
    if (m.rank == 1) gpu.launch(executables[1], rank.stream);
    if (m.rank == 0) CREW_TRY(take_maximum(rank, buffer, kCount, false));
    CREW_TRY(take_maximum(rank, buffer, kCount, false));
    for (CUgraphExec one : executables) {
      if (one) gpu.destroy(one);
    }
    CREW_TRY(buffer.close());
    return rank.close();
  }));
}

TEST_CASE("processes: of more pieces than can be sent those are that a call uses", "[device][processes][places]") {
  const int devices = GENERATE(from_range(over_gpus({1, 2})));
  const BufferKind kind = GENERATE(kM, kP);
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    Rank rank(m);
    CREW_TRY(open_for_places(rank, devices));
    SharedBuffer buffer;
    const std::size_t most = 66 * SharedBuffer::kPiece / sizeof(std::int32_t);
    CREW_TRY(buffer.open(rank.comm, kind, most));
    for (const std::size_t count : {kCount, most, kCount, 2 * kCount})
      CREW_TRY(take_maximum(rank, buffer, count, count != most));
    CREW_TRY(buffer.close(rank));
    return rank.close();
  }));
}

TEST_CASE("processes: pieces stay shared while one beside them is registered, and are again when they have changed",
          "[device][processes][places]") {
  const int devices = GENERATE(from_range(over_gpus({1, 2})));
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    Rank rank(m);
    CREW_TRY(open_for_places(rank, devices));
    SharedBuffer buffer;
    const std::size_t all = 2 * SharedBuffer::kPiece / sizeof(std::int32_t);  // in three pieces
    CREW_TRY(buffer.open(rank.comm, BufferKind::kPieces, all));
    CREW_TRY(take_maximum(rank, buffer, all, true));
    const fake_driver::Live before = fake_driver::live();
    CREW_TRY(buffer.deregister_last());
    CREW_TRY(take_maximum(rank, buffer, kCount, true));
    CREW_TRY(take_maximum(rank, buffer, kCount, true));
    if (fake_driver::live().device_allocations != before.device_allocations) return "it is open anew, or not any more";
    CREW_TRY(buffer.replace_second_piece());
    CREW_TRY(take_maximum(rank, buffer, 2 * kCount, true));
    CREW_TRY(take_maximum(rank, buffer, kCount, true));
    CREW_TRY(buffer.close(rank));
    return rank.close();
  }));
}

TEST_CASE("processes: memory is exported only as what it is", "[device][processes][places]") {
  const int devices = GENERATE(from_range(over_gpus({1, 2})));
  const BufferKind kind = GENERATE(kA, kR, kM, kP, kO);  // kO: of a pool
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    Rank rank(m);
    CREW_TRY(open_for_places(rank, devices));
    const Gpu& gpu = Gpu::get();
    constexpr std::size_t kBytes = (SharedBuffer::kFirst + kCount) * sizeof(std::int32_t);
    SharedBuffer buffer;
    void* pooled = nullptr;
    void* handle = nullptr;
    ncclWindow_t window = nullptr;
    if (kind != kO) CREW_TRY(buffer.open(rank.comm, kind, kCount));
    if (kind == kO) pooled = gpu.allocate_from_pool(kBytes, rank.stream);
    if (kind == kO) CREW_TRY(fine(ncclCommRegister(rank.comm, pooled, kBytes, &handle), "ncclCommRegister"));
    void* const data = pooled ? pooled : buffer.data() - SharedBuffer::kFirst;
    for (const bool in_window : {false, true}) {
      if (in_window) {
        CREW_TRY(fine(ncclCommWindowRegister(rank.comm, data, kBytes, &window, NCCL_WIN_COLL_SYMMETRIC), "a window"));
      }
      fake_driver::note_given();
      CREW_TRY(fine(ncclAllReduce(data, data, kCount, ncclInt32, ncclMax, rank.comm, rank.stream), "max"));
      gpu.wait(rank.stream);
      if ((copies() != 0) != (kind == kO)) return std::to_string(copies()) + " copies";
    }
    if (fake_driver::refused_exports() != 0) return std::to_string(fake_driver::refused_exports()) + " were refused";
    CREW_TRY(fine(ncclCommWindowDeregister(rank.comm, window), "ncclCommWindowDeregister"));
    if (handle) CREW_TRY(fine(ncclCommDeregister(rank.comm, handle), "ncclCommDeregister"));
    if (pooled) gpu.release_to_pool(pooled, rank.stream);
    if (pooled) gpu.wait(rank.stream);
    if (kind != kO) CREW_TRY(buffer.close(rank));
    return rank.close();
  }));
}

TEST_CASE("processes: what is freed while another rank has it open is kept until it has not",
          "[device][processes][places]") {
  const int devices = GENERATE(from_range(over_gpus({1, 2})));
  CAPTURE(devices);
  auto* const come = static_cast<std::atomic<int>*>(crew::shared_page());
  *come = 0;
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    Rank rank(m);
    CREW_TRY(open_for_places(rank, devices));
    const auto allocations = [] { return fake_driver::live().device_allocations; };
    const fake_driver::Live before = fake_driver::live();
    SharedBuffer buffer;
    CREW_TRY(buffer.open(rank.comm, kA, kCount));
    CREW_TRY(sum_up(rank, buffer, m.rank, 1));
    // Rank 0 works on rank 1's buffer, on one GPU; on two, both on each other's.
    const bool opens = m.rank == 0 || rank.device != 0;
    if (fake_driver::live().imports != before.imports + opens)
      return "imports: " + fake_driver::describe(before) + "; now " + fake_driver::describe(fake_driver::live());
    meet(*come, 2, 1);
    if (m.rank == 1) {
      CREW_TRY(buffer.close());
      if (allocations() != before.device_allocations + 1) return "it was freed although it is open elsewhere";
      if (ncclMemFree(buffer.data() - SharedBuffer::kFirst) != ncclInvalidArgument) return "it was freed twice";
    }
    meet(*come, 2, 2);
    if (m.rank == 0) {
      CREW_TRY(buffer.close());
      if (fake_driver::live().imports != before.imports) return "it is still open";
    }
    meet(*come, 2, 3);
    // The next that is allocated or freed here, when it was there.
    SharedBuffer next;
    CREW_TRY(next.open(rank.comm, kA, kCount));
    meet(*come, 2, 4);
    CREW_TRY(next.close());
    CREW_TRY(next.open(rank.comm, kA, kCount));
    if (allocations() != before.device_allocations + 1)
      return "it was not freed: " + fake_driver::describe(fake_driver::live());
    CREW_TRY(sum_up(rank, next, m.rank + 1, 3));
    // A rank that is gone has nothing open.
    if (m.rank == 0) {
      Gpu::get().destroy(rank.stream);
      _exit(0);
    }
    usleep(100000);
    CREW_TRY(next.close());
    CREW_TRY(fine(ncclCommAbort(rank.comm), "ncclCommAbort"));
    Gpu::get().destroy(rank.stream);
    void* memory = nullptr;
    CREW_TRY(fine(ncclMemAlloc(&memory, 8), "ncclMemAlloc"));
    CREW_TRY(fine(ncclMemFree(memory), "ncclMemFree"));
    return "";
  }));
}

}  // namespace tutti::test
