// Groups of one thread that has several ranks of communicators of several processes: nothing that one rank's calls wait for, on the host, may
// need what the thread has yet to put on another rank's stream.
#include "process_ranks.h"
#include "shared_buffers.h"

#include <catch2/catch.hpp>

#include <array>
#include <cstdlib>
#include <iterator>
#include <list>
#include <vector>

namespace tutti::test {
namespace {

constexpr std::array<int, 3> kApart = {0, 1, 2};
constexpr std::array<int, 3> kOnOne = {0, 0, 0};

/// Of those of a TwoAndOne here, each on its device.
class Streams {
 public:
  explicit Streams(const TwoAndOne& ranks) : ranks_(ranks) {
    for (std::size_t i = 0; i < ranks.comms.size(); ++i) {
      ranks.use(i);
      streams_.push_back(Gpu::get().make_stream());
    }
  }
  CUstream operator[](std::size_t own) const { return streams_[own]; }
  void wait() const {
    for (CUstream stream : streams_) Gpu::get().wait(stream);
  }
  std::string close() const {
    for (std::size_t i = 0; i < streams_.size(); ++i) {
      CREW_TRY(fine(ncclCommDestroy(ranks_.comms[i]), "ncclCommDestroy"));
      Gpu::get().destroy(streams_[i]);
    }
    return "";
  }

 private:
  const TwoAndOne& ranks_;
  std::vector<CUstream> streams_;
};

/// More than the fake driver's streams have room for then: five pieces of staging, and many calls.
constexpr std::size_t kLong = 1300000;
constexpr std::size_t kShort = 100;
constexpr int kCalls = 20;

}  // namespace

TEST_CASE("processes: one thread's ranks fill their streams by turns", "[device][processes]") {
  const std::array<int, 3> devices = GENERATE(kApart, kOnOne);
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    setenv("FAKE_CUDA_ROOM", "16", 1);
    setenv("TUTTI_SHARED_GPU_HOST_BYTES", "0", 1);
    TwoAndOne ranks(m, devices);
    CREW_TRY(ranks.open(m));
    const Streams streams(ranks);
    std::list<OnGpu<std::int32_t>> gathered;
    std::list<OnGpu<std::int32_t>> added;
    CREW_TRY(fine(ncclGroupStart(), "group"));
    for (std::size_t i = 0; i < ranks.comms.size(); ++i) {
      const int rank = ranks.first + static_cast<int>(i);
      ranks.use(i);
      const OnGpu<std::int32_t>& all = gathered.emplace_back(Ints(3 * kLong, rank));
      const OnGpu<std::int32_t>& one = added.emplace_back(values(rank, kShort));
      CREW_TRY(fine(ncclAllGather(all.data() + rank * kLong, all.data(), kLong, ncclInt32, ranks.comms[i], streams[i]),
                    "all-gather"));
      for (int call = 0; call < kCalls; ++call) {
        CREW_TRY(fine(ncclAllReduce(one.data(), one.data(), kShort, ncclInt32, call == 0 ? ncclSum : ncclMax,
                                    ranks.comms[i], streams[i]),
                      "sum"));
      }
    }
    CREW_TRY(fine(ncclGroupEnd(), "ncclGroupEnd"));
    streams.wait();
    for (const auto& all : gathered) {
      CREW_TRY(differs(
          "all-gather", all.read(), [](std::size_t at) { return static_cast<std::int32_t>(at / kLong); }, 3 * kLong));
    }
    for (const auto& one : added) {
      CREW_TRY(differs(
          "sum", one.read(), [](std::size_t at) { return sum(3, at); }, kShort));
    }
    return streams.close();
  }));
}

TEST_CASE("processes: one thread's ranks keep to the program's order of two communicators on a stream",
          "[device][processes]") {
  const std::array<int, 3> devices = GENERATE(kApart, kOnOne);
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    setenv("FAKE_CUDA_ROOM", "8", 1);
    setenv("TUTTI_SHARED_GPU_HOST_BYTES", "0", 1);
    TwoAndOne ranks(m, devices);
    CREW_TRY(ranks.open(m));
    // Of ranks 1 and 2, which give its calls first. In the group that is behind the other one's of rank 0.
    const std::size_t last = ranks.comms.size() - 1;
    ncclComm_t pair = nullptr;
    ranks.use(last);
    CREW_TRY(fine(ncclCommInitRank(&pair, 2, m.ids[1], m.rank), "ncclCommInitRank"));
    const Streams streams(ranks);
    std::list<OnGpu<std::int32_t>> sums;
    const bool groups = m.rank == 0;
    if (groups) CREW_TRY(fine(ncclGroupStart(), "group"));
    for (std::size_t i = 0; i <= last; ++i) {
      ranks.use(i);
      const OnGpu<std::int32_t>& numbers = sums.emplace_back(Ints(2 * kLong, ranks.first + static_cast<int>(i)));
      const auto add = [&](ncclComm_t comm) {
        return fine(ncclAllReduce(numbers.data(), numbers.data(), 2 * kLong, ncclInt32, ncclSum, comm, streams[i]),
                    "sum");
      };
      if (i == last) CREW_TRY(add(pair));
      CREW_TRY(add(ranks.comms[i]));
    }
    if (groups) CREW_TRY(fine(ncclGroupEnd(), "ncclGroupEnd"));
    streams.wait();
    for (const auto& numbers : sums) {
      CREW_TRY(differs(
          "sum", numbers.read(), [](std::size_t) { return 6; }, 2 * kLong));
    }
    CREW_TRY(fine(ncclCommDestroy(pair), "ncclCommDestroy"));
    return streams.close();
  }));
}

TEST_CASE("processes: one thread's ranks have opened others' memory before any of their kernels waits",
          "[device][processes][places]") {
  const std::array<int, 3> devices = GENERATE(kApart, kOnOne);
  const BufferKind kind = GENERATE(BufferKind::kAllocated, BufferKind::kMapped);
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    setenv("FAKE_CUDA_IDLE_MAPPING", "1", 1);
    setenv("TUTTI_IN_PLACE_WAIT_S", "20", 1);
    TwoAndOne ranks(m, devices);
    CREW_TRY(ranks.open(m));
    const Streams streams(ranks);
    constexpr std::size_t kCount = 300007;
    std::list<SharedBuffer> buffers;
    for (int round = 0; round < 2; ++round) {
      CREW_TRY(fine(ncclGroupStart(), "group"));
      for (std::size_t i = 0; i < ranks.comms.size(); ++i) {
        ranks.use(i);
        SharedBuffer& buffer = buffers.emplace_back();
        CREW_TRY(buffer.open(ranks.comms[i], kind, kCount));
        buffer.write(Ints(kCount, ranks.first + static_cast<int>(i) + round));
        CREW_TRY(
            fine(ncclAllReduce(buffer.data(), buffer.data(), kCount, ncclInt32, ncclSum, ranks.comms[i], streams[i]),
                 "sum"));
      }
      CREW_TRY(fine(ncclGroupEnd(), "ncclGroupEnd"));
      streams.wait();
      for (std::size_t i = 0; i < ranks.comms.size(); ++i) {
        CREW_TRY(differs(
            "sum", std::prev(buffers.end(), static_cast<std::ptrdiff_t>(i) + 1)->read(),
            [&](std::size_t) { return 3 + 3 * round; }, kCount));
      }
      // The next round closes what others have open of these.
      if (kind != BufferKind::kAllocated) continue;
      for (SharedBuffer& buffer : buffers) CREW_TRY(buffer.close());
      buffers.clear();
    }
    CREW_TRY(streams.close());
    for (SharedBuffer& buffer : buffers) CREW_TRY(buffer.close());
    return "";
  }));
}

}  // namespace tutti::test
