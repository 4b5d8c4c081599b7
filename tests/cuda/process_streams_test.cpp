// Streams of ranks in several processes that wait for each other on a shared GPU, and cannot: refused, or found. And processes that exit while
// the library still watches.
#include "process_ranks.h"

#include <catch2/catch.hpp>

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>

namespace tutti::test {

TEST_CASE("processes: two ranks of a process on one GPU, with others elsewhere, that have one stream are refused",
          "[device][processes]") {
  const bool by_default_stream = GENERATE(false, true);
  const int others_device = GENERATE(0, 1);
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    setenv("TUTTI_SHARED_GPU_HOST_BYTES", "0", 1);
    TwoAndOne ranks(m, {0, 0, others_device});
    CREW_TRY(ranks.open(m));
    const auto& [first, devices, comms] = ranks;
    const std::size_t own = comms.size();
    const Gpu& gpu = Gpu::get();
    const CUstream stream = by_default_stream ? gpu.make_blocking_stream() : gpu.make_stream();
    const OnGpu<std::int32_t> a(values(first, 100));
    const OnGpu<std::int32_t> b(values(first, 100));
    CREW_TRY(fine(ncclGroupStart(), "group"));
    CREW_TRY(fine(ncclAllReduce(a.data(), a.data(), 100, ncclInt32, ncclSum, comms[0],
                                m.rank == 0 && by_default_stream ? nullptr : stream),
                  "sum"));
    if (own == 2) CREW_TRY(fine(ncclAllReduce(b.data(), b.data(), 100, ncclInt32, ncclSum, comms[1], stream), "sum"));
    const ncclResult_t ended = ncclGroupEnd();
    const char* const why =
        by_default_stream ? "one's call is on the default stream" : "their calls are on the same stream";
    if (own == 2) CREW_TRY(refused(ended, ncclInvalidUsage, {"ranks 1 and 0 are of one process", why}, comms[1]));
    for (ncclComm_t comm : comms) CREW_TRY(fails(comm, ncclInvalidUsage, {why}));
    gpu.wait(stream);
    gpu.wait(nullptr);
    for (ncclComm_t comm : comms) CREW_TRY(fine(ncclCommAbort(comm), "ncclCommAbort"));
    gpu.destroy(stream);
    return "";
  }));
}

TEST_CASE("processes: a stream that does not come to a call is named after TUTTI_TIMEOUT_S", "[device][processes]") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    setenv("TUTTI_TIMEOUT_S", "2", 1);
    Rank rank(m);
    CREW_TRY(rank.open());
    const Gpu& gpu = Gpu::get();
    const OnGpu<std::int32_t> a(values(m.rank, 100));
    auto* const gate = static_cast<std::uint32_t*>(gpu.allocate_pinned(4096));
    *gate = 0;
    if (m.rank == 1) gpu.wait_for_word(rank.stream, gate, 1);
    CREW_TRY(fine(ncclAllReduce(a.data(), a.data(), 100, ncclInt32, ncclSum, rank.comm, rank.stream), "sum"));
    // The fake driver gets on while it is asked.
    for (int look = 0; look < 100; ++look, usleep(1000)) (void)gpu.query(rank.stream);
    CREW_TRY(fails(rank.comm, ncclRemoteError, {"rank 0's stream waited 2 s for rank 1's (TUTTI_TIMEOUT_S)"}));
    std::atomic_ref(*gate).store(1);
    gpu.wait(rank.stream);
    CREW_TRY(fine(ncclCommAbort(rank.comm), "ncclCommAbort"));
    gpu.release_pinned(gate);
    gpu.destroy(rank.stream);
    return "";
  }));
}

TEST_CASE("processes: one may exit without having destroyed its communicator", "[device][processes]") {
  const char* const way = GENERATE("1", "0");
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    // The last to run: whoever still looks at what the driver has taken away does so meanwhile.
    if (std::atexit([] { usleep(50000); }) != 0) return "atexit";
    setenv("FAKE_CUDA_IPC", way, 1);
    Rank rank(m);
    CREW_TRY(rank.open());
    const OnGpu<std::int32_t> a(values(m.rank, 100));
    CREW_TRY(fine(ncclAllReduce(a.data(), a.data(), 100, ncclInt32, ncclSum, rank.comm, rank.stream), "sum"));
    Gpu::get().wait(rank.stream);
    CREW_TRY(differs(
        "sum", a.read(), [&](std::size_t i) { return sum(2, i); }, 100));
    std::exit(0);
  }));
}

}  // namespace tutti::test
