// Every CUDA call of one process fails once, while another process works with it: both come to an end, the first says which call failed,
// and nothing is left of the communicator in either.
#include "comm/crew.h"
#include "fake_driver.h"
#include "gpu.h"
#include "process_ranks.h"
#include "turn.h"

#include <nccl.h>
#include <tutti/tutti.h>

#include <catch2/catch.hpp>

#include <algorithm>
#include <atomic>
#include <cstdlib>

#include <unistd.h>

namespace tutti::test {
namespace {

constexpr std::size_t kCount = 3000;
/// Of a call on which ranks agree.
constexpr std::size_t kLargeCount = (1 << 18) + 5;
/// The calls that look for the device come before the ranks meet: a rank that fails there is one that never comes.
constexpr int kCallsBeforeMeeting = 3;
/// Of how many calls one fails, where they take turns.
constexpr std::size_t kShare = 3;

/// Remembers the first failure.
class Outcome {
 public:
  bool operator()(ncclResult_t result) {
    if (result != ncclSuccess && reason_.empty()) reason_ = ncclGetLastError(nullptr);
    return result == ncclSuccess;
  }
  const std::string& reason() const { return reason_; }
  bool failed() const { return !reason_.empty(); }

  bool staged = false;   ///< data goes through host memory, as a rank could not share its own
  bool lets_go = false;  ///< of what the other has deregistered, in vain: it is tried again

 private:
  std::string reason_;
};

/// A communicator from beginning to end; everything of the library's in `counted` calls. `large`: in no window; it is registered.
Outcome everything(const Member& m, const ncclUniqueId& id, const OnGpu<std::int32_t>& buffer, void* memory,
                   void* large, const std::vector<CUstream>& streams) {
  Outcome outcome;
  ncclComm_t comm = nullptr;
  ncclWindow_t window = nullptr;
  fake_driver::set_counting(true);
  const bool made = outcome(ncclCommInitRank(&comm, m.ranks, id, m.rank));
  if (made) {
    char text[4096] = "";
    (void)tuttiExplain(comm, tuttiAllReduce, kCount, ncclInt32, ncclSum, 0, text, sizeof text, nullptr);
    outcome.staged = std::string(text).find("staged: GPU memory") != std::string::npos;
  }
  void* handle = nullptr;
  if (made && outcome(ncclCommRegister(comm, large, kLargeCount * 4, &handle)) &&
      outcome(ncclCommWindowRegister(comm, memory, kCount * 4, &window, NCCL_WIN_COLL_SYMMETRIC))) {
    for (CUstream stream : streams) {
      if (!outcome(ncclAllReduce(buffer.data(), buffer.data(), kCount, ncclInt32, ncclSum, comm, stream))) break;
      if (!outcome(ncclAllReduce(memory, memory, kCount, ncclInt32, ncclSum, comm, stream))) break;
      if (!outcome(ncclAllReduce(large, large, kLargeCount, ncclInt32, ncclSum, comm, stream))) break;
    }
  }
  fake_driver::set_counting(false);
  for (CUstream stream : streams) Gpu::get().wait(stream);
  ncclResult_t state = ncclSuccess;
  if (comm && outcome(ncclCommGetAsyncError(comm, &state))) outcome(state);
  fake_driver::set_counting(true);
  if (window) outcome(ncclCommWindowDeregister(comm, window));
  const bool has_failed = !fake_driver::failed_function().empty();
  if (handle) outcome(ncclCommDeregister(comm, handle));
  outcome.lets_go = !has_failed && !fake_driver::failed_function().empty();
  if (comm) outcome(outcome.failed() ? ncclCommAbort(comm) : ncclCommDestroy(comm));
  fake_driver::set_counting(false);
  return outcome;
}

/// Calls that end something, or come before one that does, may fail unseen.
bool may_go_unseen(const std::string& function) {
  for (const char* part : {"Free", "Destroy", "Release", "Unload", "Close", "Unregister", "Unmap", "Query"}) {
    if (function.find(part) != std::string::npos) return true;
  }
  // A window that cannot be shared is worked on through the staging.
  for (const char* shares :
       {"cuIpcGetMemHandle", "cuMemGetAddressRange", "cuMemRetainAllocationHandle", "cuMemExportToShareableHandle"}) {
    if (function == shares) return true;
  }
  return function == "cuCtxPopCurrent" || function == "cuCtxPushCurrent" ||
         function == "cuThreadExchangeStreamCaptureMode";
}

std::string rank_of_rounds(const Member& m, Rounds& rounds, int devices) {
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  setenv("TUTTI_DEVICE", "cuda", 1);
  setenv("TUTTI_TIMEOUT_S", "20", 1);
  setenv("TUTTI_IN_PLACE_WAIT_S", "20", 1);
  if (const std::string reason = Gpu::why_not(); !reason.empty()) return reason;
  Gpu::get().use(m.rank % devices);
  const OnGpu<std::int32_t> buffer(std::vector<std::int32_t>(kCount, m.rank));
  // On one device of ncclMemAlloc, on two of cuMemMap, over the end of a piece.
  constexpr std::size_t kPiece = std::size_t{2} << 20;
  void* memory = nullptr;
  void* const mapped = devices > 1 ? Gpu::get().map(m.rank % devices, kPiece, 2, true) : nullptr;
  if (mapped) memory = static_cast<std::byte*>(mapped) + kPiece - 4096;
  if (!mapped) CREW_TRY(fine(ncclMemAlloc(&memory, kCount * 4), "ncclMemAlloc"));
  void* large = nullptr;
  void* const mapped_large = devices > 1 ? Gpu::get().map(m.rank % devices, kPiece, 2, true) : nullptr;
  if (mapped_large) large = static_cast<std::byte*>(mapped_large) + kPiece - 4096;
  if (!mapped_large) CREW_TRY(fine(ncclMemAlloc(&large, kLargeCount * 4), "ncclMemAlloc"));
  const std::vector<CUstream> streams = {Gpu::get().make_stream(), Gpu::get().make_stream()};
  // Keeps the device open, so that its opening is not tried again in each round.
  ncclComm_t keeper = nullptr;
  const int device = m.rank % devices;
  CREW_TRY(fine(ncclCommInitAll(&keeper, 1, &device), "ncclCommInitAll"));
  CREW_TRY(settle(device));
  const fake_driver::Live before = fake_driver::live();
  const std::size_t step = is_in_turns() ? kShare : 1;
  int failures = 0;
  int staged = 0;
  for (int round = 1; rounds.over == 0; ++round) {
    if (m.rank == 0) {
      CREW_TRY(fine(ncclGetUniqueId(&rounds.id), "ncclGetUniqueId"));
      rounds.begun = round;
    }
    while (rounds.begun < round && rounds.broken == 0) usleep(100);
    if (rounds.broken != 0) return "";
    const std::uint64_t call = kCallsBeforeMeeting + 1 + turn_of(kShare) + static_cast<std::uint64_t>(round - 1) * step;
    if (m.rank == 0) fake_driver::fail_after(call, CUDA_ERROR_OUT_OF_MEMORY);
    const Outcome outcome = everything(m, rounds.id, buffer, memory, large, streams);
    const std::string function = m.rank == 0 ? fake_driver::failed_function() : "";
    if (m.rank == 0) fake_driver::fail_after(0, CUDA_SUCCESS);
    const std::string where = "call " + std::to_string(call) + ", " + function + ": ";
    failures += outcome.failed();
    staged += !outcome.failed() && outcome.staged;
    if (m.rank == 0 && function.empty()) {
      if (outcome.failed()) return where + "nothing failed, but " + outcome.reason();
      rounds.over = 1;
    }
    if (!function.empty() && !may_go_unseen(function) && !outcome.lets_go) {
      if (!outcome.failed() && !outcome.staged) return where + "nobody said so";
      if (outcome.failed() && outcome.reason().find(function) == std::string::npos) return where + outcome.reason();
    }
    meet(m, rounds, 2 * round);
    CREW_TRY(settle(device));
    const fake_driver::Live after = fake_driver::live();
    if (!(after == before)) {
      return where + "before: " + fake_driver::describe(before) + "; after: " + fake_driver::describe(after);
    }
    meet(m, rounds, 2 * round + 1);
  }
  if (failures < 10) return "only " + std::to_string(failures) + " rounds failed";
  if (staged < 5) return "only " + std::to_string(staged) + " rounds went through host memory";
  CREW_TRY(fine(ncclCommDestroy(keeper), "ncclCommDestroy"));
  for (CUstream stream : streams) Gpu::get().destroy(stream);
  if (!mapped) {
    CREW_TRY(fine(ncclMemFree(large), "ncclMemFree"));
    return fine(ncclMemFree(memory), "ncclMemFree");
  }
  Gpu::get().unmap(mapped_large, kPiece, 2);
  Gpu::get().unmap(mapped, kPiece, 2);
  return "";
}

}  // namespace

TEST_CASE("processes: every CUDA call fails once, and nothing is left", "[device][processes][failure]") {
  const int devices = GENERATE(from_range(over_gpus({1, 2})));
  auto* const rounds = static_cast<Rounds*>(crew::shared_page());
  crew::check(crew::run(
      2,
      [&](const Member& m) {
        const std::string wrong = rank_of_rounds(m, *rounds, devices);
        if (!wrong.empty()) rounds->broken = 1;
        return wrong;
      },
      100));
}

// A program should deregister first; a GPU need not take it well that it does not.
TEST_CASE("processes: other memory at a window's address is none of it", "[device][processes][failure]") {
  const bool mapped = GENERATE(false, true);
  constexpr std::size_t kPiece = std::size_t{2} << 20;
  const auto allocate = [&](void*& memory) -> std::string {
    if (!mapped) return fine(ncclMemAlloc(&memory, kCount * 4), "ncclMemAlloc");
    memory = Gpu::get().map(0, kPiece, 1, true, memory);
    return "";
  };
  const auto release = [&](void* memory) -> std::string {
    if (!mapped) return fine(ncclMemFree(memory), "ncclMemFree");
    Gpu::get().unmap(memory, kPiece, 1);
    return "";
  };
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    setenv("TUTTI_DEVICE", "cuda", 1);
    setenv("TUTTI_SHARED_GPU_HOST_BYTES", "0", 1);
    if (const std::string reason = Gpu::why_not(); !reason.empty()) return reason;
    Gpu::get().use(0);
    CUstream stream = Gpu::get().make_stream();
    ncclComm_t comm = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
    void* memory = nullptr;
    ncclWindow_t window = nullptr;
    CREW_TRY(allocate(memory));
    CREW_TRY(fine(ncclCommWindowRegister(comm, memory, kCount * 4, &window, NCCL_WIN_COLL_SYMMETRIC), "register"));
    const void* const before = memory;
    for (int round = 0; round < 2; ++round) {
      const std::vector<std::int32_t> ones(kCount, 1);
      Gpu::get().copy(memory, ones.data(), kCount * 4);
      CREW_TRY(fine(ncclAllReduce(memory, memory, kCount, ncclInt32, ncclSum, comm, stream), "ncclAllReduce"));
      Gpu::get().wait(stream);
      std::vector<std::int32_t> found(kCount);
      Gpu::get().copy(found.data(), memory, kCount * 4);
      if (std::ranges::count(found, 2) != kCount) return "the sum differs in round " + std::to_string(round);
      CREW_TRY(release(memory));
      CREW_TRY(allocate(memory));
      if (memory != before) return "the address did not come back, so this says nothing";
    }
    CREW_TRY(release(memory));
    Gpu::get().destroy(stream);
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
}

TEST_CASE("processes: few bytes come to a GPU that processes have by turns as rows, which take no turn",
          "[device][processes]") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    setenv("TUTTI_SHARED_GPU_HOST_BYTES", "1M", 1);
    Rank rank(m);
    CREW_TRY(rank.open());
    // One byte is no row; long copies are no kernels' work anyhow.
    for (const auto& [count, rows] :
         {std::pair<std::size_t, std::uint64_t>{1, 0}, {2, 1}, {999, 1}, {1024, 1}, {4096, 0}}) {
      const OnGpu<std::uint8_t> bytes(std::vector<std::uint8_t>(count + 2, static_cast<std::uint8_t>(m.rank + 1)));
      const std::uint64_t before = fake_driver::staged().rows;
      CREW_TRY(
          fine(ncclAllReduce(bytes.data() + 1, bytes.data() + 1, count, ncclUint8, ncclSum, rank.comm, rank.stream),
               "bytes"));
      Gpu::get().wait(rank.stream);
      if (fake_driver::staged().rows - before != rows)
        return std::to_string(count) + " bytes did not come as they should";
      std::vector<std::uint8_t> wanted(count + 2, 3);
      wanted.front() = wanted.back() = static_cast<std::uint8_t>(m.rank + 1);
      if (bytes.read() != wanted) return std::to_string(count) + " bytes differ";
    }
    return rank.close();
  }));
}

TEST_CASE("processes: a window that one rank could not add leaves its place to later ones",
          "[device][processes][failure]") {
  constexpr int kPlaces = 8;
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    setenv("TUTTI_DEVICE", "cuda", 1);
    setenv("TUTTI_SHARED_GPU_HOST_BYTES", "0", 1);
    setenv("TUTTI_TIMEOUT_S", "5", 1);
    if (const std::string reason = Gpu::why_not(); !reason.empty()) return reason;
    Gpu::get().use(0);
    CUstream stream = Gpu::get().make_stream();
    ncclComm_t comm = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
    void* memory = nullptr;
    CREW_TRY(fine(ncclMemAlloc(&memory, kCount * 4), "ncclMemAlloc"));
    ncclWindow_t window = nullptr;
    const auto add = [&] { return ncclCommWindowRegister(comm, memory, kCount * 4, &window, NCCL_WIN_COLL_SYMMETRIC); };
    const auto sum = [&](const char* when) -> std::string {
      const std::vector<std::int32_t> ones(kCount, 1);
      Gpu::get().copy(memory, ones.data(), kCount * 4);
      CREW_TRY(fine(ncclAllReduce(memory, memory, kCount, ncclInt32, ncclSum, comm, stream), when));
      Gpu::get().wait(stream);
      std::vector<std::int32_t> found(kCount);
      Gpu::get().copy(found.data(), memory, kCount * 4);
      return std::ranges::count(found, 2) == kCount ? "" : std::string("the sum differs ") + when;
    };
    fake_driver::set_counting(true);
    if (m.rank == 0) fake_driver::fail_after(1, CUDA_ERROR_OUT_OF_MEMORY);
    const ncclResult_t first = add();
    fake_driver::set_counting(false);
    if ((first == ncclSuccess) != (m.rank == 1)) return "the first window came to " + std::to_string(first);
    if (m.rank == 1) CREW_TRY(fine(ncclCommWindowDeregister(comm, window), "deregister"));
    for (int i = 0; i < kPlaces; ++i) {
      CREW_TRY(fine(add(), "register"));
      CREW_TRY(sum("in a later window"));
      CREW_TRY(fine(ncclCommWindowDeregister(comm, window), "deregister"));
    }
    CREW_TRY(fine(ncclMemFree(memory), "ncclMemFree"));
    Gpu::get().destroy(stream);
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
}

TEST_CASE("processes: a graph is tied to other calls, unless the program promises to order them",
          "[device][processes]") {
  const bool promises = GENERATE(false, true);
  const int devices = GENERATE(from_range(over_gpus({1, 2})));
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    setenv("NCCL_GRAPH_MIXING_SUPPORT", promises ? "0" : "1", 1);
    Rank rank(m);
    CREW_TRY(rank.open(devices));
    const Gpu& gpu = Gpu::get();
    const OnGpu<std::int32_t> buffer(Values(kCount, 1));
    fake_driver::note_given();
    gpu.begin_capture(rank.stream);
    for (int i = 0; i < 2; ++i) {
      CREW_TRY(fine(ncclAllReduce(buffer.data(), buffer.data(), kCount, ncclInt32, ncclSum, rank.comm, rank.stream),
                    "captured"));
    }
    CUgraph graph = gpu.end_capture(rank.stream);
    if (!graph) return "the capture was spoilt";
    const auto is_outside = [](const fake_driver::Given& one) {
      return one.what == fake_driver::Given::What::kOutside;
    };
    const auto ties = std::ranges::count_if(fake_driver::given(), is_outside);
    if (ties != (promises ? 0 : 3)) return std::to_string(ties) + " ties";
    CUgraphExec executable = gpu.make_executable(graph);
    gpu.launch(executable, rank.stream);
    gpu.wait(rank.stream);
    if (buffer.read() != Values(kCount, 4)) return "the sum differs";
    gpu.destroy(executable);
    gpu.destroy(graph);
    return rank.close();
  }));
}

// Nobody but the program knows that a graph will be replayed, and an abort does not wait long for one that is.
TEST_CASE("processes: an abort leaves a graph what its replays use, and lets them go on",
          "[device][processes][failure]") {
  const int devices = GENERATE(from_range(over_gpus({1, 2})));
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    Rank rank(m);
    CREW_TRY(rank.open(devices));
    const Gpu& gpu = Gpu::get();
    ncclComm_t keeper = nullptr;
    CREW_TRY(fine(ncclCommInitAll(&keeper, 1, &rank.device), "ncclCommInitAll"));
    constexpr std::size_t kElements = 2000001;  // two pieces
    const OnGpu<std::int32_t> buffer(Values(kElements, 1));
    auto* const gate = static_cast<std::uint32_t*>(gpu.allocate_pinned(4096));
    *gate = 0;
    gpu.begin_capture(rank.stream);
    CREW_TRY(fine(ncclAllReduce(buffer.data(), buffer.data(), kElements, ncclInt32, ncclSum, rank.comm, rank.stream),
                  "captured"));
    CUgraph graph = gpu.end_capture(rank.stream);
    if (!graph) return "the capture was spoilt";
    CUgraphExec executable = gpu.make_executable(graph);
    gpu.launch(executable, rank.stream);
    gpu.wait(rank.stream);
    if (buffer.read() != Values(kElements, 2)) return "the first replay's sum differs";
    const fake_driver::Live used = fake_driver::live();
    // Rank 1's stream has yet to come to its replay, rank 0's waits in it for rank 1's.
    if (m.rank == 1) gpu.wait_for_word(rank.stream, gate, 1);
    gpu.launch(executable, rank.stream);
    CREW_TRY(fine(ncclCommAbort(rank.comm), "ncclCommAbort"));
    const fake_driver::Live kept = fake_driver::live();
    if (kept.device_allocations != used.device_allocations || kept.imports != used.imports) {
      return "before: " + fake_driver::describe(used) + "; after the abort: " + fake_driver::describe(kept);
    }
    std::atomic_ref(*gate).store(1);
    gpu.wait(rank.stream);
    // Those that come later find the same, without the other rank too.
    for (int i = 0; i <= m.rank; ++i) gpu.launch(executable, rank.stream);
    gpu.wait(rank.stream);
    gpu.destroy(executable);
    gpu.destroy(graph);
    CREW_TRY(settle(rank.device));
    if (fake_driver::live().imports != 0) return "left: " + fake_driver::describe(fake_driver::live());
    gpu.release_pinned(gate);
    gpu.destroy(rank.stream);
    return fine(ncclCommDestroy(keeper), "ncclCommDestroy");
  }));
}

// How long the program's own work before a call takes nobody knows: an abort does not wait for it.
TEST_CASE("processes: an abort leaves calls whose stream is held up what they use", "[device][processes][failure]") {
  const int devices = GENERATE(from_range(over_gpus({1, 2})));
  auto* const called = static_cast<std::atomic<int>*>(crew::shared_page());
  *called = 0;
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    Rank rank(m);
    CREW_TRY(rank.open(devices));
    const Gpu& gpu = Gpu::get();
    ncclComm_t keeper = nullptr;
    CREW_TRY(fine(ncclCommInitAll(&keeper, 1, &rank.device), "ncclCommInitAll"));
    const OnGpu<std::int32_t> buffer(Values(kCount, 1));
    auto* const gate = static_cast<std::uint32_t*>(gpu.allocate_pinned(4096));
    *gate = 0;
    if (m.rank == 1) gpu.wait_for_word(rank.stream, gate, 1);
    const auto sum = [&] {
      return ncclAllReduce(buffer.data(), buffer.data(), kCount, ncclInt32, ncclSum, rank.comm, rank.stream);
    };
    for (int i = 0; i < 2; ++i) CREW_TRY(fine(sum(), "ncclAllReduce"));
    for (++*called; *called < m.ranks;) usleep(100);
    const fake_driver::Live used = fake_driver::live();
    CREW_TRY(fine(ncclCommAbort(rank.comm), "ncclCommAbort"));
    const fake_driver::Live kept = fake_driver::live();
    const bool all_kept = kept.device_allocations == used.device_allocations && kept.imports == used.imports;
    if (m.rank == 1 && !all_kept) {
      return "before: " + fake_driver::describe(used) + "; after the abort: " + fake_driver::describe(kept);
    }
    std::atomic_ref(*gate).store(1);
    gpu.wait(rank.stream);
    CREW_TRY(settle(rank.device));
    if (fake_driver::live().imports != 0) return "left: " + fake_driver::describe(fake_driver::live());
    gpu.release_pinned(gate);
    gpu.destroy(rank.stream);
    return fine(ncclCommDestroy(keeper), "ncclCommDestroy");
  }));
}

}  // namespace tutti::test
