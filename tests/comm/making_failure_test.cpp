// Who lacks memory, or threads, while a communicator is made keeps nobody waiting: the others hear of it at once, and why.
#include "failing_new.h"

#include <tutti/tutti.h>

#include <catch2/catch.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

namespace tutti::test {
namespace {

/// Threads that this one starts until the one that cannot be; 0: all can. until_failure from then on, which lasts.
thread_local long until_no_thread = 0;
thread_local long until_failure_then = 0;

}  // namespace
}  // namespace tutti::test

/// The C++ library's threads are made by this one, too.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                              void* argument) noexcept {
  using namespace tutti::test;
  static const auto create = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  if (until_no_thread == 0 || --until_no_thread > 0) return create(thread, attributes, start, argument);
  until_failure = until_failure_then;
  failure_lasts = true;
  return EAGAIN;
}

namespace tutti::test {
namespace {

constexpr int kRanks = 2;

/// Ranks 0 and 1 make a communicator and use it, each in a thread: `poor` lacks memory for its k-th allocation, and with `lasts` for all that follow
/// in that call. Who fails tries again, as the call may have ended before anybody else heard of it. What it was like.
class MadeByTwo {
 public:
  using Make = std::function<ncclResult_t(int rank, ncclComm_t* made)>;

  MadeByTwo(int poor, long k, bool lasts, const Make& make) : lasts_(lasts) {
    std::atomic<int> failed{0};
    std::thread other([&] { run(1, poor, k, make, failed); });
    run(0, poor, k, make, failed);
    other.join();
    for (const ncclComm_t comm : comms_)
      if (comm != nullptr) CHECK(ncclCommDestroy(comm) == ncclSuccess);
  }

  long used() const { return used_; }
  bool has_worked() const { return reasons_[0].empty() && reasons_[1].empty(); }
  /// Who lacked memory says so, and nobody has waited until time was over.
  void check(int poor) const {
    CAPTURE(poor, results_, reasons_[0], reasons_[1]);
    CHECK((results_[poor] == ncclSystemError || results_[poor] == ncclSuccess));
    if (!lasts_) CHECK_THAT(reasons_[poor], Catch::Contains("memory") || Catch::Contains("bad_alloc"));
    for (const std::string& reason : reasons_) CHECK_THAT(reason, !Catch::Contains("TUTTI_TIMEOUT_S"));
  }

 private:
  void run(int rank, int poor, long k, const Make& make, std::atomic<int>& failed) {
    failure_lasts = lasts_;
    if (rank == poor) until_failure = k;
    results_[rank] = make(rank, &comms_[rank]);
    if (rank == poor) used_ = k - std::exchange(until_failure, 0);
    bool works = use(rank, results_[rank]);
    for (int attempt = 0; attempt < 3 && !works; ++attempt) {
      // Not before the other one has heard of it, if it ever does.
      ++failed;
      for (int wait = 0; wait < 100 && failed < 2 * (attempt + 1); ++wait) usleep(1000);
      if (comms_[rank] != nullptr) CHECK(ncclCommAbort(std::exchange(comms_[rank], nullptr)) == ncclSuccess);
      works = use(rank, make(rank, &comms_[rank]));
    }
  }
  bool use(int rank, ncclResult_t made) {
    int one = 1;
    if (made == ncclSuccess) made = ncclAllReduce(&one, &one, 1, ncclInt, ncclSum, comms_[rank], nullptr);
    if (made != ncclSuccess) reasons_[rank] += std::string(ncclGetLastError(nullptr)) + "; ";
    return made == ncclSuccess;
  }

  bool lasts_;
  std::array<ncclComm_t, kRanks> comms_{};
  std::array<ncclResult_t, kRanks> results_{};
  std::array<std::string, kRanks> reasons_;
  long used_ = 0;
};

/// `attempt` for every allocation that there is; of many for so many, the first and the last ones among them.
void lack_each(long attempts, const std::function<MadeByTwo(int poor, long k)>& attempt) {
  const int poor = GENERATE(0, 1);
  constexpr long kEnough = 1000000;
  (void)attempt(poor, kEnough);  // some are made once
  const MadeByTwo usual = attempt(poor, kEnough);
  REQUIRE(usual.has_worked());
  REQUIRE(usual.used() > 20);
  const long step = std::max(1L, usual.used() / attempts);
  for (long k = 1; k <= usual.used(); k += k < 20 || k + 40 > usual.used() ? 1 : step) {
    const MadeByTwo made = attempt(poor, k);
    if (made.has_worked()) continue;  // not always as many are made
    CAPTURE(k, usual.used());
    made.check(poor);
  }
}

/// `ranks` of a communicator, of which rank 0 and 1 make another one.
MadeByTwo make_of_parents(int ranks, int poor, long k, bool lasts,
                          const std::function<ncclResult_t(ncclComm_t parent, ncclComm_t* child)>& make) {
  std::vector<ncclComm_t> parents(static_cast<std::size_t>(ranks));
  REQUIRE(ncclCommInitAll(parents.data(), ranks, nullptr) == ncclSuccess);
  MadeByTwo made(poor, k, lasts, [&](int rank, ncclComm_t* child) { return make(parents[rank], child); });
  for (const ncclComm_t parent : parents) CHECK(ncclCommAbort(parent) == ncclSuccess);
  return made;
}

TEST_CASE("who lacks memory keeps nobody waiting while a communicator is made") {
  lack_each(60, [](int poor, long k) {
    ncclUniqueId id;
    REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
    return MadeByTwo(poor, k, false, [&](int rank, ncclComm_t* comm) { return ncclCommInitRank(comm, 2, id, rank); });
  });
}

TEST_CASE("who lacks memory keeps nobody waiting while a communicator is split") {
  const bool lasts = GENERATE(false, true);
  lack_each(80, [lasts](int poor, long k) {
    return make_of_parents(2, poor, k, lasts, [](ncclComm_t parent, ncclComm_t* child) {
      return ncclCommSplit(parent, 0, 0, child, nullptr);
    });
  });
}

TEST_CASE("who lacks memory keeps nobody waiting while a communicator is shrunk") {
  const bool lasts = GENERATE(false, true);
  lack_each(80, [lasts](int poor, long k) {
    return make_of_parents(3, poor, k, lasts, [](ncclComm_t parent, ncclComm_t* child) {
      int left_out = 2;
      return ncclCommShrink(parent, &left_out, 1, child, nullptr, NCCL_SHRINK_DEFAULT);
    });
  });
}

/// Each rank in a thread of the library's; that which makes the id has its own name already, and goes on.
TEST_CASE("every allocation of the threads that a group makes communicators in fails once") {
  is_tester = true;
  bool has_failed = true;
  for (long k = 1; has_failed; k += k < 100 ? 1 : 11) {
    std::array<ncclComm_t, kRanks> comms{};
    ncclUniqueId id;
    REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
    REQUIRE(ncclGroupStart() == ncclSuccess);
    for (int rank = 0; rank < kRanks; ++rank) CHECK(ncclCommInitRank(&comms[rank], kRanks, id, rank) == ncclSuccess);
    until_failure_elsewhere = k;
    const ncclResult_t made = ncclGroupEnd();
    has_failed = until_failure_elsewhere.exchange(0) == 0;
    const std::string reason = made != ncclSuccess ? ncclGetLastError(nullptr) : "";
    CAPTURE(k, made, reason);
    CHECK_THAT(reason, !Catch::Contains("TUTTI_TIMEOUT_S"));
    // Rank 0 may hear of rank 1 first, and that only by the end of its connection.
    if (made != ncclSuccess)
      CHECK_THAT(reason, Catch::Contains("memory") || Catch::Contains("bad_alloc") || Catch::Contains("rank 1"));
    for (const ncclComm_t comm : comms) CHECK(ncclCommAbort(comm) == ncclSuccess);
  }
}

/// Ranks 0 and 1 of three in a group, for the second of which no thread can be started, and rank 2 in a thread that waits for them. From then on the
/// k-th allocation of the group's thread and all that follow fail; 0: none.
void lack_thread(long k, bool splits) {
  std::array<ncclComm_t, 3> parents{};
  std::array<ncclComm_t, 3> comms{};
  ncclUniqueId id;
  if (splits) REQUIRE(ncclCommInitAll(parents.data(), 3, nullptr) == ncclSuccess);
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  const auto make = [&](int rank) {
    return splits ? ncclCommSplit(parents[rank], 0, 0, &comms[rank], nullptr)
                  : ncclCommInitRank(&comms[rank], 3, id, rank);
  };
  std::string heard;
  std::thread other([&] {
    if (make(2) != ncclSuccess) heard = ncclGetLastError(nullptr);
  });
  REQUIRE(ncclGroupStart() == ncclSuccess);
  for (int rank = 0; rank < 2; ++rank) CHECK(make(rank) == ncclSuccess);
  until_no_thread = 2;
  until_failure_then = k;
  const ncclResult_t made = ncclGroupEnd();
  until_failure = 0;
  failure_lasts = false;
  const std::string reason = ncclGetLastError(nullptr);
  other.join();
  CAPTURE(k, splits, reason, heard);
  CHECK(until_no_thread == 0);
  CHECK(made == ncclSystemError);
  if (k == 0) CHECK_THAT(reason, Catch::Contains("cannot start a thread"));
  if (k == 0) CHECK_THAT(heard, Catch::Contains("thread"));
  CHECK_THAT(heard,
             Catch::Contains("rank") && !Catch::Contains("TUTTI_TIMEOUT_S") && !Catch::Contains("ncclCommAbort"));
  for (const ncclComm_t comm : comms) {
    ncclResult_t state = ncclSuccess;
    if (comm == nullptr) continue;
    CHECK(ncclCommGetAsyncError(comm, &state) == ncclSuccess);
    CHECK((state != ncclSuccess && state != ncclInProgress));
    CHECK(ncclCommDestroy(comm) == ncclSuccess);
  }
  for (const ncclComm_t parent : parents)
    if (parent != nullptr) CHECK(ncclCommAbort(parent) == ncclSuccess);
}

TEST_CASE("who cannot start a group's thread tells the others so") {
  const bool splits = GENERATE(false, true);
  for (long k = 0; k < 30; ++k) lack_thread(k, splits);
}

TEST_CASE("who cannot start a thread for a rank that does not block tells the others so") {
  ncclUniqueId id;
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  std::string heard;
  std::thread other([&] {
    ncclComm_t comm = nullptr;
    CHECK(ncclCommInitRank(&comm, 2, id, 1) == ncclRemoteError);
    heard = ncclGetLastError(nullptr);
  });
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  until_no_thread = 1;
  until_failure_then = 0;
  CHECK(ncclCommInitRankConfig(&comm, 2, id, 0, &config) == ncclSystemError);
  CHECK(comm == nullptr);
  other.join();
  CHECK_THAT(heard, Catch::Contains("rank 0") && Catch::Contains("cannot start a thread"));
}

TEST_CASE("communicators end where no memory is left") {
  std::vector<ncclComm_t> comms(40);
  for (ncclComm_t& comm : comms) REQUIRE(ncclCommInitAll(&comm, 1, nullptr) == ncclSuccess);
  CHECK(ncclCommDestroy(comms.back()) == ncclSuccess);  // some of it is made once
  comms.pop_back();
  failure_lasts = true;
  std::size_t ended = 0;
  for (const ncclComm_t comm : comms) {
    until_failure = 1;
    ended += ncclCommDestroy(comm) == ncclSuccess ? 1 : 0;
    until_failure = 0;
  }
  failure_lasts = false;
  CHECK(ended == comms.size());
}

}  // namespace
}  // namespace tutti::test
