// Sums among GPUs of several hosts whose ranks are threads of one process on each: their kernels are launched together. And what becomes of
// teams when something fails.
#include "comm/crew.h"
#include "fake_driver.h"
#include "gpu.h"
#include "rank_values.h"
#include "team_hosts.h"

#include <nccl.h>
#include <tutti/tutti.h>

#include <catch2/catch.hpp>

#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

namespace tutti::test {
namespace {

using crew::fine;
using crew::Member;
using IntsOnGpu = OnGpu<std::int32_t>;

constexpr std::size_t kCount = 16411;

/// A process that is a host of several ranks, each with a device, a stream and a buffer.
struct Host {
  struct Rank {
    int rank = 0;
    ncclComm_t comm = nullptr;
    CUstream stream = nullptr;
    std::unique_ptr<IntsOnGpu> data;
  };
  std::vector<Rank> ranks;
  int all = 0;  ///< of both hosts

  /// `per_host`: ranks of each.
  static std::string make(const Member& m, const std::vector<int>& per_host, int devices, Host& host) {
    setenv("TUTTI_STAGING_BYTES", "4096", 1);
    if (std::string why = Gpu::why_not(); !why.empty()) return why;
    const auto own = per_host.begin() + m.rank;
    const int first = std::accumulate(per_host.begin(), own, 0);
    host.all = std::accumulate(own, per_host.end(), first);
    host.ranks.resize(static_cast<std::size_t>(*own));
    CREW_TRY(fine(ncclGroupStart(), "ncclGroupStart"));
    for (int i = 0; i < *own; ++i) {
      Rank& rank = host.ranks[static_cast<std::size_t>(i)];
      rank.rank = first + i;
      Gpu::get().use(i % devices);
      rank.stream = Gpu::get().make_stream();
      rank.data = std::make_unique<IntsOnGpu>(values(rank.rank, kCount));
      CREW_TRY(fine(ncclCommInitRank(&rank.comm, host.all, m.ids[0], rank.rank), "ncclCommInitRank"));
    }
    return fine(ncclGroupEnd(), "ncclGroupEnd");
  }
  static ncclResult_t sum_up(const Rank& rank, std::size_t count = kCount) {
    return ncclAllReduce(rank.data->data(), rank.data->data(), count, ncclInt32, ncclSum, rank.comm, rank.stream);
  }
  std::string sum_up_all() const {
    CREW_TRY(fine(ncclGroupStart(), "ncclGroupStart"));
    for (const Rank& rank : ranks) (void)sum_up(rank);
    return fine(ncclGroupEnd(), "ncclGroupEnd");
  }
  void fill() const {
    for (const Rank& rank : ranks) rank.data->write(values(rank.rank, kCount));
  }
  void wait() const {
    for (const Rank& rank : ranks) Gpu::get().wait(rank.stream);
  }
  std::string check(const char* what) const {
    wait();
    for (const Rank& rank : ranks) {
      const Ints found = rank.data->read();
      for (std::size_t i = 0; i < kCount; ++i) {
        if (found[i] != sum(all, i))
          return std::string(what) + ": element " + std::to_string(i) + " of rank " + std::to_string(rank.rank);
      }
    }
    return "";
  }
  std::string end() const {
    for (const Rank& rank : ranks) {
      CREW_TRY(fine(ncclCommDestroy(rank.comm), "ncclCommDestroy"));
      Gpu::get().destroy(rank.stream);
    }
    return "";
  }
};

std::string by_teams(ncclComm_t comm, int hosts) {
  char text[8192];
  CREW_TRY(
      fine(tuttiExplain(comm, tuttiAllReduce, kCount, ncclInt32, ncclSum, 0, text, sizeof text, nullptr), "explain"));
  return std::string(text).find("teams: GPU memory of " + std::to_string(hosts) + " hosts") != std::string::npos ? ""
                                                                                                                 : text;
}

}  // namespace

TEST_CASE("teams of threads: a thread makes the calls of all ranks of its process", "[teams]") {
  const Placed placed("1");
  const auto per_host = GENERATE(std::vector{2, 2}, std::vector{3, 3}, std::vector{1, 2}, std::vector{2, 5},
                                 std::vector{3, 1, 2}, std::vector{7, 8});
  const int devices = GENERATE(1, 4);
  crew::check(crew::run(static_cast<int>(per_host.size()), [=](const Member& m) -> std::string {
    Host host;
    CREW_TRY(Host::make(m, per_host, devices, host));
    for (const Host::Rank& rank : host.ranks) CREW_TRY(by_teams(rank.comm, m.ranks));
    for (int round = 0; round < 3; ++round) {
      host.fill();
      CREW_TRY(host.sum_up_all());
      CREW_TRY(host.check("sum"));
    }
    return host.end();
  }));
}

TEST_CASE("teams of threads: each rank has a thread of its own", "[teams]") {
  const Placed placed("1");
  const auto per_host = GENERATE(std::vector{2, 2}, std::vector{1, 2}, std::vector{3, 2});
  const int devices = GENERATE(1, 4);
  const bool per_thread = GENERATE(false, true);
  crew::check(crew::run(2, [=](const Member& m) -> std::string {
    Host host;
    CREW_TRY(Host::make(m, per_host, devices, host));
    std::vector<std::string> wrong(host.ranks.size());
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < host.ranks.size(); ++i) {
      threads.emplace_back([&, i] {
        Gpu::get().use(static_cast<int>(i) % devices);
        Host::Rank& rank = host.ranks[i];
        const CUstream own = rank.stream;
        if (per_thread) rank.stream = CU_STREAM_PER_THREAD;
        for (int round = 0; round < 4 && wrong[i].empty(); ++round) {
          // The input comes in the stream's order.
          const Ints mine = values(rank.rank, kCount);
          Gpu::get().copy(rank.data->data(), mine.data(), kCount * 4, rank.stream);
          wrong[i] = fine(Host::sum_up(rank), "sum");
          Gpu::get().wait(rank.stream);
        }
        rank.stream = own;
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::string& one : wrong) CREW_TRY(one);
    CREW_TRY(host.check("sum"));
    return host.end();
  }));
}

TEST_CASE("teams of threads: all ranks of a process in one graph", "[teams][graph]") {
  const Placed placed("1");
  const auto per_host = GENERATE(std::vector{2, 2}, std::vector{1, 2}, std::vector{3, 2});
  const int devices = GENERATE(1, 4);
  crew::check(crew::run(2, [=](const Member& m) -> std::string {
    const Gpu& gpu = Gpu::get();
    Host host;
    CREW_TRY(Host::make(m, per_host, devices, host));
    const CUstream main = host.ranks[0].stream;
    const auto others = std::span(host.ranks).subspan(1);
    gpu.begin_capture(main);
    for (const Host::Rank& rank : others) gpu.order(main, rank.stream);
    CREW_TRY(host.sum_up_all());
    for (const Host::Rank& rank : others) gpu.order(rank.stream, main);
    CUgraph graph = gpu.end_capture(main);
    if (!graph) return "the capture was spoilt";
    CUgraphExec executable = gpu.make_executable(graph);
    gpu.destroy(graph);
    for (int replay = 0; replay < 12; ++replay) {
      host.fill();
      gpu.launch(executable, main);
      CREW_TRY(host.check("replay"));
      host.fill();
      if (replay % 2 == 0) CREW_TRY(host.sum_up_all());
      if (replay % 2 == 0) CREW_TRY(host.check("between"));
    }
    gpu.destroy(executable);
    return host.end();
  }));
}

}  // namespace tutti::test
