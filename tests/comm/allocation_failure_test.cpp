// Every allocation fails once, of groups of several communicators, of calls on host streams and of making communicators: nobody waits for ever for what was to be
// done, the error says why, and communicators that have not failed work on.
#include "failing_new.h"

#include <tutti/tutti.h>

#include <catch2/catch.hpp>

#include <array>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
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

/// `make` in want of its k-th allocation. What there is of `comms` afterwards is ended, and none of it may be in progress still.
template <std::size_t kCount>
void make_without_memory(const std::function<ncclResult_t(std::array<ncclComm_t, kCount>&)>& make) {
  bool has_failed = true;
  long k = 1;
  for (; has_failed && k < 2000; ++k) {
    std::array<ncclComm_t, kCount> comms{};
    until_failure = k;
    const ncclResult_t made = make(comms);
    has_failed = std::exchange(until_failure, 0) == 0;
    const std::string reason = made != ncclSuccess ? ncclGetLastError(nullptr) : "";
    CAPTURE(k, made, reason);
    CHECK((made == ncclSuccess || (has_failed && made == ncclSystemError)));
    if (made != ncclSuccess) CHECK_THAT(reason, Catch::Contains("memory") || Catch::Contains("bad_alloc"));
    CHECK(ncclGroupEnd() == ncclInvalidUsage);  // no group is left open
    for (const ncclComm_t comm : comms) {
      if (comm == nullptr) continue;
      ncclResult_t state = ncclInternalError;
      CHECK(ncclCommGetAsyncError(comm, &state) == ncclSuccess);
      CHECK(state != ncclInProgress);
      CHECK(ncclCommDestroy(comm) == ncclSuccess);
    }
  }
  CHECK(k > 10);
  CHECK_FALSE(has_failed);
}

TEST_CASE("every allocation of making communicators fails once") {
  make_without_memory<kRanks>([](auto& comms) { return ncclCommInitAll(comms.data(), kRanks, nullptr); });
  make_without_memory<1>([](auto& comms) { return ncclCommInitAll(comms.data(), 1, nullptr); });
}

TEST_CASE("every allocation of splitting a communicator fails once") {
  make_without_memory<2 * kRanks>([](auto& comms) {
    const long armed = std::exchange(until_failure, 0);
    REQUIRE(ncclCommInitAll(comms.data(), kRanks, nullptr) == ncclSuccess);
    until_failure = armed;
    if (const ncclResult_t started = ncclGroupStart(); started != ncclSuccess) return started;
    for (int rank = 0; rank < kRanks; ++rank) (void)ncclCommSplit(comms[rank], 0, 0, &comms[kRanks + rank], nullptr);
    return ncclGroupEnd();
  });
  make_without_memory<2>([](auto& comms) {
    const long armed = std::exchange(until_failure, 0);
    REQUIRE(ncclCommInitAll(comms.data(), 1, nullptr) == ncclSuccess);
    until_failure = armed;
    return ncclCommSplit(comms[0], 0, 0, &comms[1], nullptr);
  });
}

/// One waits for the other's turn to be over.
TEST_CASE("every allocation of the threads that split a communicator twice fails once") {
  is_tester = true;
  ncclComm_t parent = nullptr;
  bool has_failed = true;
  long k = 1;
  for (; has_failed && k < 2000; ++k) {
    CAPTURE(k);
    if (parent == nullptr) REQUIRE(ncclCommInitAll(&parent, 1, nullptr) == ncclSuccess);
    std::array<ncclComm_t, 2> children{};
    REQUIRE(ncclGroupStart() == ncclSuccess);
    for (ncclComm_t& child : children) CHECK(ncclCommSplit(parent, 0, 0, &child, nullptr) == ncclSuccess);
    until_failure_elsewhere = k;
    const ncclResult_t made = ncclGroupEnd();
    has_failed = until_failure_elsewhere.exchange(0) == 0;
    CHECK(made == (has_failed ? ncclSystemError : ncclSuccess));
    for (const ncclComm_t child : children) {
      ncclResult_t state = ncclInProgress;
      if (child == nullptr) continue;
      CHECK(ncclCommGetAsyncError(child, &state) == ncclSuccess);
      CHECK(state != ncclInProgress);
      CHECK(ncclCommDestroy(child) == ncclSuccess);
    }
    if (has_failed) CHECK(ncclCommAbort(std::exchange(parent, nullptr)) == ncclSuccess);
  }
  if (parent != nullptr) CHECK(ncclCommDestroy(parent) == ncclSuccess);
  CHECK(k > 3);
  CHECK_FALSE(has_failed);
}

/// Rank 0 of two, whose k-th allocation fails; how many there were. What the other one hears then, or of its first call.
long join_without_memory(long k, ncclResult_t& made, std::string& heard) {
  ncclUniqueId id;
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  std::thread other([&] {
    ncclComm_t comm = nullptr;
    int one = 1;
    ncclResult_t result = ncclCommInitRank(&comm, 2, id, 1);
    if (result == ncclSuccess) result = ncclAllReduce(&one, &one, 1, ncclInt, ncclSum, comm, nullptr);
    if (result != ncclSuccess) heard = ncclGetLastError(nullptr);
    if (comm) (void)ncclCommDestroy(comm);
  });
  ncclComm_t comm = nullptr;
  until_failure = k;
  made = ncclCommInitRank(&comm, 2, id, 0);
  const long left = std::exchange(until_failure, 0);
  int one = 1;
  if (made == ncclSuccess) CHECK(ncclAllReduce(&one, &one, 1, ncclInt, ncclSum, comm, nullptr) == ncclSuccess);
  other.join();
  if (comm) CHECK(ncclCommDestroy(comm) == ncclSuccess);
  return k - left;
}

TEST_CASE("a rank that lacks memory while a communicator is made is named to the others") {
  ncclResult_t made = ncclSuccess;
  std::string heard;
  constexpr long kEnough = 1000000;
  (void)join_without_memory(kEnough, made, heard);  // some are made once
  const long all = join_without_memory(kEnough, made, heard);
  REQUIRE((made == ncclSuccess && heard.empty()));
  for (const long before_the_end : {5L, 15L, 40L}) {  // when the other one has met it already
    (void)join_without_memory(all - before_the_end, made, heard);
    CAPTURE(all, before_the_end);
    CHECK(made == ncclSystemError);
    CHECK_THAT(heard, Catch::Contains("rank 0"));
  }
}

/// Lines of /proc/self/maps with these words.
int mappings_of(const std::string& name) {
  std::ifstream maps("/proc/self/maps");
  int found = 0;
  for (std::string line; std::getline(maps, line);) found += line.find(name) != std::string::npos ? 1 : 0;
  return found;
}

TEST_CASE("shared memory without memory for its table is not left mapped") {
  std::vector<void*> made;
  const auto allocate_shared = [&](long k) {
    void* memory = nullptr;
    until_failure = k;
    const ncclResult_t result = tuttiMemAlloc(&memory, 1, nullptr);
    const long left = std::exchange(until_failure, 0);
    if (result == ncclSuccess) made.push_back(memory);
    CHECK(mappings_of("tutti-shared") == static_cast<int>(made.size()));
    return k - left;
  };
  constexpr long kEnough = 1000;
  long usual = 0;
  while (made.size() < 32) usual = allocate_shared(kEnough);  // as many as the table has room for at first
  for (const long further : {1L, 2L}) {
    allocate_shared(usual + further);
    CHECK(made.size() == 32);
  }
  CHECK(allocate_shared(kEnough) == usual + 2);
  for (void* const memory : made) CHECK(tuttiMemFree(memory) == ncclSuccess);
}

}  // namespace
}  // namespace tutti::test
