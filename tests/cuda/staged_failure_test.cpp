// What goes wrong with data that goes through host memory: CUDA calls that fail, aborts, calls that differ. The ranks are in this process,
// on devices that do not reach each other.
#include "fake_driver.h"
#include "gpu.h"

#include <nccl.h>
#include <tutti/tutti.h>

#include <catch2/catch.hpp>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <set>
#include <thread>

namespace tutti::test {
namespace {

constexpr int kRanks = 2;
constexpr std::size_t kCount = 2500;  ///< three parts
using Ints = std::vector<std::int32_t>;

class Counted {
 public:
  Counted() { fake_driver::set_counting(true); }
  ~Counted() { fake_driver::set_counting(false); }
};

/// Memory and streams, a device for each rank.
struct Fixture {
  std::vector<std::unique_ptr<OnGpu<std::int32_t>>> buffers;
  std::vector<CUstream> streams;

  Fixture() {
    setenv("TUTTI_STAGING_BYTES", "4096", 1);
    REQUIRE(Gpu::why_not().empty());
    fake_driver::set_peers(false);
    for (int r = 0; r < kRanks; ++r) {
      Gpu::get().use(r);
      buffers.push_back(std::make_unique<OnGpu<std::int32_t>>(Ints(kCount, r + 1)));
      streams.push_back(Gpu::get().make_stream());
    }
    Gpu::get().use(0);
  }
  ~Fixture() {
    for (CUstream stream : streams) Gpu::get().destroy(stream);
    fake_driver::set_peers(true);
  }
  void fill() const {
    for (int r = 0; r < kRanks; ++r) buffer(r).write(Ints(kCount, r + 1));
  }
  const OnGpu<std::int32_t>& buffer(int r) const { return *buffers[static_cast<std::size_t>(r)]; }
  CUstream stream(int r) const { return streams[static_cast<std::size_t>(r)]; }
  void wait() const {
    for (CUstream stream : streams) Gpu::get().wait(stream);
  }
};

struct Comms {
  ncclComm_t of[kRanks] = {};
  ncclResult_t make() {
    const int devices[kRanks] = {0, 1};
    return ncclCommInitAll(of, kRanks, devices);
  }
};

ncclResult_t sum_up(const Fixture& f, ncclComm_t comm, int rank, std::size_t count = kCount) {
  return ncclAllReduce(f.buffer(rank).data(), f.buffer(rank).data(), count, ncclInt32, ncclSum, comm, f.stream(rank));
}
ncclResult_t sum_up_all(const Fixture& f, const Comms& comms) {
  ncclResult_t result = ncclGroupStart();
  for (int r = 0; r < kRanks && result == ncclSuccess; ++r) result = sum_up(f, comms.of[r], r);
  const ncclResult_t ended = ncclGroupEnd();
  return result == ncclSuccess ? ended : result;
}

ncclResult_t async_error(ncclComm_t comm) {
  ncclResult_t state = ncclSuccess;
  REQUIRE(ncclCommGetAsyncError(comm, &state) == ncclSuccess);
  return state;
}
/// What the communicator's thread finds, it tells a moment later.
ncclResult_t wait_for_error(ncclComm_t comm) {
  for (int tries = 0; tries < 5000 && async_error(comm) == ncclSuccess; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return async_error(comm);
}

struct Outcome {
  ncclResult_t result = ncclSuccess;
  std::string reason;
  bool right = false;  ///< the sum
};

/// Both ranks in one graph, which begins on the first rank's stream.
ncclResult_t replay(const Fixture& f, const Comms& comms) {
  const Gpu& gpu = Gpu::get();
  gpu.begin_capture(f.stream(0));
  gpu.order(f.stream(0), f.stream(1));
  ncclResult_t result = ncclSuccess;
  {
    const Counted counted;
    result = sum_up_all(f, comms);
  }
  gpu.order(f.stream(1), f.stream(0));
  CUgraph graph = gpu.end_capture(f.stream(0));
  if (!graph) return result;
  if (result == ncclSuccess) {
    CUgraphExec executable = gpu.make_executable(graph);
    gpu.launch(executable, f.stream(0));
    gpu.launch(executable, f.stream(0));
    gpu.wait(f.stream(0));
    gpu.destroy(executable);
  }
  gpu.destroy(graph);
  return result;
}

/// Communicators from beginning to end.
Outcome everything(const Fixture& f) {
  Outcome outcome;
  f.fill();
  const auto keep = [&](ncclResult_t result) {
    if (result == ncclSuccess || outcome.result != ncclSuccess) return;
    outcome.result = result;
    outcome.reason = ncclGetLastError(nullptr);
  };
  Comms comms;
  {
    const Counted counted;
    keep(comms.make());
    if (outcome.result != ncclSuccess) return outcome;
    keep(sum_up_all(f, comms));
  }
  f.wait();
  keep(replay(f, comms));
  f.wait();
  // Three times the sum of both.
  outcome.right = f.buffer(0).read() == Ints(kCount, 12) && f.buffer(1).read() == Ints(kCount, 12);
  const Counted counted;
  for (ncclComm_t comm : comms.of) keep(ncclCommDestroy(comm));
  return outcome;
}

}  // namespace

TEST_CASE("staged: every CUDA call fails once, and nothing is left", "[staged][failure][races]") {
  const Fixture f;
  REQUIRE(everything(f).right);
  const fake_driver::Live before = fake_driver::live();
  const std::uint64_t start = fake_driver::calls();
  REQUIRE(everything(f).right);
  const std::uint64_t total = fake_driver::calls() - start;
  REQUIRE(total > 200);
  std::set<std::string> failed;
  for (std::uint64_t k = 1; k <= total; ++k) {
    fake_driver::fail_after(k, CUDA_ERROR_OUT_OF_MEMORY);
    const Outcome outcome = everything(f);
    const std::string function = fake_driver::failed_function();
    fake_driver::fail_after(0, CUDA_SUCCESS);
    CAPTURE(k, total, function, outcome.reason);
    failed.insert(function);
    // Either the call says what failed, or it did not matter.
    if (outcome.result == ncclSuccess) {
      CHECK(outcome.right);
    } else {
      CHECK_THAT(outcome.reason, Catch::Contains(function) || Catch::Contains("CUDA_ERROR_OUT_OF_MEMORY"));
    }
    const fake_driver::Live after = fake_driver::live();
    INFO("before " << fake_driver::describe(before) << "\nafter  " << fake_driver::describe(after));
    REQUIRE(after == before);
  }
  for (const char* function : {"cuStreamWaitValue32", "cuStreamWriteValue32", "cuLaunchHostFunc", "cuMemHostRegister",
                               "cuMemcpyAsync", "cuUserObjectCreate", "cuGraphRetainUserObject"}) {
    CHECK(failed.contains(function));
  }
  CHECK(everything(f).right);
  CHECK(fake_driver::live() == before);
}

TEST_CASE("staged: an abort lets the streams of both ranks go on", "[staged][failure]") {
  const Fixture f;
  const int who = GENERATE(0, 1);
  Comms comms;
  REQUIRE(comms.make() == ncclSuccess);
  REQUIRE(sum_up(f, comms.of[0], 0) == ncclSuccess);
  REQUIRE(sum_up(f, comms.of[0], 0) == ncclSuccess);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(Gpu::get().query(f.stream(0)) == CUDA_ERROR_NOT_READY);
  CHECK(ncclCommAbort(comms.of[who]) == ncclSuccess);
  f.wait();
  CHECK(wait_for_error(comms.of[1 - who]) == ncclRemoteError);
  CHECK(sum_up(f, comms.of[1 - who], 1 - who) == ncclRemoteError);
  CHECK(ncclCommAbort(comms.of[1 - who]) == ncclSuccess);
}

TEST_CASE("staged: an abort before the stream has come to the call leaves memory until it has", "[staged][failure]") {
  const Fixture f;
  Comms comms;
  REQUIRE(comms.make() == ncclSuccess);
  auto* const gate = static_cast<std::uint32_t*>(Gpu::get().allocate_pinned(4096));
  *gate = 0;
  const fake_driver::Live before = fake_driver::live();
  Gpu::get().wait_for_word(f.stream(0), gate, 1);
  REQUIRE(sum_up(f, comms.of[0], 0) == ncclSuccess);
  CHECK(ncclCommAbort(comms.of[0]) == ncclSuccess);
  CHECK(ncclCommAbort(comms.of[1]) == ncclSuccess);
  CHECK(fake_driver::live().registrations == before.registrations + 1);
  std::atomic_ref(*gate).store(1);
  f.wait();
  // The next communicator takes it away.
  REQUIRE(comms.make() == ncclSuccess);
  CHECK(fake_driver::live().registrations == before.registrations);
  for (ncclComm_t comm : comms.of) CHECK(ncclCommDestroy(comm) == ncclSuccess);
  Gpu::get().release_pinned(gate);
}

TEST_CASE("staged: calls that differ are told, and the communicator goes on if nothing was cut", "[staged][failure]") {
  const Fixture f;
  Comms comms;
  REQUIRE(comms.make() == ncclSuccess);
  REQUIRE(sum_up(f, comms.of[0], 0, 5) == ncclSuccess);
  REQUIRE(sum_up(f, comms.of[1], 1, 7) == ncclSuccess);
  f.wait();
  for (ncclComm_t comm : comms.of) {
    CHECK(wait_for_error(comm) == ncclInvalidUsage);
    CHECK_THAT(ncclGetLastError(comm), Catch::Contains("count 5 int32") && Catch::Contains("count 7 int32"));
  }
  f.fill();
  REQUIRE(sum_up_all(f, comms) == ncclSuccess);
  f.wait();
  CHECK(f.buffer(0).read() == Ints(kCount, 3));
  // Both have a first part of the same size, and the second of one is what the other calls next. All three are called
  // before a stream comes to them: a call after the difference was found would only be refused.
  auto* const gate = static_cast<std::uint32_t*>(Gpu::get().allocate_pinned(4096));
  *gate = 0;
  for (const int r : {0, 1}) Gpu::get().wait_for_word(f.stream(r), gate, 1);
  REQUIRE(sum_up(f, comms.of[0], 0, 2048) == ncclSuccess);
  REQUIRE(sum_up(f, comms.of[1], 1, 1024) == ncclSuccess);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  REQUIRE(sum_up(f, comms.of[1], 1, 1024) == ncclSuccess);
  std::atomic_ref(*gate).store(1);
  f.wait();
  Gpu::get().release_pinned(gate);
  for (ncclComm_t comm : comms.of) {
    CHECK(wait_for_error(comm) == ncclInvalidUsage);
    CHECK_THAT(ncclGetLastError(comm), Catch::Contains("count 2048 int32"));
    CHECK(ncclCommAbort(comm) == ncclSuccess);
  }
}

}  // namespace tutti::test
