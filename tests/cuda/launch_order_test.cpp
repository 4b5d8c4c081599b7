// What several communicators of one process put on the same streams: in which order it comes there, and what waits for what.
#include "fake_driver.h"
#include "gpu.h"

#include <nccl.h>

#include <catch2/catch.hpp>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <thread>

namespace tutti::test {
namespace {

/// Ranks on these devices, each with a stream, in several communicators.
class Crowd {
 public:
  explicit Crowd(std::vector<int> devices, int communicators = 1) : devices_(std::move(devices)) {
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    REQUIRE(Gpu::why_not().empty());
    for (int c = 0; c < communicators; ++c) {
      auto& comms = comms_.emplace_back(devices_.size());
      REQUIRE(ncclCommInitAll(comms.data(), static_cast<int>(devices_.size()), devices_.data()) == ncclSuccess);
    }
    for (const int device : devices_) {
      Gpu::get().use(device);
      streams_.push_back(Gpu::get().make_stream());
      REQUIRE(ncclCommInitAll(&lone_.emplace_back(), 1, &device) == ncclSuccess);
    }
  }
  ~Crowd() {
    comms_.push_back(lone_);
    for (const auto& comms : comms_) {
      for (ncclComm_t comm : comms) ncclCommAbort(comm);
    }
    for (CUstream stream : streams_) Gpu::get().destroy(stream);
    Gpu::get().use(0);
  }
  Crowd(const Crowd&) = delete;
  Crowd& operator=(const Crowd&) = delete;

  /// Amid a group: takes a while, in which other threads' groups come in between.
  void dawdle(int rank) const {
    ncclAllReduce(nullptr, nullptr, 0, ncclInt32, ncclSum, lone_[static_cast<std::size_t>(rank)], CU_STREAM_PER_THREAD);
  }
  int ranks() const { return static_cast<int>(devices_.size()); }
  void use(int rank) const { Gpu::get().use(devices_[static_cast<std::size_t>(rank)]); }
  ncclComm_t comm(int communicator, int rank) const { return comms_[communicator][static_cast<std::size_t>(rank)]; }
  CUstream stream(int rank) const { return streams_[static_cast<std::size_t>(rank)]; }
  void in_threads(const std::function<void(int)>& work) const {
    std::vector<std::thread> threads;
    for (int r = 0; r < ranks(); ++r) {
      threads.emplace_back([&, r] {
        use(r);
        work(r);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  bool end_soon() const {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    for (CUstream stream : streams_) {
      while (Gpu::get().query(stream) != CUDA_SUCCESS) {
        if (std::chrono::steady_clock::now() > limit) return false;
        std::this_thread::yield();
      }
    }
    return true;
  }

 private:
  std::vector<int> devices_;
  std::vector<std::vector<ncclComm_t>> comms_;
  std::vector<ncclComm_t> lone_;
  std::vector<CUstream> streams_;
};

class Napping {
 public:
  Napping() { fake_driver::set_naps(true); }
  ~Napping() { fake_driver::set_naps(false); }
};

constexpr std::size_t kCount = 100;
constexpr int kGroups = 40;

}  // namespace

TEST_CASE("device: groups of two communicators come to all GPUs in the same order", "[device][order]") {
  const bool crosses = GENERATE(false, true);  // the second call joins the GPUs' streams by events
  const Crowd crowd({0, 1, 0, 1}, 2);
  const Napping naps;
  std::vector<std::unique_ptr<OnGpu<std::int32_t>>> buffers;
  for (int r = 0; r < 8; ++r) {
    crowd.use(r % 4);
    buffers.push_back(std::make_unique<OnGpu<std::int32_t>>(std::vector<std::int32_t>(kCount)));
  }
  std::vector<ncclResult_t> results(4, ncclSuccess);
  crowd.in_threads([&](int r) {
    std::int32_t* const own = buffers[static_cast<std::size_t>(r)]->data();
    std::int32_t* const other = buffers[static_cast<std::size_t>(4 + r)]->data();
    CUstream stream = crowd.stream(r);
    for (int i = 0; i < kGroups; ++i) {
      ncclGroupStart();
      ncclAllReduce(own, own, kCount, ncclInt32, ncclSum, crowd.comm(0, r), stream);
      crowd.dawdle(r);
      if (!crosses) ncclAllReduce(other, other, kCount, ncclInt32, ncclSum, crowd.comm(1, r), stream);
      if (crosses && r % 2 == 0) ncclSend(other, kCount, ncclInt32, r + 1, crowd.comm(1, r), stream);
      if (crosses && r % 2 == 1) ncclRecv(other, kCount, ncclInt32, r - 1, crowd.comm(1, r), stream);
      const ncclResult_t ended = ncclGroupEnd();
      if (ended != ncclSuccess) results[static_cast<std::size_t>(r)] = ended;
    }
  });
  CHECK(results == std::vector<ncclResult_t>(4, ncclSuccess));
  CHECK(crowd.end_soon());
}

TEST_CASE("device: calls of a group on two communicators of the same ranks stay in order", "[device][order]") {
  const Crowd crowd(GENERATE(std::vector{0, 0, 0, 0}, std::vector{0, 1, 0, 1}), 2);
  const Napping naps;
  std::vector<std::unique_ptr<OnGpu<std::int32_t>>> buffers;
  for (int r = 0; r < 4; ++r) {
    crowd.use(r);
    buffers.push_back(std::make_unique<OnGpu<std::int32_t>>(std::vector<std::int32_t>(kCount)));
  }
  fake_driver::note_given();
  crowd.in_threads([&](int r) {
    void* const own = buffers[static_cast<std::size_t>(r)]->data();
    for (int i = 0; i < kGroups; ++i) {
      ncclGroupStart();
      ncclAllReduce(own, own, kCount, ncclInt32, ncclMax, crowd.comm(0, r), crowd.stream(r));
      crowd.dawdle(r);
      ncclAllReduce(own, own, kCount, ncclUint32, ncclMax, crowd.comm(1, r), crowd.stream(r));
      ncclGroupEnd();
    }
  });
  CHECK(crowd.end_soon());
  std::map<CUstream, std::vector<std::string>> kernels;
  for (const fake_driver::Given& one : fake_driver::given()) {
    if (one.what == fake_driver::Given::What::kKernel) kernels[one.stream].push_back(one.kernel);
  }
  for (const auto& [stream, names] : kernels) {
    REQUIRE(names.size() == 2 * kGroups);
    for (std::size_t i = 0; i < names.size(); ++i) REQUIRE(names[i].ends_with(i % 2 == 0 ? "_int32" : "_uint32"));
  }
}

namespace {

/// Of ranks 0 and 1, and 2 and 3, in one group.
class Pairs {
 public:
  explicit Pairs(std::vector<int> devices) : crowd_(std::move(devices)) {
    for (int r = 0; r < 4; ++r) {
      crowd_.use(r);
      buffers_.push_back(std::make_unique<OnGpu<std::int32_t>>(std::vector<std::int32_t>(kCount, r + 1)));
    }
  }
  CUstream stream(int rank) const { return crowd_.stream(rank); }
  ncclResult_t send() const {
    ncclGroupStart();
    for (int r = 0; r < 4; r += 2) {
      ncclSend(data(r), kCount, ncclInt32, r + 1, crowd_.comm(0, r), stream(r));
      ncclRecv(data(r + 1), kCount, ncclInt32, r, crowd_.comm(0, r + 1), stream(r + 1));
    }
    return ncclGroupEnd();
  }
  void check_received(int rank) const {
    CHECK(buffers_[static_cast<std::size_t>(rank)]->read() == std::vector<std::int32_t>(kCount, rank));
  }

 private:
  std::int32_t* data(int rank) const { return buffers_[static_cast<std::size_t>(rank)]->data(); }
  Crowd crowd_;
  std::vector<std::unique_ptr<OnGpu<std::int32_t>>> buffers_;
};

}  // namespace

TEST_CASE("device: what pairs of ranks send in one group waits for their own streams alone", "[device][order]") {
  const std::vector<int> devices = GENERATE(std::vector{0, 0, 0, 0}, std::vector{0, 0, 1, 1});
  const Pairs pairs(devices);
  const Gpu& gpu = Gpu::get();
  auto* const word = static_cast<std::uint32_t*>(gpu.allocate_pinned(4));
  *word = 0;
  gpu.use(devices[2]);
  gpu.wait_for_word(pairs.stream(2), word, 1);
  fake_driver::note_given();
  REQUIRE(pairs.send() == ncclSuccess);
  for (const fake_driver::Given& one : fake_driver::given()) {
    if (one.what != fake_driver::Given::What::kKernel) continue;
    CHECK((one.stream == pairs.stream(0) || one.stream == pairs.stream(2)));
  }
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  const auto is_late = [&] { return std::chrono::steady_clock::now() > limit; };
  while (gpu.query(pairs.stream(1)) != CUDA_SUCCESS && !is_late()) std::this_thread::yield();
  CHECK_FALSE(is_late());
  CHECK(gpu.query(pairs.stream(3)) == CUDA_ERROR_NOT_READY);
  std::atomic_ref(*word).store(1);
  for (int r = 0; r < 4; ++r) gpu.wait(pairs.stream(r));
  pairs.check_received(1);
  pairs.check_received(3);
  gpu.release_pinned(word);
}

TEST_CASE("device: of a group's sends some are captured into a graph", "[device][order]") {
  const Pairs pairs({0, 0, 0, 0});
  const Gpu& gpu = Gpu::get();
  gpu.use(0);
  gpu.begin_capture(pairs.stream(0), CU_STREAM_CAPTURE_MODE_RELAXED);
  gpu.order(pairs.stream(0), pairs.stream(1));
  CHECK(pairs.send() == ncclSuccess);
  INFO(ncclGetLastError(nullptr));
  gpu.order(pairs.stream(1), pairs.stream(0));
  CUgraph graph = gpu.end_capture(pairs.stream(0));
  REQUIRE(graph != nullptr);
  gpu.wait(pairs.stream(3));
  pairs.check_received(3);
  CUgraphExec executable = gpu.make_executable(graph);
  gpu.launch(executable, pairs.stream(0));
  gpu.wait(pairs.stream(0));
  pairs.check_received(1);
  gpu.destroy(executable);
  gpu.destroy(graph);
}

TEST_CASE("device: a chain of sends is one launch", "[device][order]") {
  const Crowd crowd({0, 0, 0, 0});
  const OnGpu<std::int32_t> from(std::vector<std::int32_t>(4 * kCount, 1));
  const OnGpu<std::int32_t> to(std::vector<std::int32_t>(4 * kCount, 2));
  const std::uint64_t before = fake_driver::launches();
  ncclGroupStart();
  for (int r = 0; r < 4; ++r) {
    const std::size_t at = static_cast<std::size_t>(r) * kCount;
    ncclSend(from.data() + at, kCount, ncclInt32, (r + 1) % 4, crowd.comm(0, r), crowd.stream(r));
    ncclRecv(to.data() + at, kCount, ncclInt32, (r + 3) % 4, crowd.comm(0, r), crowd.stream(r));
  }
  REQUIRE(ncclGroupEnd() == ncclSuccess);
  CHECK(fake_driver::launches() == before + 1);
  CHECK(crowd.end_soon());
  CHECK(to.read() == from.read());
}

}  // namespace tutti::test
