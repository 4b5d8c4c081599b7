// What goes wrong among ranks that are processes: everybody hears of it, and nobody waits for ever.
#include "process_ranks.h"

#include <tutti/tutti.h>

#include <catch2/catch.hpp>

#include <algorithm>
#include <atomic>
#include <csignal>

#include <unistd.h>

namespace tutti::test {
TEST_CASE("processes: calls that differ are found by the kernels, and named", "[device][processes]") {
  const int devices = GENERATE(from_range(over_gpus({1, 4})));
  crew::check(crew::run(3, [&](const Member& m) -> std::string {
    Rank rank(m);
    CREW_TRY(rank.open(devices));
    const OnGpu<std::int32_t> a(values(m.rank, 100));
    CREW_TRY(fine(ncclAllReduce(a.data(), a.data(), 100, ncclInt32, ncclSum, rank.comm, rank.stream), "alike"));
    CREW_TRY(fine(ncclAllReduce(a.data(), a.data(), m.rank == 1 ? 7 : 5, ncclInt32, ncclSum, rank.comm, rank.stream),
                  "unlike"));
    Gpu::get().wait(rank.stream);  // the kernel gives up
    // With a GPU and so a kernel of its own each rank knows at once.
    ncclResult_t state = ncclSuccess;
    CREW_TRY(fine(ncclCommGetAsyncError(rank.comm, &state), "ncclCommGetAsyncError"));
    if (std::min(devices, Gpu::get().devices()) >= m.ranks && state != ncclInvalidUsage)
      return "the stream is done, and the state is " + std::to_string(state);
    CREW_TRY(fails(rank.comm, ncclInvalidUsage, {"count 7 int32 sum on rank 1", "count 5 int32 sum on rank"}));
    CREW_TRY(refused(ncclAllReduce(a.data(), a.data(), 5, ncclInt32, ncclSum, rank.comm, rank.stream), ncclInvalidUsage,
                     {"count 7 int32 sum on rank 1"}));
    Gpu::get().destroy(rank.stream);
    CREW_TRY(fine(ncclCommAbort(rank.comm), "ncclCommAbort"));
    return "";
  }));
}

TEST_CASE("processes: calls that differ so much that other kernels do them are found and named",
          "[device][processes]") {
  const bool first_is_long = GENERATE(false, true);
  auto* const called = static_cast<std::atomic<int>*>(crew::shared_page());
  crew::check(crew::run(3, [&](const Member& m) -> std::string {
    Rank rank(m);
    CREW_TRY(rank.open(4));
    const OnGpu<std::int32_t> a(values(m.rank, 200000));
    const std::size_t count = (m.rank == 0) == first_is_long ? 200000 : 5;
    CREW_TRY(fine(ncclAllReduce(a.data(), a.data(), count, ncclInt32, ncclSum, rank.comm, rank.stream), "unlike"));
    for (++*called; *called < m.ranks;) usleep(200);  // a call that comes when it is known is refused
    Gpu::get().wait(rank.stream);                     // the kernel gives up
    CREW_TRY(fails(rank.comm, ncclInvalidUsage, {"count 5 int32 sum on rank", "count 200000 int32 sum on rank"}));
    Gpu::get().destroy(rank.stream);
    CREW_TRY(fine(ncclCommAbort(rank.comm), "ncclCommAbort"));
    return "";
  }));
}

TEST_CASE("processes: a graph and a call in another order than on other ranks are calls that differ",
          "[device][processes]") {
  const int devices = GENERATE(from_range(over_gpus({1, 4})));
  auto* const called = static_cast<std::atomic<int>*>(crew::shared_page());
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    Rank rank(m);
    CREW_TRY(rank.open(devices));
    const Gpu& gpu = Gpu::get();
    const OnGpu<std::int32_t> a(values(m.rank, 100));
    const auto sum_up = [&](std::size_t count, CUstream stream) {
      return fine(ncclAllReduce(a.data(), a.data(), count, ncclInt32, ncclSum, rank.comm, stream), "ncclAllReduce");
    };
    gpu.begin_capture(rank.stream);
    CREW_TRY(sum_up(5, rank.stream));
    CUgraph graph = gpu.end_capture(rank.stream);
    if (!graph) return "the capture was spoilt";
    CUgraphExec executable = gpu.make_executable(graph);
    CUstream other = gpu.make_stream();
    if (m.rank == 0) gpu.launch(executable, rank.stream);
    CREW_TRY(sum_up(7, other));
    for (++*called; *called < m.ranks;) usleep(200);
    if (m.rank == 1) gpu.launch(executable, rank.stream);
    gpu.wait(other);
    gpu.wait(rank.stream);
    CREW_TRY(fails(rank.comm, ncclInvalidUsage, {"calls differ", " on rank 0", "count 7 int32 sum on rank 1"}));
    CREW_TRY(fine(ncclCommAbort(rank.comm), "ncclCommAbort"));
    gpu.destroy(executable);
    gpu.destroy(graph);
    gpu.destroy(other);
    gpu.destroy(rank.stream);
    return "";
  }));
}

TEST_CASE("processes: calls that one rank has in a graph and another has not are the same calls",
          "[device][processes]") {
  const int devices = GENERATE(from_range(over_gpus({1, 4})));
  const bool some_through_host = GENERATE(false, true);
  setenv("TUTTI_SHARED_GPU_HOST_BYTES", some_through_host ? "1000" : "0", 1);
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    Rank rank(m);
    CREW_TRY(rank.open(devices));
    const Gpu& gpu = Gpu::get();
    constexpr std::size_t kMany = 1000;
    const OnGpu<std::int32_t> a(Values(kMany, 1));
    const auto sum_up = [&](std::size_t count) {
      return fine(ncclAllReduce(a.data(), a.data(), count, ncclInt32, ncclSum, rank.comm, rank.stream),
                  "ncclAllReduce");
    };
    CUgraph graph = nullptr;
    CUgraphExec executable = nullptr;
    if (m.rank == 1) {
      gpu.begin_capture(rank.stream);
      CREW_TRY(sum_up(kMany));
      CREW_TRY(sum_up(10));
      graph = gpu.end_capture(rank.stream);
      if (!graph) return "the capture was spoilt";
      executable = gpu.make_executable(graph);
    }
    for (int i = 0; i < 3; ++i) {
      if (m.rank == 1) gpu.launch(executable, rank.stream);
      if (m.rank == 0) CREW_TRY(sum_up(kMany));
      if (m.rank == 0) CREW_TRY(sum_up(10));
    }
    CREW_TRY(sum_up(some_through_host ? 10 : kMany));
    gpu.wait(rank.stream);
    const Values sums = a.read();
    if (sums[0] != 128 || sums[kMany - 1] != (some_through_host ? 8 : 16)) return "the sums are wrong";
    if (m.rank == 1) gpu.destroy(executable);
    if (m.rank == 1) gpu.destroy(graph);
    // The other one has left then, with a smaller count.
    if (m.rank == 0) usleep(100000);
    ncclResult_t state = ncclSuccess;
    CREW_TRY(fine(ncclCommGetAsyncError(rank.comm, &state), "ncclCommGetAsyncError"));
    CREW_TRY(fine(state, "the communicator"));
    return rank.close();
  }));
  unsetenv("TUTTI_SHARED_GPU_HOST_BYTES");
}

TEST_CASE("processes: a rank that is killed ends the others' kernels", "[device][processes]") {
  const int devices = GENERATE(from_range(over_gpus({1, 4})));
  auto* const called = static_cast<std::atomic<int>*>(crew::shared_page());
  const auto endings = crew::run(3, [&](const Member& m) -> std::string {
    Rank rank(m);
    CREW_TRY(rank.open(devices));
    const OnGpu<std::int32_t> a(values(m.rank, 100));
    CREW_TRY(fine(ncclAllReduce(a.data(), a.data(), 100, ncclInt32, ncclSum, rank.comm, rank.stream), "all"));
    Gpu::get().wait(rank.stream);
    while (m.rank == 1 && *called < 2) usleep(200);
    if (m.rank == 1) raise(SIGKILL);
    CREW_TRY(fine(ncclAllReduce(a.data(), a.data(), 100, ncclInt32, ncclSum, rank.comm, rank.stream), "without one"));
    ++*called;
    Gpu::get().wait(rank.stream);
    CREW_TRY(fails(rank.comm, ncclRemoteError, {"rank 1", "ended without leaving"}));
    Gpu::get().destroy(rank.stream);
    return fine(ncclCommDestroy(rank.comm), "ncclCommDestroy");
  });
  crew::check(endings, {1});
}

TEST_CASE("processes: an abort ends all ranks' kernels", "[device][processes]") {
  const int devices = GENERATE(from_range(over_gpus({1, 4})));
  auto* const called = static_cast<std::atomic<int>*>(crew::shared_page());
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    Rank rank(m);
    CREW_TRY(rank.open(devices));
    const OnGpu<std::int32_t> a(values(m.rank, 100));
    if (m.rank == 0) {
      CREW_TRY(fine(ncclAllReduce(a.data(), a.data(), 100, ncclInt32, ncclSum, rank.comm, rank.stream), "alone"));
      *called = 1;
      Gpu::get().wait(rank.stream);
      CREW_TRY(fails(rank.comm, ncclRemoteError, {"rank 1 has left the communicator"}));
    }
    while (*called == 0) usleep(200);
    CREW_TRY(fine(ncclCommAbort(rank.comm), "ncclCommAbort"));
    Gpu::get().destroy(rank.stream);
    return "";
  }));
}

TEST_CASE("processes: who is stuck in a call can end registrations, and abort it", "[device][processes]") {
  const bool in_window = GENERATE(false, true);
  crew::check(crew::run(2, [in_window](const Member& m) -> std::string {
    Rank rank(m);
    CREW_TRY(rank.open(4));
    void* memory[2] = {};
    void* handles[2] = {};
    for (int i = 0; i < 2; ++i) {
      CREW_TRY(fine(ncclMemAlloc(&memory[i], 1 << 20), "ncclMemAlloc"));
      if (in_window) {
        ncclWindow_t window = nullptr;
        CREW_TRY(
            fine(ncclCommWindowRegister(rank.comm, memory[i], 1 << 20, &window, NCCL_WIN_COLL_SYMMETRIC), "window"));
        handles[i] = window;
      } else {
        CREW_TRY(fine(ncclCommRegister(rank.comm, memory[i], 1 << 20, &handles[i]), "ncclCommRegister"));
      }
    }
    if (m.rank == 0) {
      const auto end = [&](void* handle) {
        return in_window ? ncclCommWindowDeregister(rank.comm, static_cast<ncclWindow_t>(handle))
                         : ncclCommDeregister(rank.comm, handle);
      };
      CREW_TRY(fine(ncclAllReduce(memory[0], memory[0], 100, ncclInt32, ncclSum, rank.comm, rank.stream), "alone"));
      const double start = crew::now_s();
      for (void* const handle : handles) CREW_TRY(fine(end(handle), "the end of a registration"));
      CREW_TRY(fine(ncclCommAbort(rank.comm), "ncclCommAbort"));
      if (crew::now_s() - start > 8) return "took " + std::to_string(crew::now_s() - start) + " s";
      Gpu::get().wait(rank.stream);
    } else {
      CREW_TRY(fails(rank.comm, ncclRemoteError, {"rank 0 called ncclCommAbort"}));
      CREW_TRY(fine(ncclCommAbort(rank.comm), "ncclCommAbort"));
    }
    for (void* const one : memory) CREW_TRY(fine(ncclMemFree(one), "ncclMemFree"));
    Gpu::get().destroy(rank.stream);
    return "";
  }));
}

TEST_CASE("processes: who aborts when all is done fails nobody", "[device][processes]") {
  const int devices = GENERATE(from_range(over_gpus({1, 4})));
  crew::check(crew::run(2, [=](const Member& m) -> std::string {
    Rank rank(m);
    CREW_TRY(rank.open(devices));
    const OnGpu<std::int32_t> a(values(m.rank, 100));
    CREW_TRY(fine(ncclAllReduce(a.data(), a.data(), 100, ncclInt32, ncclSum, rank.comm, rank.stream), "a sum"));
    Gpu::get().wait(rank.stream);
    if (m.rank == 0) {
      ncclResult_t state = ncclSuccess;
      for (const double end = crew::now_s() + 0.5; crew::now_s() < end && state == ncclSuccess; usleep(1000))
        CREW_TRY(fine(ncclCommGetAsyncError(rank.comm, &state), "ncclCommGetAsyncError"));
      CREW_TRY(fine(state, "the asynchronous error"));
    }
    CREW_TRY(fine(ncclCommAbort(rank.comm), "ncclCommAbort"));
    Gpu::get().destroy(rank.stream);
    return "";
  }));
}

TEST_CASE("processes: a rank that left, or does not come, is not waited for", "[device][processes]") {
  const int devices = GENERATE(from_range(over_gpus({1, 4})));
  const bool leaves = GENERATE(true, false);
  auto* const over = static_cast<std::atomic<int>*>(crew::shared_page());
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    setenv("TUTTI_TIMEOUT_S", leaves ? "20" : "3", 1);
    Rank rank(m);
    CREW_TRY(rank.open(devices));
    const OnGpu<std::int32_t> a(values(m.rank, 100));
    CREW_TRY(fine(ncclAllReduce(a.data(), a.data(), 100, ncclInt32, ncclSum, rank.comm, rank.stream), "all"));
    Gpu::get().wait(rank.stream);
    if (m.rank == 1 && leaves) return rank.close();
    if (m.rank == 1) {
      while (*over == 0) usleep(1000);
      return fine(ncclCommAbort(rank.comm), "ncclCommAbort");
    }
    CREW_TRY(fine(ncclAllReduce(a.data(), a.data(), 7, ncclInt32, ncclSum, rank.comm, rank.stream), "alone"));
    CREW_TRY(fails(rank.comm, ncclRemoteError,
                   {"all_reduce count 7 int32 sum", leaves ? "rank 1 has left" : "TUTTI_TIMEOUT_S"}));
    *over = 1;
    return rank.close();
  }));
}

TEST_CASE("processes: sends and receives go through host memory, alone, in groups, and beside collectives",
          "[device][processes]") {
  crew::check(crew::run(3, [&](const Member& m) -> std::string {
    Rank rank(m);
    CREW_TRY(rank.open());
    constexpr std::size_t kCount = 5000;
    const int next = (m.rank + 1) % 3;
    const int before = (m.rank + 2) % 3;
    const OnGpu<std::int32_t> a(values(m.rank, kCount));
    const OnGpu<std::int32_t> b(values(7, kCount));
    const OnGpu<std::int32_t> c(values(m.rank, kCount));
    for (int round = 0; round < 3; ++round) {
      CREW_TRY(fine(ncclGroupStart(), "group"));
      CREW_TRY(fine(ncclSend(a.data(), kCount, ncclInt32, next, rank.comm, rank.stream), "send"));
      if (round > 0) {
        CREW_TRY(fine(ncclAllReduce(a.data(), c.data(), kCount, ncclInt32, ncclSum, rank.comm, rank.stream), "beside"));
      }
      CREW_TRY(fine(ncclRecv(b.data(), kCount, ncclInt32, before, rank.comm, rank.stream), "receive"));
      CREW_TRY(fine(ncclGroupEnd(), "group"));
      Gpu::get().wait(rank.stream);
      CREW_TRY(differs(
          "received", b.read(), [&](std::size_t i) { return value(before, i); }, kCount));
      if (round > 0)
        CREW_TRY(differs(
            "beside", c.read(), [&](std::size_t i) { return sum(3, i); }, kCount));
    }
    if (m.rank == 0) CREW_TRY(fine(ncclSend(a.data(), 5, ncclInt32, 2, rank.comm, rank.stream), "alone"));
    if (m.rank == 2) CREW_TRY(fine(ncclRecv(b.data(), 5, ncclInt32, 0, rank.comm, rank.stream), "alone"));
    CREW_TRY(fine(ncclAllReduce(c.data(), c.data(), kCount, ncclInt32, ncclMax, rank.comm, rank.stream), "afterwards"));
    Gpu::get().wait(rank.stream);
    CREW_TRY(differs(
        "afterwards", c.read(), [&](std::size_t i) { return sum(3, i); }, kCount));
    if (m.rank == 2)
      CREW_TRY(differs(
          "alone", b.read(), [&](std::size_t i) { return i < 5 ? value(0, i) : value(1, i); }, kCount));
    return rank.close();
  }));
}

TEST_CASE("processes: where memory cannot be shared, or may not, everything goes through host memory",
          "[device][processes]") {
  for (const char* const how : {"NCCL_P2P_DISABLE of all", "no IPC anywhere", "no IPC on one rank"}) {
    INFO(how);
    const std::string which = how;
    crew::check(crew::run(2, [&](const Member& m) -> std::string {
      if (which == "NCCL_P2P_DISABLE of all") setenv("NCCL_P2P_DISABLE", "1", 1);
      if (which == "no IPC anywhere" || (which == "no IPC on one rank" && m.rank == 1)) setenv("FAKE_CUDA_IPC", "0", 1);
      // A real driver's IPC cannot be taken away.
      if (which.starts_with("no IPC") && Gpu::why_not().empty() && !Gpu::get().is_fake()) return "";
      Rank rank(m);
      CREW_TRY(rank.open());
      const OnGpu<std::int32_t> a(values(m.rank, 100));
      CREW_TRY(fine(ncclAllReduce(a.data(), a.data(), 100, ncclInt32, ncclSum, rank.comm, rank.stream), "staged"));
      Gpu::get().wait(rank.stream);
      CREW_TRY(differs(
          "staged", a.read(), [&](std::size_t i) { return sum(2, i); }, 100));
      char text[4096];
      CREW_TRY(fine(tuttiExplain(rank.comm, tuttiAllReduce, 100, ncclInt32, ncclSum, 0, text, sizeof text, nullptr),
                    "explain"));
      if (std::string(text).find("staged: GPU memory") == std::string::npos) return text;
      return rank.close();
    }));
  }
}

// Nothing else would tell GPU memory from the host's then.
TEST_CASE("processes: where the driver is too old GPU memory is refused, and the host's is not",
          "[device][processes]") {
  crew::check(crew::run(1, [](const Member& m) -> std::string {
    setenv("FAKE_CUDA_MISSING", "cuStreamGetId", 1);
    unsetenv("TUTTI_DEVICE");
    // A real driver has it.
    if (Gpu::why_not().empty() && !Gpu::get().is_fake()) return "";
    Gpu::get().use(0);
    const OnGpu<std::int32_t> a(values(0, 100));
    ncclComm_t comm = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&comm, 1, m.ids[0], 0), "ncclCommInitRank"));
    CREW_TRY(refused(ncclAllReduce(a.data(), a.data(), 100, ncclInt32, ncclSum, comm, nullptr), ncclInvalidArgument,
                     {"memory of GPU 0", "works on host memory", "has no cuStreamGetId", "too old"}, comm));
    Values numbers = values(0, 100);
    CREW_TRY(
        fine(ncclAllReduce(numbers.data(), numbers.data(), 100, ncclInt32, ncclSum, comm, nullptr), "host memory"));
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
}

}  // namespace tutti::test
