// Calls in graphs whose data goes through host memory: they are replayed.
#include "mixed_calls.h"
#include "staged_rank.h"

#include <catch2/catch.hpp>

#include <atomic>
#include <deque>
#include <thread>

#include <unistd.h>

namespace tutti::test {
namespace {

constexpr std::size_t kCount = 2500;  ///< three parts

ncclResult_t sum_up(const Rank& rank, const std::int32_t* in, std::int32_t* out) {
  return ncclAllReduce(in, out, kCount, ncclInt32, ncclSum, rank.comm, rank.stream);
}

}  // namespace

TEST_CASE("staged: captured calls are replayed, between others on the same stream", "[staged][graph]") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    const Gpu& gpu = Gpu::get();
    Rank rank;
    CREW_TRY(Rank::make(m, rank));
    const IntsOnGpu in(Ints(kCount, kPoison));
    const IntsOnGpu out(Ints(kCount, kPoison));
    const IntsOnGpu max(Ints(kCount, kPoison));
    const IntsOnGpu eager(Ints(kCount, kPoison));
    gpu.begin_capture(rank.stream);
    CREW_TRY(fine(sum_up(rank, in.data(), out.data()), "captured sum"));
    CREW_TRY(fine(ncclAllReduce(in.data(), max.data(), kCount, ncclInt32, ncclMax, rank.comm, rank.stream), "max"));
    CUgraph graph = gpu.end_capture(rank.stream);
    if (!graph) return "the capture was spoilt";
    CUgraphExec executable = gpu.make_executable(graph);
    gpu.destroy(graph);
    for (int replay = 0; replay < 20; ++replay) {
      const Ints mine = values(m.rank + replay, kCount);
      gpu.copy(in.data(), mine.data(), kCount * 4, rank.stream);
      if (replay % 3 == 1) CREW_TRY(fine(sum_up(rank, in.data(), eager.data()), "a sum before"));
      gpu.launch(executable, rank.stream);
      if (replay % 3 != 0) CREW_TRY(fine(sum_up(rank, out.data(), eager.data()), "a sum after"));
      gpu.wait(rank.stream);
      const std::string name = "replay " + std::to_string(replay);
      const auto wanted = [&](std::size_t i) { return value(replay, i) + value(replay + 1, i); };
      CREW_TRY(compare(out.read(), wanted, name));
      CREW_TRY(compare(
          max.read(), [&](std::size_t i) { return value(replay + 1, i); }, name + ", max"));
      if (replay % 3 != 0) {
        CREW_TRY(compare(
            eager.read(), [&](std::size_t i) { return 2 * wanted(i); }, name + ", the sum after"));
      }
    }
    gpu.destroy(executable);
    return rank.end();
  }));
}

TEST_CASE("staged: calls that are captured one after another may need ever more staging memory", "[staged][graph]") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    setenv("TUTTI_STAGING_BYTES", "1048576", 1);
    const Gpu& gpu = Gpu::get();
    Rank rank;
    CREW_TRY(Rank::make(m, rank));
    constexpr std::size_t kCounts[] = {1000, 40000, 40000, 200000, 1000};
    std::deque<IntsOnGpu> buffers;
    for (const std::size_t count : kCounts) buffers.emplace_back(values(m.rank, count));
    gpu.begin_capture(rank.stream);
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      std::int32_t* const data = buffers[i].data();
      CREW_TRY(fine(ncclAllReduce(data, data, kCounts[i], ncclInt32, ncclSum, rank.comm, rank.stream), "captured sum"));
    }
    CUgraph graph = gpu.end_capture(rank.stream);
    if (!graph) return "the capture was spoilt";
    CUgraphExec executable = gpu.make_executable(graph);
    gpu.destroy(graph);
    gpu.launch(executable, rank.stream);
    gpu.wait(rank.stream);
    for (const IntsOnGpu& data : buffers)
      CREW_TRY(compare(
          data.read(), [](std::size_t i) { return sum(2, i); }, "sum"));
    gpu.destroy(executable);
    return rank.end();
  }));
}

TEST_CASE("staged: graphs and calls on any streams go in the order in which the program gives them",
          "[staged][graph]") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    Rank rank;
    CREW_TRY(Rank::make(m, rank));
    CREW_TRY(check_mixed_calls(rank.comm, m.ranks, m.rank, kCount));
    return rank.end();
  }));
}

TEST_CASE("staged: an abort ends a call that is being made, and a replay that comes meanwhile", "[staged][graph]") {
  constexpr int kTrials = 10;
  auto* const launched = static_cast<std::atomic<int>*>(crew::shared_page());
  crew::check(crew::run(
      2,
      [launched](const Member& m) -> std::string {
        const Gpu& gpu = Gpu::get();
        constexpr std::size_t kLong = std::size_t{1} << 20;  // a thousand parts
        Rank rank;
        CREW_TRY(Rank::make(m, rank));
        const IntsOnGpu data(values(m.rank, kCount));
        const IntsOnGpu much(Ints(kLong, 1));
        auto* const gate = static_cast<std::uint32_t*>(gpu.allocate_pinned(4096));
        for (int trial = 0; trial < kTrials; ++trial) {
          ncclComm_t comm = nullptr;
          CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[trial + 1], m.rank), "ncclCommInitRank"));
          gpu.begin_capture(rank.stream);
          CREW_TRY(fine(ncclAllReduce(data.data(), data.data(), kCount, ncclInt32, ncclSum, comm, rank.stream), "sum"));
          CUgraph graph = gpu.end_capture(rank.stream);
          if (!graph) return "the capture was spoilt";
          CUgraphExec executable = gpu.make_executable(graph);
          gpu.destroy(graph);
          *gate = 0;
          gpu.wait_for_word(rank.stream, gate, 1);
          gpu.launch(executable, rank.stream);
          // Of a communicator that a peer has aborted no call can be captured.
          ++*launched;
          while (*launched < m.ranks * (trial + 1)) usleep(50);
          ncclResult_t aborted = ncclInternalError;
          {
            const std::jthread opens([gate, trial] {
              usleep(static_cast<useconds_t>(400 * trial + 300));
              std::atomic_ref(*gate).store(1);
            });
            const std::jthread aborts([&aborted, comm, trial] {
              usleep(static_cast<useconds_t>(400 * trial));
              aborted = ncclCommAbort(comm);
            });
            (void)ncclAllReduce(much.data(), much.data(), kLong, ncclInt32, ncclSum, comm, rank.stream);
          }
          CREW_TRY(fine(aborted, "ncclCommAbort"));
          gpu.wait(rank.stream);
          gpu.destroy(executable);
        }
        gpu.release_pinned(gate);
        return rank.end();
      },
      60, kTrials + 1));
}

TEST_CASE("staged: a graph that is replayed when its communicator has ended waits for nobody", "[staged][graph]") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    const Gpu& gpu = Gpu::get();
    Rank rank;
    CREW_TRY(Rank::make(m, rank));
    const IntsOnGpu data(values(m.rank, kCount));
    gpu.begin_capture(rank.stream);
    CREW_TRY(fine(sum_up(rank, data.data(), data.data()), "captured sum"));
    CUgraph graph = gpu.end_capture(rank.stream);
    CUgraphExec executable = gpu.make_executable(graph);
    gpu.launch(executable, rank.stream);
    gpu.wait(rank.stream);
    CREW_TRY(compare(
        data.read(), [&](std::size_t i) { return sum(2, i); }, "sum"));
    CREW_TRY(fine(ncclCommDestroy(rank.comm), "ncclCommDestroy"));
    gpu.launch(executable, rank.stream);
    gpu.wait(rank.stream);
    gpu.destroy(executable);
    gpu.destroy(graph);
    gpu.destroy(rank.stream);
    return "";
  }));
}

}  // namespace tutti::test
