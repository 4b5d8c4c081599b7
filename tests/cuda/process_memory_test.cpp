// Memory is missing once: in the library's threads of communicators on GPUs, in the program's, in those of the driver that call the library. The
// process lives on, and nobody waits until time is over.
#include "comm/crew.h"
#include "failing_new.h"
#include "fake_driver.h"
#include "process_ranks.h"
#include "team_hosts.h"

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

}  // namespace tutti::test
