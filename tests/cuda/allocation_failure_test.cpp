// Every allocation of a group on device memory fails once: the calls are made once or not at all, nobody waits for ever, and the error says why.
#include "failing_new.h"
#include "gpu.h"

#include <nccl.h>

#include <catch2/catch.hpp>

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tutti::test {
namespace {

constexpr int kRanks = 3;
constexpr std::size_t kCount = 50;

struct Ranks {
  std::vector<std::unique_ptr<OnGpu<std::int32_t>>> buffers;
  std::array<ncclComm_t, kRanks> comms{};
  const CUstream own = Gpu::get().make_stream();
  const CUstream stream;

  /// `of_thread`: on the thread's default stream.
  explicit Ranks(bool of_thread) : stream(of_thread ? CU_STREAM_PER_THREAD : own) {
    const std::array<int, kRanks> devices{};
    REQUIRE(ncclCommInitAll(comms.data(), kRanks, devices.data()) == ncclSuccess);
    for (int r = 0; r < kRanks; ++r)
      buffers.push_back(std::make_unique<OnGpu<std::int32_t>>(std::vector<std::int32_t>(kCount, 1)));
  }
  ~Ranks() {
    Gpu::get().wait(stream);
    for (const ncclComm_t comm : comms) CHECK(ncclCommDestroy(comm) == ncclSuccess);
    Gpu::get().destroy(own);
  }
  /// In place, `times` for each rank: so many launches. `differs`: the last rank's are shorter.
  ncclResult_t sum(int times, bool differs) const {
    (void)ncclGroupStart();
    for (int time = 0; time < times; ++time) {
      for (std::size_t r = 0; r < kRanks; ++r) {
        const std::size_t count = differs && r + 1 == kRanks ? kCount - 1 : kCount;
        (void)ncclAllReduce(buffers[r]->data(), buffers[r]->data(), count, ncclInt32, ncclSum, comms[r], stream);
      }
    }
    return ncclGroupEnd();
  }
  /// Of all ranks; -1: they differ.
  std::int32_t value() const {
    Gpu::get().wait(stream);
    const std::int32_t first = buffers[0]->read()[0];
    for (const auto& buffer : buffers) {
      for (const std::int32_t one : buffer->read())
        if (one != first) return -1;
    }
    return first;
  }
};

TEST_CASE("device: every allocation of a group fails once, and each call is made once or not at all",
          "[device][failure]") {
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  REQUIRE(Gpu::why_not().empty());
  Gpu::get().use(0);
  constexpr int kTimes = 3;
  const bool of_thread = GENERATE(false, true);
  for (const bool differs : {false, true}) {
    bool has_failed = true;
    long k = 1;
    for (; has_failed && k < 1000; ++k) {
      const Ranks ranks(of_thread);
      until_failure = k;
      const ncclResult_t result = ranks.sum(kTimes, differs);
      has_failed = std::exchange(until_failure, 0) == 0;
      const std::string reason = result != ncclSuccess ? ncclGetLastError(nullptr) : "";
      const std::int32_t found = ranks.value();
      CAPTURE(differs, k, result, reason, found);
      if (!has_failed) {
        CHECK(result == (differs ? ncclInvalidUsage : ncclSuccess));
        CHECK(found == (differs ? 1 : 27));
        break;
      }
      // What there was no memory for may have been a text alone.
      if (result != ncclSuccess && !(differs && result == ncclInvalidUsage)) {
        CHECK(result == ncclSystemError);
        CHECK_THAT(reason, Catch::Contains("out of memory"));
      }
      if (differs) {
        CHECK(result != ncclSuccess);
        CHECK(found == 1);
      } else {
        CHECK((found == 1 || found == 3 || found == 9 || found == 27));
        CHECK((found == 27 || result != ncclSuccess));
      }
      // Nothing of it is left for the next one, where the communicators still are.
      ncclResult_t state = ncclInternalError;
      REQUIRE(ncclCommGetAsyncError(ranks.comms[0], &state) == ncclSuccess);
      if (state != ncclSuccess) continue;
      const ncclResult_t next = ranks.sum(1, false);
      INFO("then: " << (next != ncclSuccess ? ncclGetLastError(nullptr) : ""));
      CHECK(next == ncclSuccess);
      CHECK(ranks.value() == 3 * found);
    }
    CHECK(k > 10);
    CHECK_FALSE(has_failed);
  }
}

}  // namespace
}  // namespace tutti::test
