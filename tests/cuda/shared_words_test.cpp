// Words of host memory that this process's devices share: who ends some may wait for a device, and nobody else does with them.
#include "cuda/device.h"
#include "fake_driver.h"
#include "gpu.h"

#include <catch2/catch.hpp>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <future>
#include <thread>

namespace tutti::test {
namespace {

constexpr std::size_t kPage = 4096;
struct alignas(kPage) Page {
  std::byte bytes[kPage] = {};
};

}  // namespace

TEST_CASE("shared words: while some are ended others can be made", "[device]") {
  setenv("FAKE_CUDA_IDLE_MAPPING", "1", 1);
  REQUIRE(Gpu::why_not().empty());
  const Gpu& gpu = Gpu::get();
  gpu.use(0);
  Page first_page;
  Page second_page;
  auto device = cuda::Device::open(0);
  REQUIRE(device.ok());
  auto first = cuda::SharedWords::of(device.value(), &first_page, kPage);
  REQUIRE(first.ok());
  auto* const gate = static_cast<std::uint32_t*>(gpu.allocate_pinned(kPage));
  *gate = 0;
  CUstream stream = gpu.make_stream();
  gpu.wait_for_word(stream, gate, 1);
  std::atomic<bool> is_over{false};
  std::thread ends([&] {
    { const cuda::SharedWords ended = std::move(first).value(); }
    is_over = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK_FALSE(is_over);
  auto made =
      std::async(std::launch::async, [&] { return cuda::SharedWords::of(device.value(), &second_page, kPage); });
  const bool waits = made.wait_for(std::chrono::seconds(10)) != std::future_status::ready;
  CHECK_FALSE(waits);
  CHECK_FALSE(is_over);
  std::atomic_ref(*gate).store(1);
  ends.join();
  CHECK(made.get().ok());
  gpu.destroy(stream);
  gpu.release_pinned(gate);
  CHECK(fake_driver::live().registrations == 0);
}

TEST_CASE("shared words: several in this process may name the same memory at once", "[device]") {
  REQUIRE(Gpu::why_not().empty());
  Page page;
  auto device = cuda::Device::open(0);
  REQUIRE(device.ok());
  std::atomic<int> failures{0};
  const auto use = [&] {
    for (int i = 0; i < 200; ++i) {
      const auto words = cuda::SharedWords::of(device.value(), &page, kPage);
      if (!words.ok() || words.value().address() != reinterpret_cast<std::uint64_t>(&page)) ++failures;
    }
  };
  std::thread other(use);
  use();
  other.join();
  CHECK(failures == 0);
  CHECK(fake_driver::live().registrations == 0);
}

}  // namespace tutti::test
