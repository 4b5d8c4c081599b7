// Groups, streams and communicators whose data goes through host memory.
#include "staged_rank.h"

#include <catch2/catch.hpp>

#include <unistd.h>
#include <atomic>
#include <csignal>
#include <memory>
#include <thread>

namespace tutti::test {
namespace {

ncclResult_t sum_up(const Rank& rank, const std::int32_t* in, std::int32_t* out, std::size_t count) {
  return ncclAllReduce(in, out, count, ncclInt32, ncclSum, rank.comm, rank.stream);
}

}  // namespace

TEST_CASE("staged: a group of sends, receives and collectives", "[staged]") {
  crew::check(crew::run(3, [](const Member& m) -> std::string {
    Rank rank;
    CREW_TRY(Rank::make(m, rank));
    constexpr std::size_t kLong = 2500;
    constexpr std::size_t kShort = 10;
    const int next = (m.rank + 1) % m.ranks;
    const int before = (m.rank + m.ranks - 1) % m.ranks;
    const IntsOnGpu in(values(m.rank, kLong));
    const IntsOnGpu from_before(Ints(kLong + kShort, kPoison));
    const IntsOnGpu from_self(Ints(kLong, kPoison));
    const IntsOnGpu total(Ints(kLong, kPoison));
    CREW_TRY(fine(ncclGroupStart(), "ncclGroupStart"));
    ncclSend(in.data(), kLong, ncclInt32, next, rank.comm, rank.stream);
    ncclSend(in.data() + 7, kShort, ncclInt32, next, rank.comm, rank.stream);
    ncclSend(in.data(), kLong, ncclInt32, m.rank, rank.comm, rank.stream);
    ncclRecv(from_before.data(), kLong, ncclInt32, before, rank.comm, rank.stream);
    ncclRecv(from_before.data() + kLong, kShort, ncclInt32, before, rank.comm, rank.stream);
    ncclRecv(from_self.data(), kLong, ncclInt32, m.rank, rank.comm, rank.stream);
    sum_up(rank, in.data(), total.data(), kLong);
    CREW_TRY(fine(ncclGroupEnd(), "ncclGroupEnd"));
    Gpu::get().wait(rank.stream);
    CREW_TRY(compare(
        from_before.read(), [&](std::size_t i) { return value(before, i < kLong ? i : i - kLong + 7); }, "received"));
    CREW_TRY(compare(
        from_self.read(), [&](std::size_t i) { return value(m.rank, i); }, "from itself"));
    CREW_TRY(compare(
        total.read(), [&](std::size_t i) { return sum(m.ranks, i); }, "sum"));
    return rank.end();
  }));
}

TEST_CASE("staged: sends of one group meet receives that are none", "[staged]") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    Rank rank;
    CREW_TRY(Rank::make(m, rank));
    const std::size_t counts[] = {2500, 30, 1100};
    const IntsOnGpu data(m.rank == 0 ? values(0, 3 * 2500) : Ints(3 * 2500, kPoison));
    if (m.rank == 0) CREW_TRY(fine(ncclGroupStart(), "ncclGroupStart"));
    for (std::size_t i = 0; i < 3; ++i) {
      std::int32_t* const at = data.data() + i * 2500;
      CREW_TRY(fine(m.rank == 0 ? ncclSend(at, counts[i], ncclInt32, 1, rank.comm, rank.stream)
                                : ncclRecv(at, counts[i], ncclInt32, 0, rank.comm, rank.stream),
                    "a call"));
    }
    if (m.rank == 0) CREW_TRY(fine(ncclGroupEnd(), "ncclGroupEnd"));
    Gpu::get().wait(rank.stream);
    CREW_TRY(compare(
        data.read(), [&](std::size_t i) { return m.rank == 0 || i % 2500 < counts[i / 2500] ? value(0, i) : kPoison; },
        "received"));
    return rank.end();
  }));
}

TEST_CASE("staged: calls of one group that use each other's results", "[staged]") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    Rank rank;
    CREW_TRY(Rank::make(m, rank));
    for (const std::size_t count : {std::size_t{20}, std::size_t{2500}}) {
      const IntsOnGpu in(values(m.rank, count));
      const IntsOnGpu middle(Ints(count, kPoison));
      const IntsOnGpu out(Ints(count, kPoison));
      CREW_TRY(fine(ncclGroupStart(), "ncclGroupStart"));
      sum_up(rank, in.data(), middle.data(), count);
      sum_up(rank, middle.data(), out.data(), count);
      CREW_TRY(fine(ncclGroupEnd(), "ncclGroupEnd"));
      Gpu::get().wait(rank.stream);
      CREW_TRY(compare(
          out.read(), [&](std::size_t i) { return 2 * sum(2, i); }, "sum of sums"));
    }
    return rank.end();
  }));
}

TEST_CASE("staged: the order of streams holds, and that of calls on several", "[staged]") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    const Gpu& gpu = Gpu::get();
    Rank rank;
    CREW_TRY(Rank::make(m, rank));
    constexpr std::size_t kCount = 2500;
    const CUstream other = gpu.make_stream();
    const Ints mine = values(m.rank, kCount);
    const IntsOnGpu in(Ints(kCount, kPoison));
    const IntsOnGpu out(Ints(kCount, kPoison));
    const IntsOnGpu more(values(m.rank, kCount));
    Ints copy(kCount);
    for (int round = 0; round < 5; ++round) {
      // The input arrives in the stream's order, and the result is copied in it.
      gpu.copy(in.data(), mine.data(), kCount * 4, rank.stream);
      CREW_TRY(fine(sum_up(rank, in.data(), out.data(), kCount), "sum"));
      gpu.copy(copy.data(), out.data(), kCount * 4, rank.stream);
      gpu.copy(in.data(), out.data(), kCount * 4, rank.stream);
      CREW_TRY(fine(ncclAllReduce(more.data(), more.data(), kCount, ncclInt32, ncclMax, rank.comm, other), "max"));
      // Both streams in one group.
      CREW_TRY(fine(ncclGroupStart(), "ncclGroupStart"));
      ncclBroadcast(more.data(), more.data(), kCount, ncclInt32, 0, rank.comm, other);
      ncclBroadcast(out.data(), out.data(), kCount, ncclInt32, 1, rank.comm, rank.stream);
      CREW_TRY(fine(ncclGroupEnd(), "ncclGroupEnd"));
    }
    gpu.wait(rank.stream);
    gpu.wait(other);
    CREW_TRY(compare(
        copy, [&](std::size_t i) { return sum(2, i); }, "copy"));
    CREW_TRY(compare(
        out.read(), [&](std::size_t i) { return sum(2, i); }, "sum"));
    CREW_TRY(compare(
        more.read(), [&](std::size_t i) { return value(1, i); }, "max"));
    gpu.destroy(other);
    return rank.end();
  }));
}

TEST_CASE("staged: default streams of threads, and several communicators", "[staged]") {
  crew::check(crew::run(
      2,
      [](const Member& m) -> std::string {
        const Gpu& gpu = Gpu::get();
        constexpr std::size_t kCount = 1500;
        Rank ranks[2];
        CREW_TRY(Rank::make(m, ranks[0]));
        ranks[1] = ranks[0];
        CREW_TRY(fine(ncclCommInitRank(&ranks[1].comm, m.ranks, m.ids[1], m.rank), "ncclCommInitRank"));
        std::string wrong[2];
        std::thread threads[2];
        for (int t = 0; t < 2; ++t) {
          threads[t] = std::thread([&, t] {
            gpu.use(0);
            const Ints mine = values(m.rank, kCount);
            const IntsOnGpu data(Ints(kCount, kPoison));
            Rank here = ranks[t];
            here.stream = CU_STREAM_PER_THREAD;
            gpu.copy(data.data(), mine.data(), kCount * 4, here.stream);
            wrong[t] = fine(sum_up(here, data.data(), data.data(), kCount), "sum");
            Ints copy(kCount);
            gpu.copy(copy.data(), data.data(), kCount * 4, here.stream);
            gpu.wait(here.stream);
            if (wrong[t].empty())
              wrong[t] = compare(
                  copy, [&](std::size_t i) { return sum(2, i); }, "sum");
          });
        }
        for (std::thread& thread : threads) thread.join();
        CREW_TRY(wrong[0]);
        CREW_TRY(wrong[1]);
        // A part of it, and both in one group.
        ncclComm_t part = nullptr;
        CREW_TRY(fine(ncclCommSplit(ranks[0].comm, 0, 1 - m.rank, &part, nullptr), "ncclCommSplit"));
        const IntsOnGpu in(values(m.rank, kCount));
        const IntsOnGpu a(Ints(kCount, kPoison));
        const IntsOnGpu b(Ints(kCount, kPoison));
        CREW_TRY(fine(ncclGroupStart(), "ncclGroupStart"));
        ncclBroadcast(in.data(), a.data(), kCount, ncclInt32, 0, part, ranks[0].stream);
        ncclBroadcast(in.data(), b.data(), kCount, ncclInt32, 0, ranks[1].comm, ranks[0].stream);
        CREW_TRY(fine(ncclGroupEnd(), "ncclGroupEnd"));
        gpu.wait(ranks[0].stream);
        CREW_TRY(compare(
            a.read(), [&](std::size_t i) { return value(1, i); }, "from the part's first"));
        CREW_TRY(compare(
            b.read(), [&](std::size_t i) { return value(0, i); }, "from the first"));
        CREW_TRY(fine(ncclCommDestroy(part), "ncclCommDestroy"));
        CREW_TRY(fine(ncclCommDestroy(ranks[1].comm), "ncclCommDestroy"));
        return ranks[0].end();
      },
      30, 2));
}

TEST_CASE("staged: two threads whose groups name two communicators the other way round", "[staged]") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    Rank rank;
    CREW_TRY(Rank::make(m, rank));
    ncclComm_t comms[2] = {rank.comm, nullptr};
    CREW_TRY(fine(ncclCommInitRank(&comms[1], m.ranks, m.ids[1], m.rank), "ncclCommInitRank"));
    std::string wrong[2];
    std::thread threads[2];
    for (int t = 0; t < 2; ++t) {
      threads[t] = std::thread([&, t] {
        Gpu::get().use(0);
        const CUstream stream = Gpu::get().make_stream();
        const IntsOnGpu data(Ints(20, 0));
        for (int round = 0; round < 200 && wrong[t].empty(); ++round) {
          ncclGroupStart();
          for (const int which : {t, 1 - t}) {
            std::int32_t* const part = data.data() + std::ptrdiff_t{10} * which;
            ncclAllReduce(part, part, 10, ncclInt32, ncclMax, comms[which], stream);
          }
          wrong[t] = fine(ncclGroupEnd(), "ncclGroupEnd");
        }
        Gpu::get().wait(stream);
        Gpu::get().destroy(stream);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::string& one : wrong) CREW_TRY(one);
    CREW_TRY(fine(ncclCommDestroy(comms[1]), "ncclCommDestroy"));
    return rank.end();
  }));
}

TEST_CASE("staged: ranks on several hosts", "[staged]") {
  setenv("TEST_RANKS_PER_HOST", "2", 1);
  crew::check(crew::run(4, [](const Member& m) -> std::string {
    Rank rank;
    CREW_TRY(Rank::make(m, rank));
    for (const std::size_t count : {std::size_t{3}, std::size_t{5003}}) {
      const IntsOnGpu in(values(m.rank, count));
      const IntsOnGpu out(Ints(count, kPoison));
      CREW_TRY(fine(sum_up(rank, in.data(), out.data(), count), "sum"));
      CREW_TRY(fine(ncclGroupStart(), "ncclGroupStart"));
      ncclSend(out.data(), count, ncclInt32, (m.rank + 1) % 4, rank.comm, rank.stream);
      ncclRecv(in.data(), count, ncclInt32, (m.rank + 3) % 4, rank.comm, rank.stream);
      CREW_TRY(fine(ncclGroupEnd(), "ncclGroupEnd"));
      Gpu::get().wait(rank.stream);
      CREW_TRY(compare(
          out.read(), [&](std::size_t i) { return sum(4, i); }, "sum"));
      CREW_TRY(compare(
          in.read(), [&](std::size_t i) { return sum(4, i); }, "received"));
    }
    return rank.end();
  }));
  unsetenv("TEST_RANKS_PER_HOST");
}

TEST_CASE("staged: a rank that is killed lets the others' streams go on", "[staged]") {
  crew::check(
      crew::run(3,
                [](const Member& m) -> std::string {
                  Rank rank;
                  CREW_TRY(Rank::make(m, rank));
                  const IntsOnGpu data(values(m.rank, 2500));
                  CREW_TRY(fine(sum_up(rank, data.data(), data.data(), 2500), "the first"));
                  Gpu::get().wait(rank.stream);
                  if (m.rank == 1) raise(SIGKILL);
                  const ncclResult_t second = sum_up(rank, data.data(), data.data(), 2500);
                  if (second != ncclSuccess) CREW_TRY(crew::refused(second, ncclRemoteError, {"rank 1"}));
                  Gpu::get().wait(rank.stream);
                  ncclResult_t state = ncclSuccess;
                  for (int tries = 0; tries < 5000 && state == ncclSuccess; ++tries, usleep(1000)) {
                    CREW_TRY(fine(ncclCommGetAsyncError(rank.comm, &state), "ncclCommGetAsyncError"));
                  }
                  CREW_TRY(crew::refused(state, ncclRemoteError, {"rank 1"}, rank.comm));
                  CREW_TRY(crew::refused(sum_up(rank, data.data(), data.data(), 1), ncclRemoteError, {"rank 1"}));
                  // The others go on.
                  int gone = 1;
                  ncclComm_t rest = nullptr;
                  CREW_TRY(fine(ncclCommShrink(rank.comm, &gone, 1, &rest, nullptr, NCCL_SHRINK_ABORT), "shrink"));
                  data.write(values(m.rank, 2500));
                  CREW_TRY(fine(ncclAllReduce(data.data(), data.data(), 2500, ncclInt32, ncclSum, rest, rank.stream),
                                "sum"));
                  Gpu::get().wait(rank.stream);
                  CREW_TRY(compare(
                      data.read(), [&](std::size_t i) { return value(0, i) + value(2, i); }, "the rest"));
                  CREW_TRY(fine(ncclCommDestroy(rest), "ncclCommDestroy"));
                  CREW_TRY(fine(ncclCommAbort(rank.comm), "ncclCommAbort"));
                  return "";
                }),
      {1});
}

TEST_CASE("staged: a stream that never comes to a call ends the others' wait", "[staged]") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    setenv("TUTTI_TIMEOUT_S", "3", 1);  // which the start has to keep, too
    Rank rank;
    CREW_TRY(Rank::make(m, rank));
    const Gpu& gpu = Gpu::get();
    const IntsOnGpu data(values(m.rank, 100));
    auto* const gate = static_cast<std::uint32_t*>(gpu.allocate_pinned(4096));
    *gate = 0;
    gpu.wait_for_word(rank.stream, gate, 1);
    CREW_TRY(fine(sum_up(rank, data.data(), data.data(), 100), "sum"));
    ncclResult_t state = ncclSuccess;
    for (int tries = 0; tries < 10000 && state == ncclSuccess; ++tries, usleep(1000)) {
      CREW_TRY(fine(ncclCommGetAsyncError(rank.comm, &state), "ncclCommGetAsyncError"));
    }
    CREW_TRY(crew::refused(state, ncclSystemError, {"for its own stream", "TUTTI_TIMEOUT_S"}, rank.comm));
    CREW_TRY(fine(ncclCommAbort(rank.comm), "ncclCommAbort"));
    std::atomic_ref(*gate).store(1);
    gpu.wait(rank.stream);
    return "";
  }));
}

TEST_CASE("staged: ranks of several hosts are all on GPU memory, or none", "[staged]") {
  setenv("TEST_RANKS_PER_HOST", "1", 1);
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    if (std::string why = Gpu::why_not(); !why.empty()) return why;
    if (m.rank == 1) CREW_TRY(fine(tuttiSetDevice(tuttiDeviceHost), "tuttiSetDevice"));
    ncclComm_t comm = nullptr;
    const ncclResult_t made = ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank);
    return crew::refused(made, ncclInvalidUsage, {"rank 0 works on GPU memory and rank 1 on host memory"});
  }));
  unsetenv("TEST_RANKS_PER_HOST");
}

TEST_CASE("staged: devices that NCCL_P2P_DISABLE keeps apart, and what explains it", "[staged]") {
  const bool apart = GENERATE(false, true);
  crew::check(crew::run(1, [apart](const Member&) -> std::string {
    setenv("NCCL_P2P_DISABLE", apart ? "1" : "0", 1);
    const Gpu& gpu = Gpu::get();
    ncclComm_t comms[2] = {};
    const int devices[2] = {0, 1};
    CREW_TRY(fine(ncclCommInitAll(comms, 2, devices), "ncclCommInitAll"));
    CUstream streams[2] = {};
    std::unique_ptr<IntsOnGpu> data[2];
    CREW_TRY(fine(ncclGroupStart(), "ncclGroupStart"));
    for (int r = 0; r < 2; ++r) {
      gpu.use(r);
      streams[r] = gpu.make_stream();
      data[r] = std::make_unique<IntsOnGpu>(values(r, 100));
      ncclAllReduce(data[r]->data(), data[r]->data(), 100, ncclInt32, ncclSum, comms[r], streams[r]);
    }
    CREW_TRY(fine(ncclGroupEnd(), "ncclGroupEnd"));
    for (int r = 0; r < 2; ++r) {
      gpu.wait(streams[r]);
      CREW_TRY(compare(
          data[r]->read(), [&](std::size_t i) { return sum(2, i); }, "sum"));
    }
    char text[4096];
    std::size_t needed = 0;
    CREW_TRY(fine(tuttiExplain(comms[0], tuttiAllReduce, 5000000, ncclInt32, ncclSum, 0, text, sizeof text, &needed),
                  "tuttiExplain"));
    // Host calls run schedules, kernels that fetch do not.
    if ((tuttiCommSetSchedule(comms[0], nullptr, nullptr) == ncclSuccess) != apart) return "a schedule can be set";
    const bool staged = std::string(text).find("parts of up to 1048576 elements") != std::string::npos;
    if (staged != apart) return "it explains " + std::string(text);
    for (ncclComm_t comm : comms) CREW_TRY(fine(ncclCommDestroy(comm), "ncclCommDestroy"));
    return "";
  }));
}

}  // namespace tutti::test
