// Communicators on GPUs that are not all linked to each other: which calls go as lanes and by which schedule, and what comes of them. Each case
// is a machine, made of what the fake driver says of its devices and of a file, in processes of its own.
#include "process_ranks.h"
#include "turn.h"

#include <tutti/tutti.h>

#include <catch2/catch.hpp>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <thread>

#include <sys/mman.h>
#include <unistd.h>

namespace tutti::test {
namespace {

struct Machine {
  const char* algorithms;  ///< NCCL_ALGO
  const char* file;        ///< NCCL_TOPO_FILE, of topology/models
  const char* peers;       ///< FAKE_CUDA_PEERS
  int ranks;
  const char* large;            ///< of a large all-reduce: what is in its explanation
  const char* small;            ///< and of a small one
  const char* level = nullptr;  ///< NCCL_P2P_LEVEL
  bool by_bus = false;          ///< the file has the bus ids of the fake driver's GPUs
};
constexpr const char* kAllPeers = nullptr;
constexpr const char* kStaged = "staged: GPU memory";
constexpr const char* kDgx1Links =
    "0-1 0-2 0-3 0-4 1-2 1-3 1-5 2-3 2-6 3-7 4-5 4-6 4-7 5-6 5-7 6-7";  // its NVLinks, and no others

constexpr Machine kMachines[] = {
    {"ring", nullptr, kAllPeers, 3, "path: lanes: by NCCL_ALGO", "path: lanes: by NCCL_ALGO"},
    {"tree", nullptr, kAllPeers, 4, "\ntree: ", "\ntree: "},
    {nullptr, nullptr, kAllPeers, 4, "path: direct: ", "path: one-shot lines"},
    {nullptr, nullptr, "0-1 1-2 2-3 0-3", 4, "\nring: ", "path: lanes: some GPUs do not reach others' memory"},
    // A pair of which only one reaches the other's memory counts as none.
    {nullptr, nullptr, "0-1 1-2 2-3 0-3 1-3 2>0", 4, "\nring: ", "path: lanes: some GPUs do not reach others' memory"},
    // A ring in the order of its links, not of the ranks' numbers.
    {nullptr, nullptr, "0-2 1-2 1-3 0-3", 4, "\nring: ", "path: lanes: some GPUs do not reach others' memory"},
    {"ring", "dgx-1v.topo", kDgx1Links, 8, "\nring: ", "\nring: "},
    // No schedule of the table goes along a chain.
    {nullptr, nullptr, "0-1 1-2 2-3", 4, kStaged, kStaged},
    {nullptr, "dgx-1v.topo", kAllPeers, 8, "path: lanes: some pairs of GPUs have no link of their own",
     "path: one-shot lines"},
    {nullptr, "dgx-1v.topo", kDgx1Links, 8, "\npacked_trees: ", "\npacked_trees: "},
    {nullptr, "pcie-8gpu-2socket.topo", kAllPeers, 8, "\npacked_trees: ", "path: one-shot lines"},
    {nullptr, "hgx-h100.topo", kAllPeers, 8, "path: direct: ", "path: one-shot lines"},
    // The driver says that all reach each other; the level, which of them may.
    {nullptr, "dgx-1v.topo", kAllPeers, 8, "\npacked_trees: ", "\npacked_trees: ", "NVL", true},
    {nullptr, "dgx-1v.topo", kAllPeers, 4, kStaged, kStaged, "LOC"},
    {nullptr, "pcie-8gpu-1socket.topo", kAllPeers, 8, kStaged, kStaged, "PXB", true},
    {nullptr, "rtx3090-pair.topo", kAllPeers, 2, "path: direct: ", "path: one-shot lines", "1", true},
    // Another machine than this one, which may have as many GPUs: nothing is known of these.
    {nullptr, "rtx3090-pair.topo", kAllPeers, 3, kStaged, kStaged, "PHB", true},
    {nullptr, "rtx3090-pair.topo", kAllPeers, 2, kStaged, kStaged, "PHB"},
};

/// A file of the models, or what is in it with bus ids: in memory, as long as the process is there.
std::string file_of(const Machine& machine) {
  const std::string model = std::string(TUTTI_MODELS) + "/" + machine.file;
  if (!machine.by_bus) return model;
  std::ifstream file(model);
  std::string text;
  int gpus = 0;
  for (std::string line; std::getline(file, line);) {
    char bus[32];
    std::snprintf(bus, sizeof bus, " bus=0000:%02x:00.0", 0x17 + gpus);
    if (line.starts_with("gpu ")) {
      line += bus;
      ++gpus;
    }
    text += line + "\n";
  }
  const int fd = memfd_create("machine", 0);
  if (write(fd, text.data(), text.size()) != static_cast<ssize_t>(text.size())) std::abort();
  return "/proc/self/fd/" + std::to_string(fd);
}

void make(const Machine& machine) {
  const auto set = [](const char* name, const std::string& value) { setenv(name, value.c_str(), 1); };
  if (machine.algorithms) set("NCCL_ALGO", machine.algorithms);
  if (machine.file) set("NCCL_TOPO_FILE", file_of(machine));
  if (machine.peers) set("FAKE_CUDA_PEERS", machine.peers);
  if (machine.level) set("NCCL_P2P_LEVEL", machine.level);
  set("TUTTI_TOPOLOGY_LIBRARY", TUTTI_PLUG_IN);
  set("FAKE_CUDA_DEVICES", std::to_string(machine.ranks));
}

std::string explanation(ncclComm_t comm, std::size_t count) {
  char text[1 << 16] = {};
  const ncclResult_t told =
      tuttiExplain(comm, tuttiAllReduce, count, ncclInt32, ncclSum, 0, text, sizeof text, nullptr);
  return told == ncclSuccess ? text : ncclGetLastError(comm);
}
std::string explains(ncclComm_t comm, const Machine& machine) {
  for (const bool large : {true, false}) {
    const std::string found = explanation(comm, large ? 1 << 18 : 3);
    const std::string wanted = large ? machine.large : machine.small;
    if (found.find(wanted) == std::string::npos) return "\"" + wanted + "\" is not in: " + found;
  }
  return "";
}

/// The calls of one rank, in one group: each uses what the one before has made, and one goes another way than the others.
struct Chain {
  std::size_t count;
  int ranks;
  int rank;
  std::unique_ptr<OnGpu<std::int32_t>> data, gathered, exchanged, mine, total;

  Chain(std::size_t elements, int of, int number) : count(elements), ranks(of), rank(number) {
    const std::size_t all = count * static_cast<std::size_t>(ranks);
    const auto buffer = [](std::size_t n) { return std::make_unique<OnGpu<std::int32_t>>(Values(n, kPoison)); };
    data = std::make_unique<OnGpu<std::int32_t>>(values(rank, count));
    gathered = buffer(all);
    exchanged = buffer(all);
    mine = buffer(count);
    total = buffer(count);
  }
  ncclResult_t call(ncclComm_t comm, CUstream stream) const {
    const int last = ranks - 1;
    ncclResult_t first = ncclSuccess;
    const auto keep = [&](ncclResult_t one) { first = first == ncclSuccess ? one : first; };
    keep(ncclAllReduce(data->data(), data->data(), count, ncclInt32, ncclSum, comm, stream));
    keep(ncclAllGather(data->data(), gathered->data(), count, ncclInt32, comm, stream));
    keep(ncclAlltoAll(gathered->data(), exchanged->data(), count, ncclInt32, comm, stream));
    keep(ncclReduceScatter(exchanged->data(), mine->data(), count, ncclInt32, ncclSum, comm, stream));
    keep(ncclBroadcast(mine->data(), mine->data(), count, ncclInt32, last, comm, stream));
    keep(ncclReduce(mine->data(), total->data(), count, ncclInt32, ncclMax, last, comm, stream));
    return first;
  }
  std::string check() const {
    const auto times = [&](int factor) {
      return [this, factor](std::size_t i) {
        return static_cast<std::int32_t>(static_cast<std::uint32_t>(sum(ranks, i)) *
                                         static_cast<std::uint32_t>(factor));
      };
    };
    const auto of_block = [&](std::size_t i) { return sum(ranks, i % count); };
    CREW_TRY(differs("all_reduce", data->read(), times(1), count));
    CREW_TRY(differs("all_gather", gathered->read(), of_block, count * static_cast<std::size_t>(ranks)));
    CREW_TRY(differs("all_to_all", exchanged->read(), of_block, count * static_cast<std::size_t>(ranks)));
    CREW_TRY(differs("broadcast", mine->read(), times(ranks), count));
    return differs("reduce", total->read(), times(ranks), rank == ranks - 1 ? count : 0);
  }
};

constexpr std::size_t kCounts[] = {1, 33, 4099, 70001};

/// A rank in a process of its own.
std::string in_processes(const Member& m, const Machine& machine) {
  make(machine);
  Rank rank(m);
  CREW_TRY(rank.open(machine.ranks));
  CREW_TRY(explains(rank.comm, machine));
  for (const std::size_t count : kCounts) {
    const Chain chain(count, m.ranks, m.rank);
    CREW_TRY(fine(ncclGroupStart(), "ncclGroupStart"));
    CREW_TRY(fine(chain.call(rank.comm, rank.stream), "a call"));
    CREW_TRY(fine(ncclGroupEnd(), "ncclGroupEnd"));
    Gpu::get().wait(rank.stream);
    CREW_TRY(chain.check());
  }
  return rank.close();
}

/// All ranks in this process and thread.
std::string in_one_process(const Machine& machine) {
  make(machine);
  setenv("TUTTI_DEVICE", "cuda", 1);
  if (const std::string reason = Gpu::why_not(); !reason.empty()) return reason;
  std::vector<ncclComm_t> comms(static_cast<std::size_t>(machine.ranks));
  CREW_TRY(fine(ncclCommInitAll(comms.data(), machine.ranks, nullptr), "ncclCommInitAll"));
  CREW_TRY(explains(comms[0], machine));
  std::vector<CUstream> streams;
  for (int r = 0; r < machine.ranks; ++r) {
    Gpu::get().use(r);
    streams.push_back(Gpu::get().make_stream());
  }
  for (const std::size_t count : kCounts) {
    std::vector<Chain> chains;
    for (int r = 0; r < machine.ranks; ++r) {
      Gpu::get().use(r);
      chains.emplace_back(count, machine.ranks, r);
    }
    CREW_TRY(fine(ncclGroupStart(), "ncclGroupStart"));
    for (std::size_t r = 0; r < comms.size(); ++r) CREW_TRY(fine(chains[r].call(comms[r], streams[r]), "a call"));
    CREW_TRY(fine(ncclGroupEnd(), "ncclGroupEnd"));
    for (CUstream stream : streams) Gpu::get().wait(stream);
    for (const Chain& chain : chains) CREW_TRY(chain.check());
  }
  for (std::size_t r = 0; r < comms.size(); ++r) {
    CREW_TRY(fine(ncclCommDestroy(comms[r]), "ncclCommDestroy"));
    Gpu::get().destroy(streams[r]);
  }
  return "";
}

}  // namespace

// AddressSanitizer's fibers take turns slowly, half a minute for the largest machine: six times as long there, as .ci/run gives all tests.
#ifdef __SANITIZE_ADDRESS__
constexpr unsigned kOneProcessLimitS = 180;
#else
constexpr unsigned kOneProcessLimitS = 30;
#endif

TEST_CASE("lanes: machines whose GPUs are not all linked, ranks in one process", "[device][lanes]") {
#ifdef __SANITIZE_ADDRESS__
  constexpr std::size_t kShare = 3;  // fibers cost ten times as much
#else
  constexpr std::size_t kShare = 1;
#endif
  std::size_t number = 0;
  for (const Machine& machine : kMachines) {
    if (!has_its_turn(number++, kShare)) continue;
    CAPTURE(machine.ranks, machine.large);
    crew::check(crew::run(
        1, [&](const Member&) { return in_one_process(machine); }, kOneProcessLimitS));
  }
}

TEST_CASE("lanes: GPUs of one process, each of which may reach a few others", "[device][lanes]") {
  setenv("FAKE_CUDA_PEERS_MOST", "3", 1);
  const Machine few = {nullptr, nullptr, kAllPeers, 6, "\nring: ", "lanes: some GPUs do not reach others' memory"};
  crew::check(crew::run(
      1, [&](const Member&) { return in_one_process(few); }, kOneProcessLimitS));
  unsetenv("FAKE_CUDA_PEERS_MOST");
}

TEST_CASE("lanes: machines whose GPUs are not all linked, a process for each rank", "[device][lanes][processes]") {
  for (const Machine& machine : kMachines) {
    CAPTURE(machine.ranks, machine.large);
    crew::check(crew::run(machine.ranks, [&](const Member& m) { return in_processes(m, machine); }));
  }
}

TEST_CASE("lanes: ranks that know their neighbours alone all hear of calls that differ", "[device][lanes][processes]") {
  const Machine ring = kMachines[3];
  crew::check(crew::run(4, [&](const Member& m) -> std::string {
    make(ring);
    Rank rank(m);
    CREW_TRY(rank.open(4));
    const OnGpu<std::int32_t> a(values(m.rank, 100));
    CREW_TRY(fine(ncclAllReduce(a.data(), a.data(), 100, ncclInt32, ncclSum, rank.comm, rank.stream), "alike"));
    CREW_TRY(fine(ncclAllReduce(a.data(), a.data(), m.rank == 1 ? 7 : 5, ncclInt32, ncclSum, rank.comm, rank.stream),
                  "unlike"));
    Gpu::get().wait(rank.stream);  // the kernel gives up
    ncclResult_t state = ncclSuccess;
    for (const double end = crew::now_s() + 10; crew::now_s() < end && state == ncclSuccess; usleep(1000)) {
      CREW_TRY(fine(ncclCommGetAsyncError(rank.comm, &state), "ncclCommGetAsyncError"));
    }
    CREW_TRY(refused(state, ncclInvalidUsage, {"count 7 int32 sum on rank 1", "count 5 int32 sum on rank"}, rank.comm));
    Gpu::get().destroy(rank.stream);
    return fine(ncclCommAbort(rank.comm), "ncclCommAbort");
  }));
}

TEST_CASE("lanes: a captured call is replayed in processes, and goes through host memory in one", "[device][lanes]") {
  const Machine ring = kMachines[3];
  const auto replayed = [](const std::vector<ncclComm_t>& comms, int first_rank) -> std::string {
    const Gpu& gpu = Gpu::get();
    const auto ranks = comms.size();
    std::vector<std::unique_ptr<OnGpu<std::int32_t>>> in, out;
    std::vector<CUstream> streams;
    for (std::size_t r = 0; r < ranks; ++r) {
      gpu.use(first_rank + static_cast<int>(r));
      in.push_back(std::make_unique<OnGpu<std::int32_t>>(values(first_rank + static_cast<int>(r), 1000)));
      out.push_back(std::make_unique<OnGpu<std::int32_t>>(Values(1000, kPoison)));
      streams.push_back(gpu.make_stream());
    }
    std::vector<CUgraphExec> graphs;
    const auto call = [&]() -> std::string {
      CREW_TRY(fine(ncclGroupStart(), "ncclGroupStart"));
      for (std::size_t r = 0; r < ranks; ++r) {
        CREW_TRY(fine(ncclAllReduce(in[r]->data(), out[r]->data(), 1000, ncclInt32, ncclSum, comms[r], streams[r]),
                      "ncclAllReduce"));
      }
      return fine(ncclGroupEnd(), "ncclGroupEnd");
    };
    for (CUstream stream : streams) gpu.begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    CREW_TRY(call());
    for (CUstream stream : streams) {
      CUgraph graph = gpu.end_capture(stream);
      if (!graph) return "the capture was spoilt";
      graphs.push_back(gpu.make_executable(graph));
      gpu.destroy(graph);
    }
    for (int turn = 0; turn < 3; ++turn) {
      for (std::size_t r = 0; r < ranks; ++r) gpu.launch(graphs[r], streams[r]);
      for (std::size_t r = 0; r < ranks; ++r) {
        gpu.wait(streams[r]);
        CREW_TRY(differs(
            "a replay", out[r]->read(), [](std::size_t i) { return sum(4, i); }, 1000));
        out[r]->write(Values(1000, kPoison));
      }
      CREW_TRY(call());
      for (CUstream stream : streams) gpu.wait(stream);
    }
    for (CUgraphExec graph : graphs) gpu.destroy(graph);
    for (CUstream stream : streams) gpu.destroy(stream);
    for (ncclComm_t comm : comms) CREW_TRY(fine(ncclCommDestroy(comm), "ncclCommDestroy"));
    return "";
  };
  crew::check(crew::run(4, [&](const Member& m) -> std::string {
    make(ring);
    Rank rank(m);
    CREW_TRY(rank.open(4));
    CREW_TRY(replayed({rank.comm}, m.rank));
    Gpu::get().destroy(rank.stream);
    return "";
  }));
  crew::check(crew::run(1, [&](const Member&) -> std::string {
    make(ring);
    setenv("TUTTI_DEVICE", "cuda", 1);
    if (const std::string reason = Gpu::why_not(); !reason.empty()) return reason;
    std::vector<ncclComm_t> comms(4);
    CREW_TRY(fine(ncclCommInitAll(comms.data(), 4, nullptr), "ncclCommInitAll"));
    return replayed(comms, 0);
  }));
}

namespace {

constexpr std::size_t kCount = 1000;

/// All ranks in this process, a thread for each: body(communicator, rank, stream). The first complaint.
std::string in_threads(const Machine& machine, const std::function<std::string(ncclComm_t, int, CUstream)>& body) {
  make(machine);
  setenv("TUTTI_DEVICE", "cuda", 1);
  if (const std::string reason = Gpu::why_not(); !reason.empty()) return reason;
  std::vector<ncclComm_t> comms(static_cast<std::size_t>(machine.ranks));
  CREW_TRY(fine(ncclCommInitAll(comms.data(), machine.ranks, nullptr), "ncclCommInitAll"));
  std::vector<std::string> wrong(comms.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < comms.size(); ++r) {
    threads.emplace_back([&, r] {
      Gpu::get().use(static_cast<int>(r));
      CUstream stream = Gpu::get().make_stream();
      wrong[r] = body(comms[r], static_cast<int>(r), stream);
      Gpu::get().destroy(stream);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& one : wrong) CREW_TRY(one);
  return "";
}

}  // namespace

TEST_CASE("lanes: a communicator's first calls leave another stream's capture alone", "[device][lanes]") {
  crew::check(crew::run(1, [&](const Member&) -> std::string {
    constexpr int kRanks = 4;
    make(kMachines[3]);
    setenv("TUTTI_DEVICE", "cuda", 1);
    if (const std::string reason = Gpu::why_not(); !reason.empty()) return reason;
    const Gpu& gpu = Gpu::get();
    ncclComm_t comms[kRanks] = {};
    CREW_TRY(fine(ncclCommInitAll(comms, kRanks, nullptr), "ncclCommInitAll"));
    std::vector<std::unique_ptr<OnGpu<std::int32_t>>> data;
    std::vector<CUstream> streams;
    for (int r = 0; r < kRanks; ++r) {
      gpu.use(r);
      data.push_back(std::make_unique<OnGpu<std::int32_t>>(values(r, kCount)));
      streams.push_back(gpu.make_stream());
    }
    CUstream captured = gpu.make_stream();
    // Of the strictest kind: no thread may call what might wait for a stream.
    gpu.begin_capture(captured, CU_STREAM_CAPTURE_MODE_GLOBAL);
    CREW_TRY(fine(ncclGroupStart(), "ncclGroupStart"));
    for (std::size_t r = 0; r < kRanks; ++r) {
      CREW_TRY(fine(ncclAllReduce(data[r]->data(), data[r]->data(), kCount, ncclInt32, ncclSum, comms[r], streams[r]),
                    "ncclAllReduce"));
    }
    CREW_TRY(fine(ncclGroupEnd(), "ncclGroupEnd"));
    CUgraph graph = gpu.end_capture(captured);
    if (!graph) return "the capture was spoilt";
    gpu.destroy(graph);
    gpu.destroy(captured);
    for (std::size_t r = 0; r < kRanks; ++r) {
      gpu.wait(streams[r]);
      CREW_TRY(differs(
          "the sum", data[r]->read(), [](std::size_t i) { return sum(kRanks, i); }, kCount));
      gpu.destroy(streams[r]);
      CREW_TRY(fine(ncclCommDestroy(comms[r]), "ncclCommDestroy"));
    }
    return "";
  }));
}

TEST_CASE("lanes: of two ranks one may wait for a replay and the other for its eager call", "[device][lanes]") {
  crew::check(crew::run(1, [&](const Member&) -> std::string {
    setenv("TUTTI_TIMEOUT_S", "10", 1);
    const Machine ring = kMachines[3];
    const Gpu* gpu = nullptr;
    std::uint32_t* gate = nullptr;
    std::atomic<int> launched{0};
    return in_threads(ring, [&](ncclComm_t comm, int rank, CUstream stream) -> std::string {
      if (rank == 0) {
        gpu = &Gpu::get();
        gate = static_cast<std::uint32_t*>(gpu->allocate_pinned(4096));
        *gate = 0;
      }
      ++launched;
      while (launched < ring.ranks) std::this_thread::yield();
      const OnGpu<std::int32_t> data(values(rank, kCount));
      const auto sum_up = [&] {
        return ncclAllReduce(data.data(), data.data(), kCount, ncclInt32, ncclSum, comm, stream);
      };
      gpu->begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
      CREW_TRY(fine(sum_up(), "captured"));
      CUgraph graph = gpu->end_capture(stream);
      CUgraphExec executable = gpu->make_executable(graph);
      gpu->destroy(graph);
      // No replay begins before the others have made their eager calls.
      gpu->wait_for_word(stream, gate, 1);
      gpu->launch(executable, stream);
      if (rank == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        std::atomic_ref(*gate).store(1);
        gpu->wait(stream);
      }
      CREW_TRY(fine(sum_up(), "eager"));
      gpu->wait(stream);
      const auto twice = [&](std::size_t i) { return ring.ranks * sum(ring.ranks, i); };
      CREW_TRY(differs("both", data.read(), twice, kCount));
      gpu->destroy(executable);
      CREW_TRY(fine(ncclCommDestroy(comm), "ncclCommDestroy"));
      if (--launched == 0) gpu->release_pinned(gate);
      return "";
    });
  }));
}

namespace {

/// One rank's call goes as lanes and the others' through host memory, or the other way round, after some that are alike.
std::string calls_that_go_both_ways(ncclComm_t comm, int rank, CUstream stream, int other) {
  constexpr std::size_t kRanks = 4;
  const OnGpu<std::int32_t> data(values(rank, kRanks * kCount));
  const OnGpu<std::int32_t> all(Values(kRanks * kCount, kPoison));
  const auto sum_up = [&](std::size_t count) {
    return ncclAllReduce(data.data(), data.data(), count, ncclInt32, ncclSum, comm, stream);
  };
  const auto exchange = [&](std::size_t count) {
    return ncclAlltoAll(data.data(), all.data(), count, ncclInt32, comm, stream);
  };
  for (int i = 0; i < 12; ++i) {
    CREW_TRY(fine(i % 4 == 1 ? sum_up(kCount) : exchange(kCount), "alike"));
  }
  Gpu::get().wait(stream);
  ncclResult_t state = (rank == other) == (other == 1) ? exchange(5) : sum_up(7);
  // In processes a call returns before others have made theirs; and so do those through host memory.
  for (const double end = crew::now_s() + 10; crew::now_s() < end && state == ncclSuccess; usleep(1000)) {
    CREW_TRY(fine(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError"));
  }
  CREW_TRY(refused(state, ncclInvalidUsage,
                   {"the ranks' calls differ: ", "all_to_all count 5 int32 through host memory on rank",
                    "all_reduce count 7 int32 sum by kernels on rank", "Every rank must make the same calls"}));
  Gpu::get().wait(stream);
  return fine(ncclCommAbort(comm), "ncclCommAbort");
}

}  // namespace

TEST_CASE("lanes: calls that differ so much that they go different ways are told at once", "[device][lanes]") {
  for (const int other : {1, 2}) {
    crew::check(crew::run(1, [&](const Member&) {
      return in_threads(kMachines[3], [&](ncclComm_t comm, int rank, CUstream stream) {
        return calls_that_go_both_ways(comm, rank, stream, other);
      });
    }));
  }
}

TEST_CASE("lanes: the same among processes", "[device][lanes][processes]") {
  for (const int other : {1, 2}) {
    crew::check(crew::run(4, [&](const Member& m) -> std::string {
      make(kMachines[3]);
      Rank rank(m);
      CREW_TRY(rank.open(4));
      CREW_TRY(calls_that_go_both_ways(rank.comm, m.rank, rank.stream, other));
      Gpu::get().destroy(rank.stream);
      return "";
    }));
  }
}

}  // namespace tutti::test
