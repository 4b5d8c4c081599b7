// Every allocation fails once, of groups of several communicators and of calls on host streams: nobody waits for ever for what was to be
// done, the error says why, and communicators that have not failed work on.
#include "failing_new.h"

#include <tutti/tutti.h>

#include <catch2/catch.hpp>

#include <array>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <signal.h>

namespace tutti::test {
namespace {

constexpr int kRanks = 2;

/// Two communicators, whose ranks are all here, with a host stream for each rank.
struct Both {
  static constexpr std::size_t kMembers = 2 * kRanks;

  explicit Both(std::size_t count, bool makes_streams) : data(kMembers, std::vector<int>(count, 1)) {
    for (std::size_t first = 0; first < kMembers; first += kRanks)
      REQUIRE(ncclCommInitAll(&comms[first], kRanks, nullptr) == ncclSuccess);
    for (cudaStream_t& stream : streams)
      if (makes_streams) REQUIRE(tuttiStreamCreate(&stream) == ncclSuccess);
  }
  ~Both() {
    wait();
    for (const ncclComm_t comm : comms) CHECK(ncclCommDestroy(comm) == ncclSuccess);
    for (const cudaStream_t stream : streams)
      if (stream) CHECK(tuttiStreamDestroy(stream) == ncclSuccess);
  }
  Both(const Both&) = delete;
  Both& operator=(const Both&) = delete;

  void wait() const {
    for (const cudaStream_t stream : streams)
      if (stream) CHECK(tuttiStreamSynchronize(stream) == ncclSuccess);
  }
  /// In place; `times` for each rank, by turns on its stream and its neighbour's.
  ncclResult_t sum(std::size_t times) {
    if (const ncclResult_t started = ncclGroupStart(); started != ncclSuccess) return started;
    for (std::size_t time = 0; time < times; ++time) {
      for (std::size_t i = 0; i < kMembers; ++i) {
        int* const mine = data[i].data();
        (void)ncclAllReduce(mine, mine, data[i].size(), ncclInt, ncclSum, comms[i], streams[(i + time) % kMembers]);
      }
    }
    return ncclGroupEnd();
  }
  bool has_failed(std::size_t first) const {
    ncclResult_t state = ncclInternalError;
    CHECK(ncclCommGetAsyncError(comms[first], &state) == ncclSuccess);
    if (state != ncclSuccess) CHECK(state == ncclSystemError);
    return state != ncclSuccess;
  }
  /// Of the communicator's ranks; 0: they differ.
  int value(std::size_t first) const {
    const int found = data[first][0];
    for (std::size_t i = first; i < first + kRanks; ++i) {
      for (const int one : data[i])
        if (one != found) return 0;
    }
    return found;
  }

  std::array<ncclComm_t, kMembers> comms{};
  std::array<cudaStream_t, kMembers> streams{};
  std::vector<std::vector<int>> data;
};

/// `arm(k)`: the k-th allocation fails; `disarm()`: whether it has. `tells`: the group's end says so, else the communicator does.
void fail_each(std::size_t count, bool streams, bool tells, const std::function<void(long)>& arm,
               const std::function<bool()>& disarm) {
  constexpr std::size_t kTimes = 2;
  bool has_failed = true;
  long k = 1;
  for (; has_failed && k < 20000; k += 1 + k / 200) {  // all of those with which a call begins
    Both both(count, streams);
    arm(k);
    const ncclResult_t result = both.sum(kTimes);
    if (!tells) both.wait();
    has_failed = disarm();
    both.wait();
    const std::string reason = result != ncclSuccess ? ncclGetLastError(nullptr) : "";
    CAPTURE(count, streams, tells, k, result, reason);
    if (result != ncclSuccess) {
      CHECK(result == ncclSystemError);
      CHECK_THAT(reason, Catch::Contains("memory"));
    }
    CHECK((has_failed || result == ncclSuccess));
    for (std::size_t first = 0; first < Both::kMembers; first += kRanks) {
      if (both.has_failed(first)) {
        CHECK(has_failed);
        continue;
      }
      const int found = both.value(first);
      CHECK((found == 4 || (found == 1 && result != ncclSuccess)));
      // Nothing of it is left for the next calls.
      int one = 1, other = 1;
      REQUIRE(ncclGroupStart() == ncclSuccess);
      CHECK(ncclAllReduce(&one, &one, 1, ncclInt, ncclSum, both.comms[first], nullptr) == ncclSuccess);
      CHECK(ncclAllReduce(&other, &other, 1, ncclInt, ncclSum, both.comms[first + 1], nullptr) == ncclSuccess);
      CHECK(ncclGroupEnd() == ncclSuccess);
      CHECK((one == 2 && other == 2));
    }
  }
  CHECK(k > 10);
  CHECK_FALSE(has_failed);
}

TEST_CASE("every allocation of a group of several communicators fails once") {
  const bool streams = GENERATE(false, true);
  const std::size_t count = GENERATE(4, 50000);
  fail_each(
      count, streams, true, [](long k) { until_failure = k; }, [] { return std::exchange(until_failure, 0) == 0; });
}

TEST_CASE("every allocation on the threads of streams fails once") {
  const std::size_t count = GENERATE(4, 50000);
  fail_each(
      count, true, false, [](long k) { until_failure_on_streams = k; },
      [] { return until_failure_on_streams.exchange(0) == 0; });
}

TEST_CASE("every allocation of making and ending a host stream fails once") {
  bool has_failed = true;
  long k = 1;
  for (; has_failed && k < 100; ++k) {
    cudaStream_t stream = nullptr;
    until_failure = k;
    const ncclResult_t made = tuttiStreamCreate(&stream);
    const ncclResult_t ended = made == ncclSuccess ? tuttiStreamDestroy(stream) : ncclSuccess;
    has_failed = std::exchange(until_failure, 0) == 0;
    CAPTURE(k);
    CHECK((made == ncclSuccess || made == ncclSystemError));
    CHECK(ended == ncclSuccess);
    sigset_t blocked;
    REQUIRE(pthread_sigmask(SIG_SETMASK, nullptr, &blocked) == 0);
    CHECK(sigismember(&blocked, SIGINT) == 0);
  }
  CHECK(k > 2);
  CHECK_FALSE(has_failed);
}

}  // namespace
}  // namespace tutti::test
