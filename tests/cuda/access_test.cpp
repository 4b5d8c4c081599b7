// Memory that only its own device may use until somebody says otherwise: of pools, and of cuMemMap. Ranks on several GPUs of one process.
#include "gpu.h"

#include <nccl.h>
#include <tutti/tutti.h>

#include <catch2/catch.hpp>

#include <functional>
#include <memory>

namespace tutti::test {
namespace {

using Values = std::vector<std::int32_t>;
constexpr int kRanks = 2;
/// More than lines take, and over the end of a piece of mapped memory.
constexpr std::size_t kCount = 700001;

class Memory {
 public:
  virtual ~Memory() = default;
  std::int32_t* data() const { return reinterpret_cast<std::int32_t*>(data_); }

 protected:
  CUdeviceptr data_ = 0;
};

class OfPool : public Memory {
 public:
  explicit OfPool(int, CUstream stream) : stream_(stream) {
    data_ = reinterpret_cast<CUdeviceptr>(Gpu::get().allocate_from_pool(kCount * 4, stream));
  }
  ~OfPool() override {
    Gpu::get().release_to_pool(data(), stream_);
    Gpu::get().wait(stream_);
  }

 private:
  CUstream stream_;
};

/// Two pieces of physical memory, one behind the other, with the device's own access only; the buffer begins in the first.
class Mapped : public Memory {
 public:
  explicit Mapped(int device, CUstream) : reserved_(Gpu::get().map(device, kPiece, 2)) {
    data_ = reinterpret_cast<CUdeviceptr>(reserved_) + 2 * kPiece - kCount * 4 - 4;
  }
  ~Mapped() override { Gpu::get().unmap(reserved_, kPiece, 2); }

 private:
  static constexpr std::size_t kPiece = 2 << 20;
  void* reserved_;
};

template <class Kind>
void try_all() {
  if (!Gpu::why_not().empty() || Gpu::get().devices() < kRanks) {
    WARN("not run: needs two GPUs");
    return;
  }
  const Gpu& gpu = Gpu::get();
  std::vector<ncclComm_t> comms(kRanks);
  REQUIRE(ncclCommInitAll(comms.data(), kRanks, nullptr) == ncclSuccess);
  std::vector<CUstream> streams;
  std::vector<std::unique_ptr<Memory>> in;
  std::vector<std::unique_ptr<Memory>> out;
  const auto each = [&](const std::function<void(std::size_t)>& what) {
    for (int r = 0; r < kRanks; ++r) {
      gpu.use(r);
      what(static_cast<std::size_t>(r));
    }
  };
  each([&](std::size_t r) {
    streams.push_back(gpu.make_stream());
    in.push_back(std::make_unique<Kind>(static_cast<int>(r), streams[r]));
    out.push_back(std::make_unique<Kind>(static_cast<int>(r), streams[r]));
    gpu.wait(streams[r]);
    Values values(kCount);
    for (std::size_t i = 0; i < kCount; ++i) values[i] = static_cast<std::int32_t>((r + 1) * (i % 1000));
    gpu.copy(in[r]->data(), values.data(), kCount * 4);
  });
  const auto call = [&](const std::function<ncclResult_t(std::size_t)>& of) {
    REQUIRE(ncclGroupStart() == ncclSuccess);
    each([&](std::size_t r) { CHECK(of(r) == ncclSuccess); });
    const ncclResult_t ended = ncclGroupEnd();
    INFO(ncclGetLastError(nullptr));
    REQUIRE(ended == ncclSuccess);
    each([&](std::size_t r) { gpu.wait(streams[r]); });
  };
  const auto check = [&](const Memory& memory, const std::function<std::size_t(std::size_t)>& wanted) {
    Values found(kCount);
    gpu.copy(found.data(), memory.data(), kCount * 4);
    bool right = true;
    for (std::size_t i = 0; i < kCount; ++i) right &= found[i] == static_cast<std::int32_t>(wanted(i));
    CHECK(right);
  };
  call([&](std::size_t r) {
    return ncclAllReduce(in[r]->data(), out[r]->data(), kCount, ncclInt32, ncclSum, comms[r], streams[r]);
  });
  each([&](std::size_t r) { check(*out[r], [](std::size_t i) { return 3 * (i % 1000); }); });
  // In place an all-to-all goes by memory of the library's own, of a pool.
  const std::size_t half = kCount / 2;
  call(
      [&](std::size_t r) { return ncclAlltoAll(in[r]->data(), in[r]->data(), half, ncclInt32, comms[r], streams[r]); });
  each([&](std::size_t r) {
    check(*in[r], [&](std::size_t i) {
      if (i == kCount - 1) return (r + 1) * (i % 1000);
      return (i / half + 1) * ((i % half + r * half) % 1000);
    });
  });
  in.clear();
  out.clear();
  each([&](std::size_t r) {
    gpu.destroy(streams[r]);
    CHECK(ncclCommDestroy(comms[r]) == ncclSuccess);
  });
  gpu.use(0);
}

}  // namespace

TEST_CASE("device: other GPUs get to memory of a pool", "[device]") { try_all<OfPool>(); }
TEST_CASE("device: other GPUs get to mapped memory", "[device]") { try_all<Mapped>(); }

}  // namespace tutti::test
