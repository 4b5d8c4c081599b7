// Communicators that end while their kernels are still on streams.
#include "fake_driver.h"
#include "gpu.h"

#include <nccl.h>

#include <catch2/catch.hpp>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <thread>

namespace tutti::test {
namespace {

constexpr std::size_t kCount = 1000;

/// A call of two ranks, in the way of rank 1's stream a word.
class HeldUp {
 public:
  enum class Call { kSum, kSend };
  HeldUp(std::vector<int> devices, Call call, bool one_stream) : devices_(std::move(devices)) {
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    REQUIRE(Gpu::why_not().empty());
    const Gpu& gpu = Gpu::get();
    word_ = static_cast<std::uint32_t*>(gpu.allocate_pinned(4));
    *word_ = 0;
    REQUIRE(ncclCommInitAll(comms, 2, devices_.data()) == ncclSuccess);
    for (std::size_t r = 0; r < 2; ++r) {
      gpu.use(devices_[r]);
      buffers_.push_back(std::make_unique<OnGpu<std::int32_t>>(std::vector<std::int32_t>(kCount, 1)));
      streams_.push_back(one_stream && r > 0 ? streams_[0] : gpu.make_stream());
    }
    gpu.use(devices_[1]);
    gpu.wait_for_word(streams_[1], word_, 1);
    REQUIRE(ncclGroupStart() == ncclSuccess);
    for (std::size_t r = 0; r < 2; ++r) {
      std::int32_t* const data = buffers_[r]->data();
      if (call == Call::kSum) ncclAllReduce(data, data, kCount, ncclInt32, ncclSum, comms[r], streams_[r]);
      if (call == Call::kSend && r == 0) ncclSend(data, kCount, ncclInt32, 1, comms[r], streams_[r]);
      if (call == Call::kSend && r == 1) ncclRecv(data, kCount, ncclInt32, 0, comms[r], streams_[r]);
    }
    REQUIRE(ncclGroupEnd() == ncclSuccess);
    CHECK(gpu.query(streams_[1]) == CUDA_ERROR_NOT_READY);
  }
  ~HeldUp() {
    Gpu::get().destroy(streams_[0]);
    if (streams_[1] != streams_[0]) Gpu::get().destroy(streams_[1]);
    Gpu::get().release_pinned(word_);
    Gpu::get().use(0);
  }
  void let_go() const { std::atomic_ref(*word_).store(1); }
  bool is_let_go() const { return std::atomic_ref(*word_).load() != 0; }
  std::int32_t received() const { return buffers_[1]->read()[0]; }
  bool is_done() const { return Gpu::get().query(streams_[1]) == CUDA_SUCCESS; }
  void wait() const {
    for (CUstream stream : streams_) Gpu::get().wait(stream);
  }

  ncclComm_t comms[2] = {};

 private:
  std::vector<int> devices_;
  std::uint32_t* word_ = nullptr;
  std::vector<std::unique_ptr<OnGpu<std::int32_t>>> buffers_;
  std::vector<CUstream> streams_;
};

/// What is kept for streams goes when another communicator is made, and with that the rest.
void check_nothing_left(const fake_driver::Live& before) {
  const int device = 0;
  ncclComm_t comm = nullptr;
  REQUIRE(ncclCommInitAll(&comm, 1, &device) == ncclSuccess);
  CHECK(ncclCommDestroy(comm) == ncclSuccess);
  fake_driver::Live now = fake_driver::live();
  now.contexts = before.contexts;  // the test's own
  INFO(fake_driver::describe(before) << "\nnow: " << fake_driver::describe(now));
  CHECK(now == before);
}

}  // namespace

TEST_CASE("device: kernels stay loaded until the streams have come to them", "[device][leaving]") {
  const bool aborts = GENERATE(false, true);
  const auto devices = GENERATE(std::vector{0, 0}, std::vector{0, 1});
  const bool one_stream = devices[1] == 0 && GENERATE(false, true);
  const fake_driver::Live before = fake_driver::live();
  {
    // No collective, which may go as lines: those ncclCommDestroy waits for.
    const HeldUp call(devices, HeldUp::Call::kSend, one_stream);
    for (ncclComm_t comm : call.comms) CHECK((aborts ? ncclCommAbort : ncclCommDestroy)(comm) == ncclSuccess);
    CHECK_FALSE(call.is_done());
    CHECK(fake_driver::live().modules > 0);
    call.let_go();
    call.wait();
  }
  check_nothing_left(before);
}

TEST_CASE("device: ncclCommFinalize waits for what is on the streams", "[device][leaving]") {
  const auto devices = GENERATE(std::vector{0, 0}, std::vector{0, 1});
  const bool sums = GENERATE(false, true);
  const HeldUp call(devices, sums ? HeldUp::Call::kSum : HeldUp::Call::kSend, false);
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    call.let_go();
  });
  for (ncclComm_t comm : call.comms) CHECK(ncclCommFinalize(comm) == ncclSuccess);
  CHECK(call.is_let_go());
  CHECK(call.received() == (sums ? 2 : 1));
  later.join();
  for (ncclComm_t comm : call.comms) CHECK(ncclCommDestroy(comm) == ncclSuccess);
  call.wait();
}

TEST_CASE("device: ncclCommFinalize does not wait for calls of other ranks", "[device][leaving]") {
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  REQUIRE(Gpu::why_not().empty());
  const Gpu& gpu = Gpu::get();
  gpu.use(0);
  auto* const word = static_cast<std::uint32_t*>(gpu.allocate_pinned(4));
  *word = 0;
  ncclComm_t comms[3];
  const int devices[3] = {0, 0, 0};
  REQUIRE(ncclCommInitAll(comms, 3, devices) == ncclSuccess);
  {
    const OnGpu<std::int32_t> memory({1, 2});
    CUstream stream = gpu.make_stream();
    gpu.wait_for_word(stream, word, 1);
    REQUIRE(ncclGroupStart() == ncclSuccess);
    ncclSend(memory.data(), 1, ncclInt32, 2, comms[1], stream);
    ncclRecv(memory.data() + 1, 1, ncclInt32, 1, comms[2], stream);
    REQUIRE(ncclGroupEnd() == ncclSuccess);
    CHECK(ncclCommFinalize(comms[0]) == ncclSuccess);
    CHECK(gpu.query(stream) == CUDA_ERROR_NOT_READY);
    std::atomic_ref(*word).store(1);
    gpu.destroy(stream);  // whose handle nobody uses any more
    for (ncclComm_t comm : comms) CHECK(ncclCommFinalize(comm) == ncclSuccess);
    CHECK(memory.read()[1] == 1);
  }
  for (ncclComm_t comm : comms) CHECK(ncclCommDestroy(comm) == ncclSuccess);
  gpu.release_pinned(word);
}

TEST_CASE("device: kernels stay loaded whose stream was destroyed, and has given its handle to another one",
          "[device][leaving]") {
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  REQUIRE(Gpu::why_not().empty());
  const Gpu& gpu = Gpu::get();
  gpu.use(0);
  fake_driver::set_quick_ends(true);
  auto* const word = static_cast<std::uint32_t*>(gpu.allocate_pinned(4));
  *word = 0;
  ncclComm_t comms[2];
  const int devices[2] = {0, 0};
  REQUIRE(ncclCommInitAll(comms, 2, devices) == ncclSuccess);
  {
    const OnGpu<std::int32_t> memory({1, 2, 3, 4});
    const auto send = [&](std::size_t from, std::size_t to, CUstream stream) {
      REQUIRE(ncclGroupStart() == ncclSuccess);
      ncclSend(memory.data() + from, 1, ncclInt32, 1, comms[0], stream);
      ncclRecv(memory.data() + to, 1, ncclInt32, 0, comms[1], stream);
      REQUIRE(ncclGroupEnd() == ncclSuccess);
    };
    const CUstream held = gpu.make_stream();
    gpu.wait_for_word(held, word, 1);
    send(0, 1, held);
    gpu.destroy(held);
    const CUstream next = gpu.make_stream();
    REQUIRE(next == held);
    send(2, 3, next);
    gpu.wait(next);
    CHECK(memory.read() == std::vector<std::int32_t>{1, 2, 3, 3});
    for (ncclComm_t comm : comms) CHECK(ncclCommDestroy(comm) == ncclSuccess);
    CHECK(fake_driver::live().modules > 0);
    std::atomic_ref(*word).store(1);
    for (int look = 0; look < 5000 && memory.read()[1] != 1; ++look)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(memory.read()[1] == 1);
    gpu.destroy(next);
  }
  gpu.release_pinned(word);
  fake_driver::set_quick_ends(false);
}

}  // namespace tutti::test
