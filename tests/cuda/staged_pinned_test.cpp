// Calls through host memory on buffers that lie in host memory themselves: they return at once, as all others do. The ranks are in this process,
// on devices that do not reach each other.
#include "fake_driver.h"
#include "gpu.h"
#include "rank_values.h"

#include <nccl.h>

#include <catch2/catch.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <thread>

namespace tutti::test {
namespace {

constexpr int kRanks = 2;
constexpr std::size_t kCount = 2500;  ///< three parts
constexpr std::size_t kBytes = kRanks * kCount * sizeof(std::int32_t);

/// Numbers in pinned memory, or in a device's.
class Numbers {
 public:
  Numbers(bool pinned, int device) : pinned_(pinned), device_(device) {
    Gpu::get().use(device);
    memory_ = pinned ? Gpu::get().allocate_pinned(kBytes) : Gpu::get().allocate(kBytes);
    write(Ints(kRanks * kCount, kPoison));
  }
  ~Numbers() { pinned_ ? Gpu::get().release_pinned(memory_) : Gpu::get().release(memory_); }
  Numbers(const Numbers&) = delete;
  Numbers& operator=(const Numbers&) = delete;

  std::int32_t* data() const { return static_cast<std::int32_t*>(memory_); }
  void write(const Ints& numbers) const {
    if (pinned_) std::ranges::copy(numbers, data());
    if (!pinned_) Gpu::get().copy(data(), numbers.data(), numbers.size() * sizeof(std::int32_t));
  }
  Ints read() const {
    Ints found(kRanks * kCount);
    if (pinned_) std::copy_n(data(), found.size(), found.begin());
    Gpu::get().use(device_);
    if (!pinned_) Gpu::get().copy(found.data(), data(), kBytes);
    return found;
  }

 private:
  const bool pinned_;
  const int device_;
  void* memory_ = nullptr;
};

/// The ranks' communicators and streams; these wait for a word until open() is called, or some seconds are over.
class Ranks {
 public:
  Ranks() {
    setenv("TUTTI_STAGING_BYTES", "4096", 1);
    REQUIRE(Gpu::why_not().empty());
    fake_driver::set_peers(false);
    const int devices[kRanks] = {0, 1};
    REQUIRE(ncclCommInitAll(comms, kRanks, devices) == ncclSuccess);
    gate_ = static_cast<std::uint32_t*>(Gpu::get().allocate_pinned(4096));
    for (int r = 0; r < kRanks; ++r) {
      Gpu::get().use(r);
      streams[r] = Gpu::get().make_stream();
    }
  }
  ~Ranks() {
    open();
    wait();
    for (ncclComm_t comm : comms) CHECK(ncclCommDestroy(comm) == ncclSuccess);
    for (CUstream stream : streams) Gpu::get().destroy(stream);
    Gpu::get().release_pinned(gate_);
    Gpu::get().use(0);
    fake_driver::set_peers(true);
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  void hold() {
    *gate_ = 0;
    is_late_ = is_open_ = false;
    for (CUstream stream : streams) Gpu::get().wait_for_word(stream, gate_, 1);
    waiter_ = std::thread([this] {
      const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(3);
      while (!is_open_ && std::chrono::steady_clock::now() < until) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      is_late_ = !is_open_;
      std::atomic_ref(*gate_).store(1);
    });
  }
  /// False: it was too late, somebody has waited for the streams.
  bool open() {
    is_open_ = true;
    if (waiter_.joinable()) waiter_.join();
    return !is_late_;
  }
  void wait() const {
    for (CUstream stream : streams) Gpu::get().wait(stream);
  }

  ncclComm_t comms[kRanks] = {};
  CUstream streams[kRanks] = {};

 private:
  std::uint32_t* gate_ = nullptr;
  std::thread waiter_;
  std::atomic<bool> is_open_{true};
  std::atomic<bool> is_late_{false};
};

}  // namespace

TEST_CASE("staged: calls on pinned buffers return before their streams have come to them", "[staged][pinned]") {
  const bool pinned_in = GENERATE(false, true);
  const bool pinned_out = GENERATE(false, true);
  CAPTURE(pinned_in, pinned_out);
  Ranks ranks;
  const Numbers in[kRanks] = {{pinned_in, 0}, {pinned_in, 1}};
  const Numbers out[kRanks] = {{pinned_out, 0}, {pinned_out, 1}};
  for (int r = 0; r < kRanks; ++r) in[r].write(values(r, kCount));
  const auto make = [&](const char* name, const std::function<ncclResult_t(int)>& call) {
    CAPTURE(name);
    ranks.hold();
    // One after the other: the first returns although the second has not been made.
    for (int r = 0; r < kRanks; ++r) REQUIRE(call(r) == ncclSuccess);
    CHECK(ranks.open());
    ranks.wait();
    for (ncclComm_t comm : ranks.comms) {
      ncclResult_t state = ncclSuccess;
      CHECK(ncclCommGetAsyncError(comm, &state) == ncclSuccess);
      CHECK(state == ncclSuccess);
    }
  };
  const auto check = [&](int rank, std::size_t count, const std::function<std::int32_t(std::size_t)>& wanted) {
    const Ints found = out[rank].read();
    for (std::size_t i = 0; i < count; ++i) {
      CAPTURE(i);
      REQUIRE(found[i] == wanted(i));
    }
  };
  make("sum", [&](int r) {
    return ncclAllReduce(in[r].data(), out[r].data(), kCount, ncclInt32, ncclSum, ranks.comms[r], ranks.streams[r]);
  });
  for (int r = 0; r < kRanks; ++r) check(r, kCount, [](std::size_t i) { return sum(kRanks, i); });
  make("gather", [&](int r) {
    return ncclAllGather(in[r].data(), out[r].data(), kCount, ncclInt32, ranks.comms[r], ranks.streams[r]);
  });
  for (int r = 0; r < kRanks; ++r) {
    check(r, kRanks * kCount, [](std::size_t i) { return value(static_cast<int>(i / kCount), i % kCount); });
  }
  make("message", [&](int r) {
    return r == 0 ? ncclRecv(out[0].data(), kCount, ncclInt32, 1, ranks.comms[0], ranks.streams[0])
                  : ncclSend(in[1].data(), kCount, ncclInt32, 0, ranks.comms[1], ranks.streams[1]);
  });
  check(0, kCount, [](std::size_t i) { return value(1, i); });
}

TEST_CASE("staged: a factor may lie in pinned memory", "[staged][pinned]") {
  Ranks ranks;
  const Numbers factor[kRanks] = {{true, 0}, {true, 1}};
  const Numbers numbers[kRanks] = {{false, 0}, {false, 1}};
  ncclRedOp_t ops[kRanks] = {};
  for (int r = 0; r < kRanks; ++r) {
    numbers[r].write(values(r, kCount));
    *factor[r].data() = r + 2;
    REQUIRE(ncclRedOpCreatePreMulSum(&ops[r], factor[r].data(), ncclInt32, ncclScalarDevice, ranks.comms[r]) ==
            ncclSuccess);
  }
  ranks.hold();
  for (int r = 0; r < kRanks; ++r) {
    REQUIRE(ncclAllReduce(numbers[r].data(), numbers[r].data(), kCount, ncclInt32, ops[r], ranks.comms[r],
                          ranks.streams[r]) == ncclSuccess);
  }
  CHECK(ranks.open());
  ranks.wait();
  for (int r = 0; r < kRanks; ++r) {
    const Ints found = numbers[r].read();
    for (std::size_t i = 0; i < kCount; ++i) REQUIRE(found[i] == 2 * value(0, i) + 3 * value(1, i));
    CHECK(ncclRedOpDestroy(ops[r], ranks.comms[r]) == ncclSuccess);
  }
}

TEST_CASE("staged: captured calls may have pinned buffers", "[staged][pinned]") {
  const Gpu& gpu = Gpu::get();
  Ranks ranks;
  const Numbers numbers[kRanks] = {{true, 0}, {true, 1}};
  CUgraph graphs[kRanks] = {};
  CUgraphExec executables[kRanks] = {};
  for (int r = 0; r < kRanks; ++r) {
    numbers[r].write(Ints(kCount, r + 1));
    gpu.use(r);
    gpu.begin_capture(ranks.streams[r]);
    REQUIRE(ncclAllReduce(numbers[r].data(), numbers[r].data(), kCount, ncclInt32, ncclSum, ranks.comms[r],
                          ranks.streams[r]) == ncclSuccess);
    graphs[r] = gpu.end_capture(ranks.streams[r]);
    REQUIRE(graphs[r] != nullptr);
    executables[r] = gpu.make_executable(graphs[r]);
  }
  for (int i = 0; i < 2; ++i) {
    for (int r = 0; r < kRanks; ++r) gpu.launch(executables[r], ranks.streams[r]);
  }
  ranks.wait();
  for (int r = 0; r < kRanks; ++r) {
    CHECK(numbers[r].data()[kCount - 1] == 6);
    gpu.destroy(executables[r]);
    gpu.destroy(graphs[r]);
  }
}

}  // namespace tutti::test
