// Memory is missing once: in the library's threads of communicators on GPUs, in the program's, in those of the driver that call the library. The
// process lives on, and nobody waits until time is over.
#include "comm/crew.h"
#include "failing_new.h"
#include "fake_driver.h"
#include "process_ranks.h"
#include "team_hosts.h"
#include "turn.h"

#include <catch2/catch.hpp>

#include <atomic>
#include <functional>
#include <utility>

#include <unistd.h>

namespace tutti::test {
namespace {

/// The k-th allocation of threads of this name fails.
void lack_memory(const char* thread, long k) {
  name_that_fails = thread;
  until_failure_by_name = k;
}

/// The same of the library's calls by this thread: what is left until one fails.
long until_own_failure = 0;
bool has_own_failed() { return std::exchange(until_own_failure, 0) == 0; }

bool waited_for_long() { return std::string(ncclGetLastError(nullptr)).find("TUTTI_TIMEOUT_S") != std::string::npos; }

/// One that fails concerns no other one.
std::string make_another(const Rank& rank, ncclComm_t* comm) {
  return fine(ncclCommSplit(rank.comm, 0, rank.m.rank, comm, nullptr), "ncclCommSplit");
}

/// The end of one that may have failed, meanwhile too.
std::string end(ncclComm_t comm) {
  ncclResult_t state = ncclSuccess;
  CREW_TRY(fine(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError"));
  if (state != ncclSuccess && waited_for_long()) return ncclGetLastError(nullptr);
  return fine(state == ncclSuccess ? ncclCommDestroy(comm) : ncclCommAbort(comm), "the end");
}

/// Rounds in each of which rank 1 lacks its next allocation, until that is one that there is not. `part`: of a rank with another communicator.
/// `arm` of an allocation, and `disarm`, which says whether it has failed.
std::string lack_each(const Rank& rank, Rounds& rounds, const std::function<void(long)>& arm,
                      const std::function<bool()>& disarm, const std::function<std::string(ncclComm_t)>& part) {
  int round = 0;
  std::string wrong;
  while (rounds.over == 0 && rounds.broken == 0) {
    ++round;
    ncclComm_t comm = nullptr;
    wrong = make_another(rank, &comm);
    if (wrong.empty() && rank.m.rank == 1) arm(round);
    if (wrong.empty()) wrong = part(comm);
    const bool has_failed = disarm();
    if (rank.m.rank == 1 && !has_failed) rounds.over = 1;
    if (wrong.empty()) wrong = end(comm);
    if (!wrong.empty()) rounds.broken = 1;
    CREW_TRY(wrong.empty() ? "" : "allocation " + std::to_string(round) + ": " + wrong);
    meet(rank.m, rounds, round);
  }
  return round > 3 || rounds.broken != 0 ? "" : "no allocation failed";
}

std::string lack_each_of(const char* thread, const Rank& rank, Rounds& rounds,
                         const std::function<std::string(ncclComm_t)>& part) {
  return lack_each(
      rank, rounds, [=](long k) { lack_memory(thread, k); }, [] { return until_failure_by_name.exchange(0) == 0; },
      part);
}

std::string lack_each_own(const Rank& rank, Rounds& rounds, const std::function<std::string(ncclComm_t)>& part) {
  return lack_each(
      rank, rounds, [](long k) { until_own_failure = k; }, has_own_failed, part);
}

/// Sums, each of them once more where it was not made for want of memory.
std::string sum_up(const Rank& rank, ncclComm_t comm, void* data, std::size_t count) {
  const auto sum = [&] {
    until_failure = until_own_failure;
    const ncclResult_t result = ncclAllReduce(data, data, count, ncclInt32, ncclSum, comm, rank.stream);
    until_own_failure = std::exchange(until_failure, 0);
    return result;
  };
  for (int call = 0; call < 2; ++call) {
    ncclResult_t state = ncclSuccess;
    if (sum() == ncclSuccess) continue;
    if (waited_for_long()) return ncclGetLastError(nullptr);
    CREW_TRY(fine(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError"));
    if (state == ncclSuccess && sum() != ncclSuccess && waited_for_long()) return ncclGetLastError(nullptr);
  }
  Gpu::get().wait(rank.stream);
  return "";
}

}  // namespace

TEST_CASE("no memory: the thread that watches over kernels says all the same what is wrong", "[processes][failure]") {
  const int devices = GENERATE(1, 2);
  const long k = GENERATE(range(1L, 7L));
  crew::check(crew::run(2, [=](const Member& m) -> std::string {
    Rank rank(m);
    CREW_TRY(rank.open(devices));
    if (m.rank == 1) return rank.close();
    const OnGpu<std::int32_t> data(Values(3000, 1));
    lack_memory("tutti-gpu-watch", k);
    CREW_TRY(fine(ncclAllReduce(data.data(), data.data(), 3000, ncclInt32, ncclSum, rank.comm, rank.stream), "sum"));
    Gpu::get().wait(rank.stream);
    CREW_TRY(fails(rank.comm, ncclRemoteError, {"rank 1 has left"}));
    Gpu::get().destroy(rank.stream);
    return fine(ncclCommAbort(rank.comm), "ncclCommAbort");
  }));
}

TEST_CASE("no memory: the thread of teams passes on all the same what has failed", "[teams][failure]") {
  const Placed placed("2");
  const long k = GENERATE(range(1L, 9L));
  auto* const called = static_cast<std::atomic<int>*>(crew::shared_page());
  crew::check(crew::run(4, [=](const Member& m) -> std::string {
    setenv("TUTTI_STAGING_BYTES", "4096", 1);
    Rank rank(m);
    CREW_TRY(rank.open(4));
    const OnGpu<std::int32_t> data(values(m.rank, 40960));
    if (m.rank != 2) {
      lack_memory("tutti-teams", k);
      CREW_TRY(fine(ncclAllReduce(data.data(), data.data(), 40960, ncclInt32, ncclSum, rank.comm, rank.stream), "sum"));
      ++*called;
      Gpu::get().wait(rank.stream);
      CREW_TRY(fails(rank.comm, ncclRemoteError, {"rank 2 called ncclCommAbort"}));
    }
    while (*called < 3) usleep(200);
    Gpu::get().destroy(rank.stream);
    return fine(ncclCommAbort(rank.comm), "ncclCommAbort");
  }));
}

TEST_CASE("no memory: calls through host memory lack each allocation once", "[staged][failure]") {
  const bool is_thread = GENERATE(false, true);  // of the library's thread, or of the calls
  auto* const rounds = static_cast<Rounds*>(crew::shared_page());
  crew::check(crew::run(2, [=](const Member& m) -> std::string {
    setenv("FAKE_CUDA_IPC", "0", 1);
    setenv("TUTTI_STAGING_BYTES", "4096", 1);
    Rank rank(m);
    CREW_TRY(rank.open());
    const OnGpu<std::int32_t> data(Values(2500, 1));
    const auto sums = [&](ncclComm_t comm) { return sum_up(rank, comm, data.data(), 2500); };
    CREW_TRY(is_thread ? lack_each_of("tutti-staged", rank, *rounds, sums) : lack_each_own(rank, *rounds, sums));
    return rank.close();
  }));
}

// A call that has begun is not made anew: the others would take the pieces of one for those of the other.
TEST_CASE("no memory: calls of kernels among processes lack each allocation once", "[processes][failure]") {
  const int devices = GENERATE(1, 2);
  const bool in_place = GENERATE(false, true);
  auto* const rounds = static_cast<Rounds*>(crew::shared_page());
  crew::check(crew::run(2, [=](const Member& m) -> std::string {
    Rank rank(m);
    CREW_TRY(rank.open(devices));
    constexpr std::size_t kCount = (std::size_t{9} << 17) + 5;  // two pieces of staging
    const OnGpu<std::int32_t> own(Values(kCount, 1));
    void* shared = nullptr;
    CREW_TRY(fine(ncclMemAlloc(&shared, kCount * 4), "ncclMemAlloc"));
    void* const data = in_place ? shared : own.data();
    CREW_TRY(lack_each_own(rank, *rounds, [&](ncclComm_t comm) -> std::string {
      Values values(kCount);
      for (std::size_t i = 0; i < kCount; ++i) values[i] = static_cast<std::int32_t>(i);
      Gpu::get().copy(data, values.data(), kCount * 4);
      CREW_TRY(sum_up(rank, comm, data, kCount));
      Gpu::get().copy(values.data(), data, kCount * 4);
      ncclResult_t state = ncclSuccess;
      CREW_TRY(fine(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError"));
      if (state != ncclSuccess) return "";
      return differs(
          "the sum", values, [](std::size_t i) { return 4 * static_cast<std::int32_t>(i); }, kCount);
    }));
    CREW_TRY(fine(ncclMemFree(shared), "ncclMemFree"));
    return rank.close();
  }));
}

// The driver's thread has nobody to tell: streams go on, and the communicator says why.
TEST_CASE("no memory: replays through host memory lack each allocation once, and the ends of graphs too",
          "[staged][failure]") {
  auto* const rounds = static_cast<Rounds*>(crew::shared_page());
  crew::check(crew::run(2, [=](const Member& m) -> std::string {
    setenv("FAKE_CUDA_IPC", "0", 1);
    setenv("TUTTI_STAGING_BYTES", "4096", 1);
    Rank rank(m);
    CREW_TRY(rank.open());
    const Gpu& gpu = Gpu::get();
    const OnGpu<std::int32_t> data(Values(2500, 1));
    CREW_TRY(lack_each_of("cuda-callback", rank, *rounds, [&](ncclComm_t comm) -> std::string {
      gpu.begin_capture(rank.stream);
      const std::string captured =
          fine(ncclAllReduce(data.data(), data.data(), 2500, ncclInt32, ncclSum, comm, rank.stream), "captured");
      CUgraph graph = gpu.end_capture(rank.stream);
      if (!graph) return "the capture was spoilt";
      if (!captured.empty()) {
        gpu.destroy(graph);
        ncclResult_t state = ncclSuccess;
        CREW_TRY(fine(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError"));
        // The other rank is at its replays, and has failed.
        return state == ncclSuccess || waited_for_long() ? captured : "";
      }
      CUgraphExec executable = gpu.make_executable(graph);
      for (int replay = 0; replay < 2; ++replay) gpu.launch(executable, rank.stream);
      gpu.wait(rank.stream);
      gpu.destroy(executable);
      gpu.destroy(graph);
      return "";
    }));
    return rank.close();
  }));
}

namespace {

/// What fails in calls of this thread: an allocation, or one of its calls of the driver; once, or from then on.
enum class Lack { kAllocation, kAllocations, kCall, kCalls };

void begin_lack(Lack lack, long k) {
  const bool lasts = lack == Lack::kAllocations || lack == Lack::kCalls;
  if (lack == Lack::kAllocation || lack == Lack::kAllocations) {
    failure_lasts = lasts;
    until_failure = k;
    return;
  }
  fake_driver::fail_after(static_cast<std::uint64_t>(k), CUDA_ERROR_LAUNCH_FAILED, lasts);
  fake_driver::set_counting(true);
}
/// Whether any has failed.
bool end_lack(Lack lack) {
  fake_driver::set_counting(false);
  const bool has_call_failed = !fake_driver::failed_function().empty();
  fake_driver::fail_after(0, CUDA_SUCCESS);
  // Where it lasts, the next one fails again.
  const long left = std::exchange(until_failure, 0);
  failure_lasts = false;
  return lack == Lack::kAllocation ? left == 0 : lack == Lack::kAllocations ? left == 1 : has_call_failed;
}

/// What a rank has besides a communicator: memory that others have open, registered and in a window too.
struct Registered {
  static constexpr std::size_t kCount = (1 << 18) + 5;
  OnGpu<std::int32_t> own{Values(kCount, 1)};
  void* memory[2] = {};
  void* handle = nullptr;
  ncclWindow_t window = nullptr;

  std::string open(ncclComm_t comm) {
    for (void*& one : memory) {
      CREW_TRY(fine(ncclMemAlloc(&one, kCount * 4), "ncclMemAlloc"));
      Gpu::get().copy(one, Values(kCount, 1).data(), kCount * 4);
    }
    CREW_TRY(fine(ncclCommRegister(comm, own.data(), kCount * 4, &handle), "ncclCommRegister"));
    return fine(ncclCommWindowRegister(comm, memory[1], kCount * 4, &window, NCCL_WIN_COLL_SYMMETRIC), "register");
  }
  std::string sum_up(ncclComm_t comm, CUstream stream) const {
    for (void* const data : {static_cast<void*>(own.data()), memory[0], memory[1]})
      CREW_TRY(fine(ncclAllReduce(data, data, kCount, ncclInt32, ncclSum, comm, stream), "sum"));
    return "";
  }
};

/// Of how many calls of the driver one fails, where they take turns.
constexpr std::size_t kShareOfCalls = 6;

bool is_for_want_of_memory(ncclResult_t result) { return result == ncclSuccess || result == ncclSystemError; }

}  // namespace

TEST_CASE(
    "no memory: what ends a communicator and its memory lacks each allocation, or call of the driver, or all from it "
    "on",
    "[processes][failure]") {
  const bool staged = GENERATE(false, true);
  const int devices = GENERATE(1, 2);
  const bool aborts = GENERATE(false, true);
  const Lack lack = GENERATE(Lack::kAllocation, Lack::kAllocations, Lack::kCall, Lack::kCalls);
  CAPTURE(staged, devices, aborts, static_cast<int>(lack));
  auto* const rounds = static_cast<Rounds*>(crew::shared_page());
  crew::check(crew::run(2, [=](const Member& m) -> std::string {
    if (staged) setenv("FAKE_CUDA_IPC", "0", 1);
    setenv("TUTTI_IN_PLACE_WAIT_S", "20", 1);
    Rank rank(m);
    CREW_TRY(rank.open(devices));
    CREW_TRY(settle(rank.device));
    const fake_driver::Live before = fake_driver::live();
    const bool of_driver = lack == Lack::kCall || lack == Lack::kCalls;
    const std::size_t step = of_driver && is_in_turns() ? kShareOfCalls : 1;
    int round = 0;
    while (rounds->over == 0 && rounds->broken == 0) {
      const std::size_t which = 1 + turn_of(step) + static_cast<std::size_t>(round++) * step;
      ncclComm_t comm = nullptr;
      CREW_TRY(make_another(rank, &comm));
      ncclResult_t ends[5] = {};
      {
        Registered memory;
        CREW_TRY(memory.open(comm));
        CREW_TRY(memory.sum_up(comm, rank.stream));
        Gpu::get().wait(rank.stream);
        meet(m, *rounds, 3 * round);
        if (m.rank == 1) begin_lack(lack, static_cast<long>(which));
        ends[0] = ncclCommWindowDeregister(comm, memory.window);
        ends[1] = ncclCommDeregister(comm, memory.handle);
        ends[2] = ncclMemFree(memory.memory[0]);
        ends[3] = aborts ? ncclCommAbort(comm) : ncclCommDestroy(comm);
        ends[4] = ncclMemFree(memory.memory[1]);
        const bool has_failed = m.rank == 1 && end_lack(lack);
        if (m.rank == 1 && !has_failed) rounds->over = 1;
        meet(m, *rounds, 3 * round + 1);
        // What is freed all the same is so once.
        for (const int i : {0, 1}) {
          const bool is_freed = ends[2 + 2 * i] == ncclSuccess || ncclMemFree(memory.memory[i]) == ncclSuccess;
          if (!is_freed) CREW_TRY(refused(ncclMemFree(memory.memory[i]), ncclInvalidArgument, {"freed already"}));
        }
      }
      std::string wrong;
      for (const ncclResult_t end : ends) {
        const bool is_expected =
            end == ncclSuccess || (m.rank == 1 && end == (of_driver ? ncclUnhandledCudaError : ncclSystemError));
        if (!is_expected) wrong = "an end came to " + std::to_string(end);
      }
      if (wrong.empty()) wrong = settle(rank.device);
      // What the other one had open then goes when this one allocates or frees.
      void* next = nullptr;
      if (wrong.empty()) wrong = fine(ncclMemAlloc(&next, 1), "ncclMemAlloc");
      if (wrong.empty()) wrong = fine(ncclMemFree(next), "ncclMemFree");
      const fake_driver::Live after = fake_driver::live();
      if (wrong.empty() && !(after == before))
        wrong = "before: " + fake_driver::describe(before) + "; after: " + fake_driver::describe(after);
      if (!wrong.empty()) rounds->broken = 1;
      CREW_TRY(wrong.empty() ? "" : std::to_string(which) + ": " + wrong);
      meet(m, *rounds, 3 * round + 2);
    }
    return rank.close();
  }));
}

// Else its window is one that the others use and it does not, or one for which they wait.
TEST_CASE("no memory: a window that a rank cannot register for it is none, and calls with it are made all the same",
          "[processes][failure]") {
  auto* const rounds = static_cast<Rounds*>(crew::shared_page());
  auto* const registered = static_cast<std::atomic<int>*>(crew::shared_page());
  crew::check(crew::run(2, [=](const Member& m) -> std::string {
    setenv("TUTTI_TIMEOUT_S", "20", 1);
    Rank rank(m);
    CREW_TRY(rank.open(2));
    const Gpu& gpu = Gpu::get();
    constexpr std::size_t kPiece = std::size_t{2} << 20;
    constexpr std::size_t kCount = 100000;
    void* const memory = gpu.map(rank.device, kPiece, 1, true);
    int windows = 0;
    CREW_TRY(lack_each(
        rank, *rounds, [](long k) { until_own_failure = k; }, has_own_failed,
        [&](ncclComm_t comm) -> std::string {
          ncclWindow_t window = nullptr;
          // What rank 0 sends for its own is there when rank 1 looks.
          if (m.rank == 1) {
            for (++windows; *registered < windows && rounds->broken == 0;) usleep(100);
          }
          until_failure = until_own_failure;
          const ncclResult_t made = ncclCommWindowRegister(comm, memory, kCount * 4, &window, NCCL_WIN_COLL_SYMMETRIC);
          until_own_failure = std::exchange(until_failure, 0);
          if (m.rank == 0) ++*registered;
          if (!is_for_want_of_memory(made)) return ncclGetLastError(nullptr);
          for (int call = 0; call < 2; ++call) {
            gpu.copy(memory, Values(kCount, 1).data(), kCount * 4);
            CREW_TRY(fine(ncclAllReduce(memory, memory, kCount, ncclInt32, ncclSum, comm, rank.stream), "sum"));
            gpu.wait(rank.stream);
            Values found(kCount);
            gpu.copy(found.data(), memory, kCount * 4);
            CREW_TRY(differs(
                "the sum", found, [](std::size_t) { return 2; }, kCount));
          }
          ncclResult_t state = ncclSuccess;
          CREW_TRY(fine(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError"));
          CREW_TRY(fine(state, "the communicator"));
          return window ? fine(ncclCommWindowDeregister(comm, window), "deregister") : "";
        }));
    gpu.unmap(memory, kPiece, 1);
    return rank.close();
  }));
}

TEST_CASE("no memory: GPU memory that ncclMemAlloc has no room to note is not lost", "[device][failure]") {
  crew::check(crew::run(1, [](const Member& m) -> std::string {
    Rank rank(m);
    CREW_TRY(rank.open());
    void* first = nullptr;  // what a process needs once is there then
    CREW_TRY(fine(ncclMemAlloc(&first, 1), "ncclMemAlloc"));
    CREW_TRY(fine(ncclMemFree(first), "ncclMemFree"));
    bool has_failed = true;
    int failures = 0;
    for (long k = 1; has_failed; ++k) {
      const fake_driver::Live before = fake_driver::live();
      void* memory = nullptr;
      begin_lack(Lack::kAllocation, k);
      const ncclResult_t made = ncclMemAlloc(&memory, 1);
      has_failed = end_lack(Lack::kAllocation);
      failures += made != ncclSuccess;
      if (!is_for_want_of_memory(made)) return ncclGetLastError(nullptr);
      if (made == ncclSuccess) CREW_TRY(fine(ncclMemFree(memory), "ncclMemFree"));
      if (!(fake_driver::live() == before)) return "allocation " + std::to_string(k) + " lost some";
    }
    return failures != 0 ? rank.close() : "none failed";
  }));
}

// Of what is missing in it nobody else knows: the others would wait for it until they lose patience.
TEST_CASE("no memory: a graph in which a call through host memory broke off fails the communicator when it is launched",
          "[staged][failure]") {
  auto* const rounds = static_cast<Rounds*>(crew::shared_page());
  struct Told {
    std::atomic<int> failures;
    std::atomic<int> rounds;  ///< that are over for rank 1
  };
  auto* const told = static_cast<Told*>(crew::shared_page());
  crew::check(crew::run(2, [=](const Member& m) -> std::string {
    setenv("FAKE_CUDA_IPC", "0", 1);
    setenv("TUTTI_STAGING_BYTES", "4096", 1);
    setenv("TUTTI_TIMEOUT_S", "20", 1);
    Rank rank(m);
    CREW_TRY(rank.open());
    const Gpu& gpu = Gpu::get();
    const OnGpu<std::int32_t> data(Values(2500, 1));
    CREW_TRY(lack_each_own(rank, *rounds, [&](ncclComm_t comm) -> std::string {
      if (m.rank == 0) {
        for (const int round = rounds->done[0]; told->rounds == round && rounds->broken == 0;) usleep(100);
        return "";
      }
      gpu.begin_capture(rank.stream);
      until_failure = until_own_failure;
      const ncclResult_t made = ncclAllReduce(data.data(), data.data(), 2500, ncclInt32, ncclSum, comm, rank.stream);
      until_own_failure = std::exchange(until_failure, 0);
      CUgraph graph = gpu.end_capture(rank.stream);
      if (!graph) return "the capture was spoilt";
      if (made != ncclSuccess) {
        CUgraphExec executable = gpu.make_executable(graph);
        gpu.launch(executable, rank.stream);
        gpu.wait(rank.stream);
        gpu.destroy(executable);
        ncclResult_t state = ncclSuccess;
        usleep(20000);
        CREW_TRY(fine(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError"));
        if (state != ncclSuccess) ++told->failures;
        if (state != ncclSuccess) CREW_TRY(refused(state, ncclInvalidUsage, {"not whole"}, comm));
      }
      gpu.destroy(graph);
      ++told->rounds;
      return "";
    }));
    if (m.rank == 1 && told->failures < 3) return std::to_string(told->failures) + " graphs failed";
    return rank.close();
  }));
}

}  // namespace tutti::test
