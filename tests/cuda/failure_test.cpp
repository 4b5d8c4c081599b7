// Every CUDA call fails once: whatever the library was doing, it says which call failed, leaves nothing behind, and works afterwards.
#include "fake_driver.h"
#include "gpu.h"
#include "turn.h"

#include <nccl.h>
#include <tutti/tutti.h>

#include <catch2/catch.hpp>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <set>
#include <thread>

namespace tutti::test {
namespace {

constexpr int kRanks = 3;
constexpr std::size_t kCount = 300;
/// Of how many calls one fails at a time: fewer with a sanitizer, which makes each many times slower.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::size_t kShare = 12;
#else
constexpr std::size_t kShare = 4;
#endif

/// Calls of the library count as driver calls, the test's own do not.
class Counted {
 public:
  Counted() { fake_driver::set_counting(true); }
  ~Counted() { fake_driver::set_counting(false); }
};

/// What the test itself needs, made before anything fails.
struct Fixture {
  std::vector<std::unique_ptr<OnGpu<std::int32_t>>> buffers;
  std::vector<CUstream> streams;
  std::vector<int> devices;

  explicit Fixture(std::vector<int> on = {0, 0, 0}) : devices(std::move(on)) {
    REQUIRE(Gpu::why_not().empty());
    for (int r = kRanks - 1; r >= 0; --r) Gpu::get().use(devices[static_cast<std::size_t>(r)]);
    for (int r = 0; r < kRanks; ++r) {
      Gpu::get().use(devices[static_cast<std::size_t>(r)]);
      buffers.push_back(std::make_unique<OnGpu<std::int32_t>>(std::vector<std::int32_t>(kRanks * kCount, r + 1)));
      streams.push_back(Gpu::get().make_stream());
    }
    Gpu::get().use(0);
  }
  ~Fixture() {
    for (CUstream stream : streams) Gpu::get().destroy(stream);
  }
  void fill() const {
    for (int r = 0; r < kRanks; ++r) {
      buffers[static_cast<std::size_t>(r)]->write(std::vector<std::int32_t>(kRanks * kCount, r + 1));
    }
  }
};

/// Remembers the first failure; what it says must name the driver's function that failed.
class Outcome {
 public:
  ncclResult_t operator()(ncclResult_t result) {
    if (result != ncclSuccess && result_ == ncclSuccess) {
      result_ = result;
      reason_ = ncclGetLastError(nullptr);
    }
    return result;
  }
  ncclResult_t result() const { return result_; }
  const std::string& reason() const { return reason_; }

 private:
  ncclResult_t result_ = ncclSuccess;
  std::string reason_;
};

template <class Call>
void group(Outcome& outcome, const std::vector<ncclComm_t>& comms, Call call) {
  const Counted counted;
  outcome(ncclGroupStart());
  for (std::size_t r = 0; r < comms.size(); ++r) outcome(call(r));
  outcome(ncclGroupEnd());
}

void all_reduce(Outcome& outcome, const Fixture& f, const std::vector<ncclComm_t>& comms) {
  group(outcome, comms, [&](std::size_t r) {
    return ncclAllReduce(f.buffers[r]->data(), f.buffers[r]->data(), kCount, ncclInt32, ncclSum, comms[r],
                         f.streams[r]);
  });
}

void capture(Outcome& outcome, const Fixture& f, const std::vector<ncclComm_t>& comms) {
  const Gpu& gpu = Gpu::get();
  gpu.begin_capture(f.streams[0]);
  for (int r = 1; r < kRanks; ++r) gpu.order(f.streams[0], f.streams[static_cast<std::size_t>(r)]);
  all_reduce(outcome, f, comms);
  for (int r = 1; r < kRanks; ++r) gpu.order(f.streams[static_cast<std::size_t>(r)], f.streams[0]);
  CUgraph graph = gpu.end_capture(f.streams[0]);
  if (!graph) return;
  if (outcome.result() == ncclSuccess) {
    CUgraphExec executable = gpu.make_executable(graph);
    gpu.launch(executable, f.streams[0]);
    gpu.wait(f.streams[0]);
    gpu.destroy(executable);
  }
  gpu.destroy(graph);
}

/// Communicators from beginning to end, with everything that calls CUDA.
Outcome everything(const Fixture& f) {
  Outcome outcome;
  std::vector<ncclComm_t> comms(kRanks);
  f.fill();
  {
    const Counted counted;
    outcome(ncclCommInitAll(comms.data(), kRanks, f.devices.data()));
  }
  if (outcome.result() != ncclSuccess) return outcome;
  const fake_driver::Live made = fake_driver::live();
  all_reduce(outcome, f, comms);
  // What calls need a communicator has from its beginning on.
  CHECK(fake_driver::live().device_bytes == made.device_bytes);
  group(outcome, comms, [&](std::size_t r) {
    return ncclAlltoAll(f.buffers[r]->data(), f.buffers[r]->data(), kCount, ncclInt32, comms[r], f.streams[r]);
  });
  capture(outcome, f, comms);
  {
    const Counted counted;
    void* memory = nullptr;
    if (outcome(ncclMemAlloc(&memory, 4096)) == ncclSuccess) {
      void* registered = nullptr;
      if (outcome(ncclCommRegister(comms[0], memory, 4096, &registered)) == ncclSuccess) {
        outcome(ncclCommDeregister(comms[0], registered));
      }
      if (outcome(ncclMemFree(memory)) != ncclSuccess) (void)ncclMemFree(memory);  // not a second time, if it was freed
    }
  }
  std::vector<ncclComm_t> parts(kRanks);
  group(outcome, comms,
        [&](std::size_t r) { return ncclCommSplit(comms[r], 0, static_cast<int>(r), &parts[r], nullptr); });
  {
    const Counted counted;
    for (ncclComm_t part : parts) outcome(part ? ncclCommDestroy(part) : ncclSuccess);
    for (ncclComm_t comm : comms) outcome(ncclCommDestroy(comm));
  }
  for (CUstream stream : f.streams) Gpu::get().wait(stream);
  return outcome;
}

bool all_are(const Fixture& f, std::int32_t wanted) {
  for (const auto& buffer : f.buffers) {
    const std::vector<std::int32_t> found = buffer->read();
    for (std::size_t i = 0; i < kCount; ++i) {
      if (found[i] != wanted) return false;
    }
  }
  return true;
}

}  // namespace

TEST_CASE("device: every CUDA call fails once, and nothing is left", "[device][failure]") {
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  // All ranks on one device, and on two.
  const Fixture f(GENERATE(std::vector<int>{0, 0, 0}, std::vector<int>{0, 1, 0}));
  REQUIRE(everything(f).result() == ncclSuccess);  // the driver is open now
  const fake_driver::Live before = fake_driver::live();
  const std::uint64_t start = fake_driver::calls();
  REQUIRE(everything(f).result() == ncclSuccess);
  const std::uint64_t total = fake_driver::calls() - start;
  REQUIRE(total > 60);
  std::set<std::string> failed;
  std::uint64_t tried = 0;
  for (std::uint64_t k = 1; k <= total; ++k) {
    if (!tutti::test::has_its_turn(k, kShare)) continue;
    ++tried;
    fake_driver::fail_after(k, CUDA_ERROR_OUT_OF_MEMORY);
    const Outcome outcome = everything(f);
    const std::string function = fake_driver::failed_function();
    fake_driver::fail_after(0, CUDA_SUCCESS);
    CAPTURE(k, total, function, outcome.reason());
    failed.insert(function);
    // What only ends something, or comes before such a call, may go unreported; all else is, with the function's name.
    const bool ends = function.find("Free") != std::string::npos || function.find("Destroy") != std::string::npos ||
                      function.find("Release") != std::string::npos || function.find("Unload") != std::string::npos ||
                      function == "cuEventQuery" || function == "cuCtxPopCurrent" || function == "cuCtxPushCurrent" ||
                      function == "cuThreadExchangeStreamCaptureMode";
    if (!ends) {
      CHECK(outcome.result() != ncclSuccess);
      CHECK_THAT(outcome.reason(), Catch::Contains(function) || Catch::Contains("CUDA_ERROR_OUT_OF_MEMORY"));
    }
    const fake_driver::Live after = fake_driver::live();
    INFO("before " << fake_driver::describe(before) << "\nafter  " << fake_driver::describe(after));
    REQUIRE(after == before);
  }
  CHECK(failed.size() > (tried == total ? 15 : 28 / kShare));
  f.fill();
  REQUIRE(everything(f).result() == ncclSuccess);
  CHECK(fake_driver::live() == before);
}

TEST_CASE("device: a rank that waits for others is let go by an abort", "[device][failure]") {
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  const Fixture f;
  std::vector<ncclComm_t> comms(kRanks);
  const std::vector<int> devices(kRanks, 0);
  REQUIRE(ncclCommInitAll(comms.data(), kRanks, devices.data()) == ncclSuccess);
  ncclResult_t result = ncclSuccess;
  std::thread waits([&] {
    Gpu::get().use(0);
    result =
        ncclAllReduce(f.buffers[0]->data(), f.buffers[0]->data(), kCount, ncclInt32, ncclSum, comms[0], f.streams[0]);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(ncclCommAbort(comms[1]) == ncclSuccess);
  waits.join();
  CHECK(result == ncclRemoteError);
  ncclResult_t state = ncclSuccess;
  CHECK(ncclCommGetAsyncError(comms[2], &state) == ncclSuccess);
  CHECK(state == ncclRemoteError);
  CHECK(ncclCommAbort(comms[0]) == ncclSuccess);
  CHECK(ncclCommAbort(comms[2]) == ncclSuccess);
  // Nothing of it went to a stream.
  for (CUstream stream : f.streams) Gpu::get().wait(stream);
  CHECK(f.buffers[0]->read()[0] == 1);
}

TEST_CASE("device: kernels that wait for a stream that is held up are let go by an abort", "[device][failure]") {
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  const Fixture f({0, 1, 2});
  const Gpu& gpu = Gpu::get();
  auto* const word = static_cast<std::uint32_t*>(gpu.allocate_pinned(4));
  *word = 0;
  std::vector<ncclComm_t> comms(kRanks);
  REQUIRE(ncclCommInitAll(comms.data(), kRanks, f.devices.data()) == ncclSuccess);
  char text[4096];
  REQUIRE(tuttiExplain(comms[0], tuttiAllReduce, kCount, ncclInt32, ncclSum, 0, text, sizeof text, nullptr) ==
          ncclSuccess);
  REQUIRE_THAT(text,
               Catch::Contains("path: one-shot lines: by the table") || Catch::Contains("path: lanes: by NCCL_ALGO"));
  gpu.wait_for_word(f.streams[1], word, 1);
  Outcome outcome;
  all_reduce(outcome, f, comms);
  REQUIRE(outcome.result() == ncclSuccess);
  for (int i = 0; i < 50; ++i) CHECK(gpu.query(f.streams[0]) == CUDA_ERROR_NOT_READY);
  CHECK(ncclCommAbort(comms[2]) == ncclSuccess);
  gpu.wait(f.streams[0]);
  gpu.wait(f.streams[2]);
  CHECK(f.buffers[0]->read()[0] == 1);
  CHECK(f.buffers[2]->read()[0] == 3);
  ncclResult_t state = ncclSuccess;
  CHECK(ncclCommGetAsyncError(comms[0], &state) == ncclSuccess);
  CHECK(state == ncclRemoteError);
  std::atomic_ref(*word).store(1);
  gpu.wait(f.streams[1]);
  CHECK(ncclCommAbort(comms[0]) == ncclSuccess);
  CHECK(ncclCommAbort(comms[1]) == ncclSuccess);
  gpu.release_pinned(word);
}

TEST_CASE("device: an abort leaves calls whose stream is held up what they use", "[device][failure]") {
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  const Fixture f({0, 1, 2});
  const Gpu& gpu = Gpu::get();
  auto* const word = static_cast<std::uint32_t*>(gpu.allocate_pinned(4));
  *word = 0;
  const fake_driver::Live before = fake_driver::live();
  std::vector<ncclComm_t> comms(kRanks);
  REQUIRE(ncclCommInitAll(comms.data(), kRanks, f.devices.data()) == ncclSuccess);
  const fake_driver::Live used = fake_driver::live();
  gpu.wait_for_word(f.streams[1], word, 1);
  Outcome outcome;
  all_reduce(outcome, f, comms);
  REQUIRE(outcome.result() == ncclSuccess);
  for (ncclComm_t comm : comms) CHECK(ncclCommAbort(comm) == ncclSuccess);
  const fake_driver::Live kept = fake_driver::live();
  INFO("used: " << fake_driver::describe(used) << "; after the aborts: " << fake_driver::describe(kept));
  CHECK(kept.device_allocations >= used.device_allocations);  // lanes allocate more with the first call
  std::atomic_ref(*word).store(1);
  for (CUstream stream : f.streams) gpu.wait(stream);
  ncclComm_t alone = nullptr;
  REQUIRE(ncclCommInitAll(&alone, 1, f.devices.data()) == ncclSuccess);
  REQUIRE(ncclCommDestroy(alone) == ncclSuccess);
  CHECK(fake_driver::live().device_allocations == before.device_allocations);
  gpu.release_pinned(word);
}

TEST_CASE("device: a rank that left, and calls that differ, are named", "[device][failure]") {
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  const Fixture f;
  std::vector<ncclComm_t> comms(kRanks);
  const std::vector<int> devices(kRanks, 0);
  REQUIRE(ncclCommInitAll(comms.data(), kRanks, devices.data()) == ncclSuccess);
  REQUIRE(ncclGroupStart() == ncclSuccess);
  for (std::size_t r = 0; r < kRanks; ++r) {
    REQUIRE(ncclAllReduce(f.buffers[r]->data(), f.buffers[r]->data(), r == 1 ? 7 : 5, ncclInt32, ncclSum, comms[r],
                          f.streams[r]) == ncclSuccess);
  }
  CHECK(ncclGroupEnd() == ncclInvalidUsage);
  CHECK_THAT(ncclGetLastError(nullptr),
             Catch::Contains("count 7 int32 sum on rank 1") && Catch::Contains("rank 0, rank 2"));
  // Nobody's memory was touched, and the communicator goes on.
  Outcome outcome;
  all_reduce(outcome, f, comms);
  CHECK(outcome.result() == ncclSuccess);
  for (CUstream stream : f.streams) Gpu::get().wait(stream);
  CHECK(all_are(f, 6));
  CHECK(ncclCommDestroy(comms[2]) == ncclSuccess);
  ncclResult_t results[2] = {};
  std::thread other([&] {
    Gpu::get().use(0);
    results[1] =
        ncclAllReduce(f.buffers[1]->data(), f.buffers[1]->data(), 1, ncclInt32, ncclSum, comms[1], f.streams[1]);
  });
  results[0] = ncclAllReduce(f.buffers[0]->data(), f.buffers[0]->data(), 1, ncclInt32, ncclSum, comms[0], f.streams[0]);
  other.join();
  CHECK(results[0] == ncclRemoteError);
  CHECK(results[1] == ncclRemoteError);
  CHECK_THAT(ncclGetLastError(nullptr), Catch::Contains("rank 2 has left"));
  CHECK(ncclCommDestroy(comms[0]) == ncclSuccess);
  CHECK(ncclCommDestroy(comms[1]) == ncclSuccess);
}

TEST_CASE("device: a call in no group that cannot be made is refused", "[device][failure]") {
  const Fixture f;
  ncclComm_t comm = nullptr;
  REQUIRE(ncclCommInitAll(&comm, 1, f.devices.data()) == ncclSuccess);
  std::int32_t* const a = f.buffers[0]->data();
  const auto refused = [&](ncclResult_t result, const char* why) {
    CHECK(result == ncclInvalidUsage);
    CHECK_THAT(ncclGetLastError(comm), Catch::Contains(why));
  };
  refused(ncclSend(a, 10, ncclInt32, 0, comm, f.streams[0]),
          "rank 0 sends to itself 1 times and receives from itself 0 times");
  refused(ncclRecv(a, 10, ncclInt32, 0, comm, f.streams[0]),
          "rank 0 sends to itself 0 times and receives from itself 1 times");
  CHECK(ncclAllReduce(a, f.buffers[1]->data(), 10, ncclInt32, ncclSum, comm, f.streams[0]) == ncclSuccess);
  Gpu::get().wait(f.streams[0]);
  CHECK(f.buffers[1]->read()[9] == 1);
  REQUIRE(ncclCommFinalize(comm) == ncclSuccess);
  refused(ncclAllReduce(a, a, 10, ncclInt32, ncclSum, comm, f.streams[0]),
          "ncclCommFinalize was the communicator's last");
  CHECK(ncclCommDestroy(comm) == ncclSuccess);
}

TEST_CASE("device: memory that a call cannot use is refused by name", "[device][failure]") {
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  const Fixture f;
  ncclComm_t comm = nullptr;
  const int device = 0;
  REQUIRE(ncclCommInitAll(&comm, 1, &device) == ncclSuccess);
  std::vector<std::int32_t> plain(10);
  CHECK(ncclAllReduce(plain.data(), f.buffers[0]->data(), 10, ncclInt32, ncclSum, comm, nullptr) ==
        ncclInvalidArgument);
  CHECK_THAT(ncclGetLastError(comm), Catch::Contains("sendbuff") && Catch::Contains("TUTTI_DEVICE=host"));
  ncclComm_t pair[2] = {};
  const int devices[2] = {0, 0};
  REQUIRE(ncclCommInitAll(pair, 2, devices) == ncclSuccess);
  CHECK(ncclBcast(plain.data(), 10, ncclInt32, 0, pair[1], nullptr) == ncclInvalidArgument);
  CHECK_THAT(ncclGetLastError(pair[1]), Catch::Contains("ncclBcast: buff ") && Catch::Contains("TUTTI_DEVICE=host"));
  for (const ncclComm_t each : pair) CHECK(ncclCommAbort(each) == ncclSuccess);
  // Pinned host memory is as good as a device's.
  auto* const pinned = static_cast<std::int32_t*>(Gpu::get().allocate_pinned(40));
  pinned[3] = 5;
  CHECK(ncclAllReduce(pinned, f.buffers[0]->data(), 10, ncclInt32, ncclSum, comm, f.streams[0]) == ncclSuccess);
  Gpu::get().wait(f.streams[0]);
  CHECK(f.buffers[0]->read()[3] == 5);
  Gpu::get().release_pinned(pinned);
  cudaStream_t host_stream = nullptr;
  REQUIRE(tuttiStreamCreate(&host_stream) == ncclSuccess);
  CHECK(ncclAllReduce(f.buffers[0]->data(), f.buffers[0]->data(), 10, ncclInt32, ncclSum, comm, host_stream) ==
        ncclInvalidArgument);
  CHECK_THAT(ncclGetLastError(comm), Catch::Contains("host stream"));
  REQUIRE(tuttiStreamDestroy(host_stream) == ncclSuccess);

  // A communicator on host memory, in the same process.
  REQUIRE(tuttiSetDevice(tuttiDeviceHost) == ncclSuccess);
  ncclComm_t host = nullptr;
  REQUIRE(ncclCommInitAll(&host, 1, &device) == ncclSuccess);
  REQUIRE(tuttiSetDevice(tuttiDeviceAuto) == ncclSuccess);
  plain[0] = 3;
  CHECK(ncclAllReduce(plain.data(), plain.data(), 10, ncclInt32, ncclSum, host, nullptr) == ncclSuccess);
  CHECK(ncclAllReduce(f.buffers[0]->data(), plain.data(), 10, ncclInt32, ncclSum, host, nullptr) ==
        ncclInvalidArgument);
  CHECK_THAT(ncclGetLastError(host), Catch::Contains("memory of GPU 0"));
  CHECK(ncclCommDestroy(host) == ncclSuccess);
  CHECK(ncclCommDestroy(comm) == ncclSuccess);
}

TEST_CASE("device: a factor of which the driver does not say where it lies is refused", "[device][failure]") {
  REQUIRE(Gpu::why_not().empty());
  ncclComm_t comm = nullptr;
  const int device = 0;
  REQUIRE(ncclCommInitAll(&comm, 1, &device) == ncclSuccess);
  const OnGpu<float> factor({2});
  ncclRedOp_t op = ncclSum;
  {
    const Counted counted;
    fake_driver::fail_after(1, CUDA_ERROR_LAUNCH_FAILED);
    CHECK(ncclRedOpCreatePreMulSum(&op, factor.data(), ncclFloat32, ncclScalarDevice, comm) == ncclUnhandledCudaError);
  }
  CHECK_THAT(ncclGetLastError(comm), Catch::Contains("cuPointerGetAttributes: CUDA_ERROR_LAUNCH_FAILED"));
  REQUIRE(ncclRedOpCreatePreMulSum(&op, factor.data(), ncclFloat32, ncclScalarDevice, comm) == ncclSuccess);
  CHECK(ncclRedOpDestroy(op, comm) == ncclSuccess);
  CHECK(ncclCommDestroy(comm) == ncclSuccess);
}

TEST_CASE("device: a GPU for two ranks needs the switch", "[device][failure]") {
  // The variable is read once: this is for the process that runs this test alone, without it.
  if (std::getenv("NCCL_MULTI_RANK_GPU_ENABLE") != nullptr) return;
  REQUIRE(Gpu::why_not().empty());
  ncclComm_t comms[2] = {};
  const int devices[2] = {0, 0};
  CHECK(ncclCommInitAll(comms, 2, devices) == ncclInvalidUsage);
  CHECK_THAT(ncclGetLastError(nullptr), Catch::Contains("NCCL_MULTI_RANK_GPU_ENABLE=1"));
  const int missing[1] = {7};
  CHECK(ncclCommInitAll(comms, 1, missing) == ncclInvalidArgument);
  CHECK_THAT(ncclGetLastError(nullptr), Catch::Contains("GPU 7"));
}

TEST_CASE("device: memory that another GPU gets no access to is named, and the call can be made again",
          "[device][failure]") {
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  REQUIRE(Gpu::why_not().empty());
  const Gpu& gpu = Gpu::get();
  constexpr std::size_t kPiece = 2 << 20;
  constexpr std::size_t kLong = 100000;  // more than lines take, of what lanes do not do
  const std::vector<int> devices = {0, 1};
  std::vector<ncclComm_t> comms(2);
  REQUIRE(ncclCommInitAll(comms.data(), 2, devices.data()) == ncclSuccess);
  std::vector<CUstream> streams;
  std::vector<void*> memory;
  for (const int device : devices) {
    gpu.use(device);
    streams.push_back(gpu.make_stream());
    memory.push_back(gpu.map(device, kPiece, 1));
    const std::vector<std::int32_t> ones(kLong, 1);
    gpu.copy(memory.back(), ones.data(), kLong * 4);
  }
  const auto call = [&] {
    Outcome outcome;
    group(outcome, comms, [&](std::size_t r) {
      return ncclAlltoAll(memory[r], memory[r], kLong / 2, ncclInt32, comms[r], streams[r]);
    });
    return outcome;
  };
  Outcome refused;
  for (std::uint64_t k = 1; fake_driver::failed_function() != "cuMemSetAccess"; ++k) {
    REQUIRE(k < 100);
    fake_driver::fail_after(k, CUDA_ERROR_INVALID_DEVICE);
    refused = call();
  }
  fake_driver::fail_after(0, CUDA_SUCCESS);
  CHECK(refused.result() == ncclUnhandledCudaError);
  CHECK_THAT(refused.reason(), Catch::Contains("sendbuff") &&
                                   Catch::Contains("of rank 0: memory of cuMemMap, which GPU 1 may not reach") &&
                                   Catch::Contains("give it by cuMemSetAccess, or use memory of cudaMalloc"));
  for (std::size_t r = 0; r < 2; ++r) gpu.wait(streams[r]);
  CHECK(call().result() == ncclSuccess);
  for (std::size_t r = 0; r < 2; ++r) {
    gpu.use(static_cast<int>(r));
    gpu.wait(streams[r]);
    gpu.destroy(streams[r]);
    CHECK(ncclCommDestroy(comms[r]) == ncclSuccess);
    gpu.unmap(memory[r], kPiece, 1);
  }
  gpu.use(0);
}

TEST_CASE("device: ncclMemAlloc gives whole blocks, which nothing else lies in", "[device]") {
  setenv("TUTTI_DEVICE", "cuda", 1);
  Gpu::get().use(0);
  constexpr std::int64_t kBlock = 2 << 20;
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{kBlock}, std::size_t{kBlock} + 1}) {
    const std::int64_t before = fake_driver::live().device_bytes;
    void* memory = nullptr;
    REQUIRE(ncclMemAlloc(&memory, bytes) == ncclSuccess);
    CHECK(fake_driver::live().device_bytes - before == (bytes > kBlock ? 2 * kBlock : kBlock));
    CHECK(ncclMemFree(memory) == ncclSuccess);
  }
  void* memory = nullptr;
  CHECK(ncclMemAlloc(&memory, SIZE_MAX) != ncclSuccess);
}

}  // namespace tutti::test
