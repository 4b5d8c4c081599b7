// Windows of ranks that are processes.
#include "process_ranks.h"

#include <catch2/catch.hpp>

namespace tutti::test {
namespace {

/// Memory of ncclMemAlloc in a window of all ranks.
struct Window {
  ncclComm_t comm = nullptr;
  void* memory = nullptr;
  ncclWindow_t window = nullptr;

  std::string open(ncclComm_t of, std::size_t bytes) {
    comm = of;
    CREW_TRY(fine(ncclMemAlloc(&memory, bytes), "ncclMemAlloc"));
    return fine(ncclCommWindowRegister(comm, memory, bytes, &window, NCCL_WIN_COLL_SYMMETRIC),
                "ncclCommWindowRegister");
  }
  std::string close() const {
    CREW_TRY(fine(ncclCommWindowDeregister(comm, window), "ncclCommWindowDeregister"));
    return fine(ncclMemFree(memory), "ncclMemFree");
  }
  std::int32_t* at(std::size_t element) const { return static_cast<std::int32_t*>(memory) + element; }
  void write(const Values& values) const { Gpu::get().copy(memory, values.data(), values.size() * 4); }
  Values read(std::size_t first, std::size_t count) const {
    Values values(count);
    Gpu::get().copy(values.data(), at(first), count * 4);
    return values;
  }
};

}  // namespace

TEST_CASE("processes: windows of all ranks are worked on in place", "[device][processes]") {
  const int devices = GENERATE(1, 4);
  crew::check(crew::run(3, [&](const Member& m) -> std::string {
    Rank rank(m);
    CREW_TRY(rank.open(devices));
    // More than the staging holds, and not at the window's beginning.
    const std::size_t count = 2000003;
    Window in;
    Window out;
    CREW_TRY(in.open(rank.comm, 4 * (3 * count + 5)));
    CREW_TRY(out.open(rank.comm, 4 * (3 * count + 5)));
    in.write(values(m.rank, 3 * count + 5));
    const auto check = [&](const char* name, ncclResult_t called,
                           const std::function<std::int32_t(std::size_t)>& wanted, std::size_t written) -> std::string {
      CREW_TRY(fine(called, name));
      Gpu::get().wait(rank.stream);
      return differs(name, out.read(1, written), wanted, written);
    };
    const auto total = [&](std::size_t i) { return sum(3, i + 3); };
    CREW_TRY(check("all_reduce", ncclAllReduce(in.at(3), out.at(1), count, ncclInt32, ncclSum, rank.comm, rank.stream),
                   total, count));
    CREW_TRY(check("in place", ncclAllReduce(out.at(1), out.at(1), count, ncclInt32, ncclMax, rank.comm, rank.stream),
                   total, count));
    const auto own = static_cast<std::size_t>(m.rank);
    CREW_TRY(check(
        "reduce_scatter", ncclReduceScatter(in.at(3), out.at(1), count, ncclInt32, ncclSum, rank.comm, rank.stream),
        [&](std::size_t i) { return sum(3, own * count + i + 3); }, count));
    CREW_TRY(check(
        "all_gather", ncclAllGather(in.at(3), out.at(1), count, ncclInt32, rank.comm, rank.stream),
        [&](std::size_t i) { return value(static_cast<int>(i / count), i % count + 3); }, 3 * count));
    CREW_TRY(check(
        "all_to_all", ncclAlltoAll(in.at(0), out.at(1), count, ncclInt32, rank.comm, rank.stream),
        [&](std::size_t i) { return value(static_cast<int>(i / count), own * count + i % count); }, 3 * count));
    CREW_TRY(check(
        "broadcast", ncclBroadcast(in.at(0), out.at(1), count, ncclInt32, 2, rank.comm, rank.stream),
        [&](std::size_t i) { return value(2, i); }, count));
    // The window goes, and its address comes back with other memory: that is in none.
    CREW_TRY(out.close());
    for (int i = 0; i < 4; ++i) {
      const OnGpu<std::int32_t> fresh(Values(100, m.rank));
      CREW_TRY(
          fine(ncclAllReduce(fresh.data(), fresh.data(), 100, ncclInt32, ncclSum, rank.comm, rank.stream), "fresh"));
      Gpu::get().wait(rank.stream);
      CREW_TRY(differs(
          "fresh", fresh.read(), [](std::size_t) { return 3; }, 100));
    }
    CREW_TRY(in.close());
    return rank.close();
  }));
}

TEST_CASE("processes: a window that one rank does not use is a call that differs", "[device][processes]") {
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    Rank rank(m);
    CREW_TRY(rank.open());
    Window window;
    CREW_TRY(window.open(rank.comm, 4096));
    const OnGpu<std::int32_t> outside(Values(9, 1));
    std::int32_t* const data = m.rank == 0 ? window.at(0) : outside.data();
    CREW_TRY(fine(ncclAllReduce(data, data, 9, ncclInt32, ncclSum, rank.comm, rank.stream), "unlike"));
    Gpu::get().wait(rank.stream);
    ncclResult_t state = ncclSuccess;
    while (state == ncclSuccess) CREW_TRY(fine(ncclCommGetAsyncError(rank.comm, &state), "ncclCommGetAsyncError"));
    CREW_TRY(refused(state, ncclInvalidUsage, {"count 9 int32 sum in windows on rank 0", "sum on rank 1"}, rank.comm));
    CREW_TRY(window.close());
    Gpu::get().destroy(rank.stream);
    return fine(ncclCommAbort(rank.comm), "ncclCommAbort");
  }));
}

}  // namespace tutti::test
