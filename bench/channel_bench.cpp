// A channel's round trip: two threads send 8 bytes to 4 MiB back and forth; beside it all_reduce of 8 bytes.
#include <nccl.h>

#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

void require(ncclResult_t code, const char* what) {
  if (code == ncclSuccess) return;
  std::fprintf(stderr, "channel-bench: %s: %s\n", what, ncclGetLastError(nullptr));
  std::exit(1);
}

/// One iteration of a rank; `rank` 0 is the one that is timed.
using Turn = void (*)(ncclComm_t comm, int rank, std::vector<char>& buffer);

/// Rank 1 runs in a thread of its own and does as many turns as rank 0; a one-byte broadcast tells it to go on or to
/// end.
void run_pair(benchmark::State& state, Turn turn) {
  constexpr int kTurnsPerBatch = 16;
  const auto bytes = static_cast<std::size_t>(state.range(0));
  ncclUniqueId id;
  require(ncclGetUniqueId(&id), "ncclGetUniqueId");
  const auto batch = [turn](ncclComm_t comm, int rank, std::vector<char>& buffer) {
    for (int n = 0; n < kTurnsPerBatch; ++n) turn(comm, rank, buffer);
  };
  std::thread peer([&] {
    ncclComm_t comm;
    require(ncclCommInitRank(&comm, 2, id, 1), "ncclCommInitRank");
    std::vector<char> buffer(bytes);
    for (char go = 1; go;) {
      require(ncclBroadcast(&go, &go, 1, ncclInt8, 0, comm, nullptr), "ncclBroadcast");
      if (go) batch(comm, 1, buffer);
    }
    require(ncclCommDestroy(comm), "ncclCommDestroy");
  });
  ncclComm_t comm;
  require(ncclCommInitRank(&comm, 2, id, 0), "ncclCommInitRank");
  std::vector<char> buffer(bytes);
  char go = 1;
  while (state.KeepRunningBatch(kTurnsPerBatch)) {
    state.PauseTiming();
    require(ncclBroadcast(&go, &go, 1, ncclInt8, 0, comm, nullptr), "ncclBroadcast");
    state.ResumeTiming();
    batch(comm, 0, buffer);
  }
  go = 0;
  require(ncclBroadcast(&go, &go, 1, ncclInt8, 0, comm, nullptr), "ncclBroadcast");
  peer.join();
  require(ncclCommDestroy(comm), "ncclCommDestroy");
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(bytes));
}

void round_trip(benchmark::State& state) {
  run_pair(state, [](ncclComm_t comm, int rank, std::vector<char>& buffer) {
    const auto send = [&] {
      require(ncclSend(buffer.data(), buffer.size(), ncclInt8, 1 - rank, comm, nullptr), "ncclSend");
    };
    const auto receive = [&] {
      require(ncclRecv(buffer.data(), buffer.size(), ncclInt8, 1 - rank, comm, nullptr), "ncclRecv");
    };
    if (rank == 0) send();
    receive();
    if (rank == 1) send();
  });
}

void all_reduce(benchmark::State& state) {
  run_pair(state, [](ncclComm_t comm, int, std::vector<char>& buffer) {
    require(ncclAllReduce(buffer.data(), buffer.data(), buffer.size(), ncclInt8, ncclMax, comm, nullptr),
            "ncclAllReduce");
  });
}

BENCHMARK(round_trip)->RangeMultiplier(8)->Range(8, 4 << 20)->UseRealTime();
BENCHMARK(all_reduce)->Arg(8)->UseRealTime();

}  // namespace

BENCHMARK_MAIN();
