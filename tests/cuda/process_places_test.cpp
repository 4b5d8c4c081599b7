// Buffers of ranks that are processes, in no window of all ranks: worked on in place where all agree, else through staging; right either way.
#include "shared_buffers.h"

#include <catch2/catch.hpp>

#include <array>
#include <atomic>
#include <list>
#include <thread>
#include <utility>

#include <sys/resource.h>
#include <unistd.h>

namespace tutti::test {
namespace {

constexpr BufferKind kA = BufferKind::kAllocated;
constexpr BufferKind kR = BufferKind::kRegistered;
constexpr BufferKind kW = BufferKind::kWindow;
constexpr BufferKind kO = BufferKind::kOwn;
constexpr BufferKind kM = BufferKind::kMapped;
constexpr BufferKind kP = BufferKind::kPieces;
constexpr BufferKind kU = BufferKind::kUnshareable;

/// Of an all-reduce: more than a mebibyte, from which on ranks agree.
constexpr std::size_t kCount = 300007;

/// However busy the machine is.
void wait_for_others() { setenv("TUTTI_IN_PLACE_WAIT_S", "20", 1); }

std::string sum_up(const Rank& rank, const SharedBuffer& buffer, std::int32_t number) {
  buffer.write(Ints(kCount, number));
  CREW_TRY(
      fine(ncclAllReduce(buffer.data(), buffer.data(), kCount, ncclInt32, ncclSum, rank.comm, rank.stream), "sum"));
  Gpu::get().wait(rank.stream);
  return "";
}
std::string check_sum(const SharedBuffer& buffer, std::int32_t wanted, std::size_t count = kCount) {
  return differs(
      "sum", buffer.read(), [wanted](std::size_t) { return wanted; }, count);
}

/// More than the staging holds.
constexpr std::size_t kLong = 1500007;

std::string put_sum(const Rank& rank, const SharedBuffer& buffer, std::size_t count = kLong) {
  return fine(ncclAllReduce(buffer.data(), buffer.data(), count, ncclInt32, ncclSum, rank.comm, rank.stream), "sum");
}
std::string capture_sum(const Rank& rank, const SharedBuffer& buffer, CUgraphExec& executable,
                        std::size_t count = kLong) {
  const Gpu& gpu = Gpu::get();
  gpu.begin_capture(rank.stream);
  CREW_TRY(put_sum(rank, buffer, count));
  CUgraph graph = gpu.end_capture(rank.stream);
  if (!graph) return "the capture was spoilt";
  executable = gpu.make_executable(graph);
  gpu.destroy(graph);
  return "";
}

}  // namespace

TEST_CASE("processes: every collective on buffers of every kind", "[device][processes][places]") {
  const auto [devices, kinds] = GENERATE(std::pair(1, std::array{kA, kA, kA}), std::pair(4, std::array{kA, kR, kW}),
                                         std::pair(1, std::array{kW, kR, kA}), std::pair(1, std::array{kA, kO, kA}),
                                         std::pair(4, std::array{kR, kA, kO}), std::pair(2, std::array{kA, kA, kR}),
                                         std::pair(4, std::array{kM, kM, kM}), std::pair(1, std::array{kA, kM, kR}),
                                         std::pair(2, std::array{kM, kU, kM}), std::pair(2, std::array{kP, kM, kP}));
  crew::check(crew::run(3, [devices = devices, kinds = kinds](const Member& m) -> std::string {
    wait_for_others();
    Rank rank(m);
    CREW_TRY(rank.open(devices));
    SharedBuffer in;
    SharedBuffer out;
    CREW_TRY(in.open(rank.comm, kinds[static_cast<std::size_t>(m.rank)], 3 * kCount));
    CREW_TRY(out.open(rank.comm, kinds[static_cast<std::size_t>(m.rank)], 3 * kCount));
    CREW_TRY(collectives_on(rank, in, out, kCount, 1));
    CREW_TRY(collectives_on(rank, out, in, 1000, 2));
    CREW_TRY(in.close(rank));
    CREW_TRY(out.close(rank));
    return rank.close();
  }));
}

TEST_CASE("processes: buffers that come and go, at addresses that come back", "[device][processes][places]") {
  const BufferKind kind = GENERATE(kA, kR, kM);
  const int devices = GENERATE(from_range(over_gpus({1, 2})));
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    wait_for_others();
    Rank rank(m);
    CREW_TRY(rank.open(devices));
    // More at once than have places, too.
    std::list<SharedBuffer> kept;
    crew::Belongings before{};
    // What one rank has freed the other lets go of when it allocates or frees something itself, and then the one can.
    const auto settle = [&]() -> std::string {
      for (int round = 0; round < 3; ++round) {
        SharedBuffer any;
        CREW_TRY(any.open(rank.comm, kO, kCount));
        CREW_TRY(sum_up(rank, any, 0));
        CREW_TRY(any.close());
        CREW_TRY(any.open(rank.comm, kA, 1));
        CREW_TRY(any.close());
      }
      return "";
    };
    for (int i = 0; i < 60; ++i) {
      SharedBuffer buffer;
      CREW_TRY(buffer.open(rank.comm, kind, kCount));
      CREW_TRY(sum_up(rank, buffer, m.rank + i));
      CREW_TRY(check_sum(buffer, 2 * i + 1));
      if (i < 40) {
        CREW_TRY(kept.emplace_back().open(rank.comm, i % 3 == 0 ? kO : kind, kCount));
        CREW_TRY(sum_up(rank, kept.back(), m.rank + i));
        CREW_TRY(check_sum(kept.back(), 2 * i + 1));
      }
      CREW_TRY(buffer.close(rank));
      // Memory that is no one's any more, at the same address, on one rank only.
      if (i % 4 == 0) {
        SharedBuffer fresh;
        CREW_TRY(fresh.open(rank.comm, m.rank == i / 4 % 2 ? kO : kA, kCount));
        CREW_TRY(sum_up(rank, fresh, m.rank - i));
        CREW_TRY(check_sum(fresh, 1 - 2 * i));
        CREW_TRY(fresh.close());
      }
      if (i == 45) CREW_TRY(settle());
      if (i == 45) before = crew::Belongings::count();
    }
    CREW_TRY(settle());
    CREW_TRY(crew::left_behind(before));
    for (SharedBuffer& buffer : kept) CREW_TRY(buffer.close(rank));
    return rank.close();
  }));
}

TEST_CASE("processes: registered memory of which a piece in the middle becomes another one",
          "[device][processes][places]") {
  const BufferKind kind = GENERATE(kM, kP);
  const int devices = GENERATE(from_range(over_gpus({1, 2})));
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    wait_for_others();
    constexpr std::size_t kLong = 5 * SharedBuffer::kPiece / 2 / sizeof(std::int32_t);  // over three pieces
    Rank rank(m);
    CREW_TRY(rank.open(devices));
    SharedBuffer buffer;
    CREW_TRY(buffer.open(rank.comm, kind, kLong));
    for (int i = 0; i < 5; ++i) {
      buffer.write(Ints(kLong, m.rank + i));
      CREW_TRY(
          fine(ncclAllReduce(buffer.data(), buffer.data(), kLong, ncclInt32, ncclSum, rank.comm, rank.stream), "sum"));
      Gpu::get().wait(rank.stream);
      CREW_TRY(differs(
          "sum", buffer.read(), [i](std::size_t) { return 2 * i + 1; }, kLong));
      if (i == 3 || i % 2 == m.rank) CREW_TRY(buffer.replace_second_piece());
    }
    CREW_TRY(buffer.close(rank));
    return rank.close();
  }));
}

TEST_CASE("processes: a rank that comes late has its call through staging", "[device][processes][places]") {
  const char* const wait = GENERATE("0", "0.001", "");
  const int devices = GENERATE(from_range(over_gpus({1, 2})));
  crew::check(crew::run(3, [&](const Member& m) -> std::string {
    if (*wait != '\0') setenv("TUTTI_IN_PLACE_WAIT_S", wait, 1);
    Rank rank(m);
    CREW_TRY(rank.open(devices));
    SharedBuffer buffer;
    CREW_TRY(buffer.open(rank.comm, kA, kCount));
    for (int i = 0; i < 40; ++i) {
      if (i % 3 == m.rank && i < 9) usleep(20000);
      CREW_TRY(sum_up(rank, buffer, m.rank + i));
      CREW_TRY(check_sum(buffer, 3 * i + 3));
    }
    CREW_TRY(buffer.close());
    return rank.close();
  }));
}

TEST_CASE("processes: many calls without a look at their results", "[device][processes][places]") {
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    Rank rank(m);
    CREW_TRY(rank.open(2));
    SharedBuffer buffers[2];
    for (SharedBuffer& buffer : buffers) CREW_TRY(buffer.open(rank.comm, kA, kCount));
    buffers[0].write(Ints(kCount, m.rank));
    buffers[1].write(Ints(kCount, 5));
    // One rank is far ahead of the other, by turns.
    for (int i = 0; i < 300; ++i) {
      if (i % 150 == 75 * m.rank) usleep(50000);
      CREW_TRY(fine(ncclAllReduce(buffers[i % 2].data(), buffers[1 - i % 2].data(), kCount, ncclInt32, ncclMax,
                                  rank.comm, rank.stream),
                    "max"));
    }
    Gpu::get().wait(rank.stream);
    CREW_TRY(check_sum(buffers[0], 1));
    for (SharedBuffer& buffer : buffers) CREW_TRY(buffer.close());
    return rank.close();
  }));
}

TEST_CASE("processes: a group of more calls than are agreed on at a time, and a rank that is as far ahead",
          "[device][processes][places]") {
  const int devices = GENERATE(from_range(over_gpus({1, 2})));
  auto* const come = static_cast<std::atomic<int>*>(crew::shared_page());
  *come = 0;
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    setenv("TUTTI_TIMEOUT_S", "20", 1);
    Rank rank(m);
    CREW_TRY(rank.open(devices));
    SharedBuffer from;
    SharedBuffer to;
    CREW_TRY(from.open(rank.comm, kA, kCount));
    CREW_TRY(to.open(rank.comm, kA, kCount));
    from.write(Ints(kCount, m.rank + 1));
    const auto many = [&]() -> std::string {
      for (int i = 0; i < 100; ++i) {
        CREW_TRY(
            fine(ncclAllReduce(from.data(), to.data(), kCount, ncclInt32, ncclSum, rank.comm, rank.stream), "sum"));
      }
      return "";
    };
    CREW_TRY(fine(ncclGroupStart(), "group"));
    CREW_TRY(many());
    CREW_TRY(fine(ncclGroupEnd(), "ncclGroupEnd"));
    Gpu::get().wait(rank.stream);
    CREW_TRY(check_sum(to, 3));
    // What the other waits for comes behind this rank's calls.
    if (m.rank == 1) {
      while (*come == 0) usleep(100);
    }
    CREW_TRY(many());
    *come = 1;
    Gpu::get().wait(rank.stream);
    CREW_TRY(check_sum(to, 3));
    CREW_TRY(from.close());
    CREW_TRY(to.close());
    return rank.close();
  }));
}

TEST_CASE("processes: a captured call works in place when it is replayed", "[device][processes][places]") {
  const int devices = GENERATE(from_range(over_gpus({1, 2})));
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    wait_for_others();
    Rank rank(m);
    CREW_TRY(rank.open(devices));
    const Gpu& gpu = Gpu::get();
    SharedBuffer buffer;
    SharedBuffer other;
    CREW_TRY(buffer.open(rank.comm, m.rank == 0 ? kA : kR, kCount));
    CREW_TRY(other.open(rank.comm, kA, kCount));
    CUgraphExec executable = nullptr;
    CREW_TRY(capture_sum(rank, buffer, executable, kCount));
    for (int i = 0; i < 10; ++i) {
      buffer.write(Ints(kCount, m.rank + i));
      gpu.launch(executable, rank.stream);
      if (i % 3 == 0) CREW_TRY(sum_up(rank, other, i));
      gpu.wait(rank.stream);
      CREW_TRY(check_sum(buffer, 2 * i + 1));
      if (i % 3 == 0) CREW_TRY(check_sum(other, 2 * i));
    }
    gpu.destroy(executable);
    CREW_TRY(other.close());
    CREW_TRY(buffer.close(rank));
    return rank.close();
  }));
}

TEST_CASE("processes: a long call that one rank has in a graph and another makes each time",
          "[device][processes][places]") {
  const int devices = GENERATE(from_range(over_gpus({1, 2})));
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    // The other rank does not come to some of the calls.
    setenv("TUTTI_IN_PLACE_WAIT_S", "0.3", 1);
    Rank rank(m);
    CREW_TRY(rank.open(devices));
    const Gpu& gpu = Gpu::get();
    SharedBuffer captured;
    SharedBuffer other;
    CREW_TRY(captured.open(rank.comm, kA, kLong));
    CREW_TRY(other.open(rank.comm, kA, kLong));
    CUgraphExec executable = nullptr;
    if (m.rank == 1) CREW_TRY(capture_sum(rank, captured, executable));
    for (int i = 0; i < 5; ++i) {
      captured.write(Ints(kLong, m.rank + i));
      other.write(Ints(kLong, m.rank + 2 * i));
      if (m.rank == 1) gpu.launch(executable, rank.stream);
      if (m.rank == 0) CREW_TRY(put_sum(rank, captured));
      // For rank 1 the next call after the one that it has captured, for rank 0 a later one.
      if (i >= 2) CREW_TRY(put_sum(rank, other));
      gpu.wait(rank.stream);
      CREW_TRY(check_sum(captured, 2 * i + 1, kLong));
      if (i >= 2) CREW_TRY(check_sum(other, 4 * i + 1, kLong));
    }
    if (m.rank == 1) gpu.destroy(executable);
    CREW_TRY(other.close());
    CREW_TRY(captured.close());
    return rank.close();
  }));
}

TEST_CASE("processes: a call in place that all ranks have captured and one of them does not replay",
          "[device][processes][places][in place]") {
  const int devices = GENERATE(from_range(over_gpus({1, 2})));
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    wait_for_others();
    Rank rank(m);
    CREW_TRY(rank.open(devices));
    const Gpu& gpu = Gpu::get();
    SharedBuffer captured;
    SharedBuffer other;
    CREW_TRY(captured.open(rank.comm, kA, kLong));
    CREW_TRY(other.open(rank.comm, m.rank == 0 ? kA : kO, kLong));
    CUgraphExec executable = nullptr;
    CREW_TRY(capture_sum(rank, captured, executable));
    captured.write(Ints(kLong, m.rank));
    gpu.launch(executable, rank.stream);
    gpu.wait(rank.stream);
    CREW_TRY(check_sum(captured, 1, kLong));
    // Rank 0's next call is told by the same number as the one that rank 1 makes behind its replay, and is staged like that.
    if (m.rank == 0) CREW_TRY(put_sum(rank, captured));
    if (m.rank == 1) gpu.launch(executable, rank.stream);
    if (m.rank == 1) (void)put_sum(rank, other);
    gpu.wait(rank.stream);
    CREW_TRY(fails(rank.comm, ncclInvalidUsage, {"calls differ", "count 1500007 int32 sum in place on rank 1"}));
    CREW_TRY(fine(ncclCommAbort(rank.comm), "ncclCommAbort"));
    gpu.destroy(executable);
    gpu.destroy(rank.stream);
    return "";
  }));
}

TEST_CASE("processes: a graph's buffer that is registered no more, when another one has its place",
          "[device][processes][places][in place]") {
  const BufferKind kind = GENERATE(kR, kM);
  const int devices = GENERATE(from_range(over_gpus({1, 2})));
  const bool has_another = GENERATE(false, true);
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    wait_for_others();
    Rank rank(m);
    CREW_TRY(rank.open(devices));
    const Gpu& gpu = Gpu::get();
    SharedBuffer captured;
    SharedBuffer other;
    CREW_TRY(captured.open(rank.comm, kind, kLong));
    CUgraphExec executable = nullptr;
    CREW_TRY(capture_sum(rank, captured, executable));
    CREW_TRY(captured.deregister_last());
    CREW_TRY(sum_up(rank, captured, 1));
    CREW_TRY(sum_up(rank, captured, 1));
    CREW_TRY(other.open(rank.comm, kind, kLong));
    if (has_another) CREW_TRY(sum_up(rank, other, 5));
    gpu.launch(executable, rank.stream);
    gpu.wait(rank.stream);
    CREW_TRY(fails(rank.comm, ncclInternalError, {"no mapping", "registered no more"}));
    CREW_TRY(fine(ncclCommAbort(rank.comm), "ncclCommAbort"));
    gpu.destroy(executable);
    gpu.destroy(rank.stream);
    return "";
  }));
}

TEST_CASE("processes: memory that a rank cannot open when all have agreed on it is named, with what to do",
          "[device][processes][places][in place]") {
  const int devices = GENERATE(from_range(over_gpus({1, 2})));
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    wait_for_others();
    Rank rank(m);
    CREW_TRY(rank.open(devices));
    SharedBuffer buffer;
    CREW_TRY(buffer.open(rank.comm, m.rank == 1 ? kM : kA, kLong));
    rlimit usual = {};
    if (m.rank == 0) {
      // Who works for both where they share a GPU. For a letter, but not for the pieces that come with it.
      const int next = dup(0);
      close(next);
      if (getrlimit(RLIMIT_NOFILE, &usual) != 0) return "getrlimit";
      const rlimit few = {static_cast<rlim_t>(next) + 2, usual.rlim_max};
      if (setrlimit(RLIMIT_NOFILE, &few) != 0) return "setrlimit";
    }
    CREW_TRY(put_sum(rank, buffer));
    if (m.rank == 0 && setrlimit(RLIMIT_NOFILE, &usual) != 0) return "setrlimit";
    Gpu::get().wait(rank.stream);
    CREW_TRY(fails(rank.comm, ncclInternalError,
                   {"rank 0 cannot open memory of rank 1's", "raise ulimit -n", "TUTTI_IN_PLACE_WAIT_S=0"}));
    CREW_TRY(fine(ncclCommAbort(rank.comm), "ncclCommAbort"));
    Gpu::get().destroy(rank.stream);
    return "";
  }));
}

TEST_CASE("processes: one thread's ranks, groups of two communicators", "[device][processes][places]") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    wait_for_others();
    TwoAndOne ranks(m);
    TwoAndOne others(m);
    CREW_TRY(ranks.open(m));
    CREW_TRY(others.open(m, 1));
    const auto& comms = ranks.comms;
    const Gpu& gpu = Gpu::get();
    std::list<SharedBuffer> buffers;
    std::vector<CUstream> streams;
    for (std::size_t i = 0; i < comms.size(); ++i) streams.push_back(gpu.make_stream());
    for (std::size_t i = 0; i < 2 * comms.size(); ++i) CREW_TRY(buffers.emplace_back().open(comms[0], kA, kCount));
    for (int round = 0; round < 4; ++round) {
      auto buffer = buffers.begin();
      CREW_TRY(fine(ncclGroupStart(), "group"));
      for (std::size_t i = 0; i < comms.size(); ++i) {
        for (const ncclComm_t comm : {comms[i], others.comms[i]}) {
          buffer->write(Ints(kCount, ranks.first + static_cast<int>(i) + round));
          void* const data = buffer++->data();
          CREW_TRY(fine(ncclAllReduce(data, data, kCount, ncclInt32, ncclSum, comm, streams[i]), "sum"));
        }
      }
      CREW_TRY(fine(ncclGroupEnd(), "ncclGroupEnd"));
      for (CUstream stream : streams) gpu.wait(stream);
      for (const SharedBuffer& one : buffers) CREW_TRY(check_sum(one, 3 + 3 * round));
    }
    for (SharedBuffer& one : buffers) CREW_TRY(one.close());
    for (CUstream stream : streams) gpu.destroy(stream);
    for (const ncclComm_t comm : others.comms) CREW_TRY(fine(ncclCommDestroy(comm), "ncclCommDestroy"));
    for (const ncclComm_t comm : comms) CREW_TRY(fine(ncclCommDestroy(comm), "ncclCommDestroy"));
    return "";
  }));
}

TEST_CASE("processes: memory outlives communicators that have used it, and the other way round",
          "[device][processes][places]") {
  const int devices = GENERATE(from_range(over_gpus({1, 2})));
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    wait_for_others();
    SharedBuffer buffer;
    Rank second(m);
    CREW_TRY(second.open(devices, 1));
    {
      Rank rank(m);
      CREW_TRY(rank.open(devices, 0));
      CREW_TRY(buffer.open(rank.comm, kA, kCount));
      for (const Rank* one : {&rank, &second, &rank}) {
        CREW_TRY(sum_up(*one, buffer, m.rank));
        CREW_TRY(check_sum(buffer, 1));
      }
      CREW_TRY(rank.close());
    }
    CREW_TRY(sum_up(second, buffer, m.rank + 7));
    CREW_TRY(check_sum(buffer, 15));
    // One rank frees before the other has come so far.
    if (m.rank == 1) usleep(20000);
    CREW_TRY(buffer.close());
    SharedBuffer next;
    CREW_TRY(next.open(second.comm, kA, kCount));
    CREW_TRY(sum_up(second, next, m.rank + 8));
    CREW_TRY(check_sum(next, 17));
    CREW_TRY(second.close());
    return next.close();
  }));
}

}  // namespace tutti::test
