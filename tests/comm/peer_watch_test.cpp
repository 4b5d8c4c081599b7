// PeerWatch of more ranks than can all watch each other (watch_job.h).
#include "rank_runs.h"
#include "watch_job.h"

#include <catch2/catch.hpp>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace tutti::comm;
using namespace tutti::comm::watching;
using tutti::Code;

TEST_CASE("connections for watching grow with log n, over MPI too", "[watch]") {
  for (const bool over_mpi : {false, true}) {
    for (const int ranks : {2, 16, 17, 18, 100, 1024, 16384}) {
      CAPTURE(over_mpi, ranks);
      const std::vector<Ties> first = ties_of_rank(0, ranks, over_mpi);
      const auto count = static_cast<int>(std::ranges::count_if(first, &Ties::watch));
      if (ranks <= kAllWithAllMax) CHECK(count == ranks - 1);
      if (ranks > kAllWithAllMax) CHECK(count <= 2 * static_cast<int>(std::bit_width(static_cast<unsigned>(ranks))));
      for (const int other : {1, ranks / 2, ranks - 1}) {
        const std::vector<Ties> theirs = ties_of_rank(other, ranks, over_mpi);
        CHECK(theirs[0].watch == first[static_cast<std::size_t>(other)].watch);
      }
    }
  }
}

TEST_CASE("a death is passed on before anything is done about it", "[watch]") {
  constexpr int kRanks = 40;
  constexpr int kVictim = 17;
  // What a rank does about it, such as to wait for calls that are inside MPI, takes as long here as until all know.
  std::mutex mutex;
  std::condition_variable all;
  int busy = 0;
  int waited_in_vain = 0;
  const auto until_all_know = [&] {
    std::unique_lock lock(mutex);
    ++busy;
    all.notify_all();
    if (!all.wait_for(lock, kPatience, [&] { return busy == kRanks - 1; })) ++waited_in_vain;
  };
  {
    Job job(kRanks, {kVictim}, until_all_know);
    job.kill(kVictim);
    for (const int rank : without(kRanks, {kVictim})) {
      CAPTURE(rank);
      CHECK(job.hears_of_death(rank, kVictim));
      CHECK(job.has_failed(rank));
      CHECK(job.failure(rank) == "rank 17");
    }
  }
  CHECK(waited_in_vain == 0);
}

TEST_CASE("a rank that all others it watched have left hears of a death", "[watch]") {
  constexpr int kRanks = 24;
  constexpr int kVictim = 13;  // whom none of those who leave watches
  Job job(kRanks, {kVictim});
  const std::vector<int> leaving = watched_by(0, kRanks);
  REQUIRE(leaving == std::vector<int>{1, 2, 4, 8, 16, 20, 22, 23});
  for (const int rank : leaving) job.leave(rank);
  for (const int rank : leaving) CHECK(job.life(0, rank, PeerLife::kLeft) == PeerLife::kLeft);
  CHECK_FALSE(job.has_failed(0));
  job.kill(kVictim);
  CHECK(job.hears_of_death(0, kVictim));
  CHECK(job.life_now(0, kVictim) == PeerLife::kEnded);
}

TEST_CASE("ranks that leave one after the other are no deaths, and the last ones hear of each other", "[watch]") {
  constexpr int kRanks = 20;
  constexpr int kLast = 9;  // does not watch rank 0
  Job job(kRanks, {});
  const std::vector<int> leaving = without(kRanks, {0, kLast});
  for (const int rank : leaving) job.leave(rank);
  for (const int rank : leaving) {
    CHECK(job.life(0, rank, PeerLife::kLeft) == PeerLife::kLeft);
    CHECK(job.life(kLast, rank, PeerLife::kLeft) == PeerLife::kLeft);
  }
  CHECK_FALSE(job.has_failed(0));
  CHECK_FALSE(job.has_failed(kLast));
  job.fail(kLast, "why");
  job.say(kLast, "last");
  CHECK(job.hears(0, "last"));
  CHECK(job.fails(0));
  CHECK(job.failure(0) == "why");
}

/// All but four ranks leave. Then two do between which the other two are, rank 0 and one that makes no connections any more: whether rank 0
/// hears that this one leaves too.
bool passes_on_when_leaving() {
  constexpr int kRanks = 20;
  constexpr int kOther = 6;
  const std::vector<int> between = {4, 18};  // both watch both from the start
  Job job(kRanks, {});
  const std::vector<int> first = without(kRanks, {0, kOther, between[0], between[1]});
  for (const int rank : first) job.leave(rank);
  for (const int rank : first) REQUIRE(job.life(kOther, rank, PeerLife::kLeft) == PeerLife::kLeft);
  job.begin_leaving(kOther);
  std::vector<std::thread> leaving;
  for (const int rank : between) leaving.emplace_back([&job, rank] { job.leave(rank); });
  for (const int rank : between) {
    CHECK(job.life(0, rank, PeerLife::kLeft) == PeerLife::kLeft);
    CHECK(job.life(kOther, rank, PeerLife::kLeft) == PeerLife::kLeft);
  }
  job.leave(kOther);
  for (std::thread& one : leaving) one.join();
  CHECK_FALSE(job.has_failed(0));
  // What those two have passed on is in rank 0's sockets.
  const auto end = Clock::now() + std::chrono::milliseconds(500);
  while (job.life_now(0, kOther) != PeerLife::kLeft && Clock::now() < end) usleep(1000);
  return job.life_now(0, kOther) == PeerLife::kLeft;
}

TEST_CASE("a rank that leaves passes on what comes until the ring is closed over it", "[watch]") {
  // For 0.5 s, which may be over on a machine that is busy.
  bool heard = false;
  for (int attempt = 0; attempt < 5 && !heard; ++attempt) heard = passes_on_when_leaving();
  CHECK(heard);
}

TEST_CASE("one that a rank cannot reach is not gone for those that watch it, and its goodbye counts more", "[watch]") {
  constexpr int kRanks = 20;
  constexpr int kShut = 6;
  constexpr int kSeeking = 9;  // next to it when 7 and 8 have left
  Job job(kRanks, {});
  job.shut(kShut);
  job.leave_together({7, 8});
  for (const int rank : {0, kSeeking}) CHECK(job.life(rank, kShut, PeerLife::kUnreached) == PeerLife::kUnreached);
  for (const int rank : {4, 5, 10, 14}) CHECK(job.life_now(rank, kShut) == PeerLife::kThere);
  job.leave(kShut);
  for (const int rank : without(kRanks, {kShut, 7, 8})) {
    CHECK(job.life(rank, kShut, PeerLife::kLeft) == PeerLife::kLeft);
  }
}

TEST_CASE("the end of a late connection by which nothing has come is no death", "[watch]") {
  constexpr int kRanks = 20;
  constexpr int kVictim = 3;
  Job job(kRanks, {kVictim});
  std::vector<std::thread> leaving;
  for (const int rank : {1, 2}) leaving.emplace_back([&job, rank] { job.leave(rank); });
  // With rank 0, which has to close the ring.
  CHECK(job.make_and_drop(kVictim, 3) == 3);
  for (std::thread& one : leaving) one.join();
  CHECK(job.life_now(0, kVictim) == PeerLife::kThere);
  CHECK_FALSE(job.has_failed(0));
  job.kill(kVictim);
  CHECK(job.hears_of_death(0, kVictim));
}

TEST_CASE("ranks that deaths have cut apart find each other, and tell what the others have missed", "[watch]") {
  constexpr int kRanks = 20;
  const std::vector<int> survivors = {0, 3, 10, 13};
  for (const int a : survivors) {
    for (const int b : watched_by(a, kRanks)) REQUIRE(std::ranges::find(survivors, b) == survivors.end());
  }
  const std::vector<int> victims = without(kRanks, survivors);
  Job job(kRanks, victims);
  job.say(0, "before");
  for (const int rank : victims) job.kill(rank);
  job.say(10, "after");
  for (const int rank : survivors) {
    CAPTURE(rank);
    if (rank != 0) CHECK(job.hears(rank, "before"));
    if (rank != 10) CHECK(job.hears(rank, "after"));
    CHECK(job.fails(rank));
  }
}

TEST_CASE("of a communicator that has failed a dead rank that nobody watched is found", "[watch]") {
  constexpr int kRanks = 20;
  constexpr int kUnseen = 7;
  std::vector<int> victims = watched_by(kUnseen, kRanks);
  victims.push_back(kUnseen);
  Job job(kRanks, victims);
  for (const int rank : victims) job.kill(rank);
  for (const int rank : without(kRanks, victims)) {
    CAPTURE(rank);
    CHECK(job.life(rank, kUnseen, PeerLife::kUnreached) == PeerLife::kUnreached);
  }
}

TEST_CASE("a stopped rank that all who watched it have left is noticed", "[watch]") {
  constexpr int kRanks = 20;
  constexpr int kStopped = 7;
  Job job(kRanks, {kStopped}, [] {}, {.silence_s = 4, .reach = std::chrono::seconds(1)});
  const std::vector<int> leaving = watched_by(kStopped, kRanks);
  job.leave_together(leaving);
  std::vector<int> gone = leaving;
  gone.push_back(kStopped);
  for (const int rank : without(kRanks, gone)) {
    CAPTURE(rank);
    CHECK(job.life(rank, kStopped, PeerLife::kSilent) == PeerLife::kSilent);
    CHECK(job.has_failed(rank));
  }
}

TEST_CASE("stopped ranks do not keep the ring open", "[watch]") {
  constexpr int kRanks = 20;
  // Next to rank 0 there are these two when all that it watches have left: it is cut off.
  const std::vector<int> stopped = {3, 17};
  Job job(kRanks, stopped);
  REQUIRE(watched_by(0, kRanks) == std::vector<int>{1, 2, 4, 8, 12, 16, 18, 19});
  job.leave_together(watched_by(0, kRanks));
  const auto start = Clock::now();
  job.fail(9, "why");
  CHECK(job.fails(0));
  // A handshake that nobody answers takes 10 s.
  CHECK(Clock::now() - start < std::chrono::seconds(6));
}

TEST_CASE("all have the words of one that has noticed a silence", "[watch]") {
  constexpr int kRanks = 24;
  constexpr int kStopped = 13;
  Job job(kRanks, {kStopped}, [] {}, {.silence_s = 2});
  for (const int rank : without(kRanks, {kStopped})) {
    REQUIRE(job.fails(rank));
    CAPTURE(rank, job.failure(rank));
    CHECK(std::ranges::any_of(watched_by(kStopped, kRanks), [&](int noticing) {
      return job.failure(rank) == "rank " + std::to_string(kStopped) + " for rank " + std::to_string(noticing);
    }));
  }
}

namespace {

/// A rank's watch over another one that never says a word, and what it gets.
struct Watched {
  explicit Watched(double timeout_s) {
    int pair[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
    other = std::make_unique<Connection>(PrivateDescriptor::open([&] { return pair[0]; }), 64);
    PeerWatch::Args args{.rank = 0, .failure = &failure, .timeout_s = timeout_s};
    args.sockets.resize(2);
    args.sockets[1] = PrivateDescriptor::open([&] { return pair[1]; });
    args.callbacks.on_gone = [](int, PeerLife, std::uint32_t) {};
    args.callbacks.on_death = [](int, PeerLife) {};
    auto started = PeerWatch::start(std::move(args));
    REQUIRE(started.ok());
    watch = std::move(started).value();
  }
  int signs() {
    int found = 0;
    other->fill();
    for (auto frame = other->next(); frame.ok() && frame.value(); frame = other->next())
      found += frame.value()->type == FrameType::kSignOfLife ? 1 : 0;
    return found;
  }

  FailureRecord failure;
  std::unique_ptr<Connection> other;
  std::unique_ptr<PeerWatch> watch;
};

}  // namespace

TEST_CASE("a rank shows that it lives each second, whether it listens for others that long or not", "[watch]") {
  Watched patient(60);
  Watched debugged(0);
  std::this_thread::sleep_for(std::chrono::milliseconds(3500));
  CHECK(patient.signs() >= 3);
  CHECK(debugged.signs() >= 3);
}

TEST_CASE("ranks hear each other in time, whatever their own timeouts are", "[watch]") {
  constexpr int kRanks = 4;
  Job job(kRanks, {}, [] {}, {.silence_s = 60, .silence_of_s = {{0, 1}, {1, 0}}});
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  for (int rank = 0; rank < kRanks; ++rank) {
    CAPTURE(rank, job.failure(rank));
    CHECK_FALSE(job.has_failed(rank));
  }
}

TEST_CASE("the time in which all were stopped is no silence", "[watch][forks]") {
  constexpr int kRanks = 3;
  const pid_t all = rank_runs::spawn([]() -> std::string {
    Job job(kRanks, {}, [] {}, {.silence_s = 1});
    std::this_thread::sleep_for(std::chrono::milliseconds(4500));
    for (int rank = 0; rank < kRanks; ++rank)
      if (job.has_failed(rank)) return job.failure(rank);
    return "";
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  kill(all, SIGSTOP);
  std::this_thread::sleep_for(std::chrono::seconds(2));
  kill(all, SIGCONT);
  CHECK(rank_runs::ended_well(all));
}

TEST_CASE("a rank that is gone unheard is no death, and all hear that it cannot be reached", "[watch]") {
  constexpr int kRanks = 20;
  constexpr int kUnheard = 7;
  Job job(kRanks, {kUnheard}, [] {}, {.silence_s = 2, .reach = std::chrono::seconds(1)});
  job.close_listener(kUnheard);
  std::vector<int> gone = watched_by(kUnheard, kRanks);
  job.leave_together(gone);
  gone.push_back(kUnheard);
  for (const int rank : without(kRanks, gone)) {
    CAPTURE(rank);
    CHECK(job.life(rank, kUnheard, PeerLife::kUnreached) == PeerLife::kUnreached);
  }
  std::this_thread::sleep_for(std::chrono::seconds(3));
  for (const int rank : without(kRanks, gone)) CHECK_FALSE(job.has_failed(rank));
}

TEST_CASE("a rank that leaves passes on the death that it finds last", "[watch]") {
  std::mutex mutex;
  std::condition_variable changed;
  bool busy = false;
  bool go_on = false;
  const auto wait_once = [&] {
    std::unique_lock lock(mutex);
    busy = true;
    changed.notify_all();
    changed.wait_for(lock, kPatience, [&] { return go_on; });
  };
  Job job(3, {1, 2}, wait_once);
  job.kill(1);
  {
    std::unique_lock lock(mutex);
    REQUIRE(changed.wait_for(lock, kPatience, [&] { return busy; }));
  }
  job.kill(2);
  std::thread leaving([&job] { job.leave(0); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // until it is to stop
  {
    const std::lock_guard lock(mutex);
    go_on = true;
    changed.notify_all();
  }
  leaving.join();
  CHECK(job.life_now(0, 2) == PeerLife::kEnded);
}

TEST_CASE("a rank that cannot watch others says so, and is not dead for them", "[watch]") {
  int pair[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
  struct Side {
    FailureRecord failure;
    std::atomic<PeerLife> other = PeerLife::kThere;
  } sides[2];
  const auto start = [&](int rank) {
    PeerWatch::Args args{.rank = rank, .failure = &sides[rank].failure, .timeout_s = 60};
    args.sockets.resize(2);
    args.sockets[static_cast<std::size_t>(1 - rank)] = PrivateDescriptor::open([&] { return pair[rank]; });
    args.callbacks.on_gone = [&, rank](int, PeerLife life, std::uint32_t) { sides[rank].other = life; };
    args.callbacks.on_death = [](int, PeerLife) {};
    return PeerWatch::start(std::move(args));
  };
  const auto other = start(1);
  REQUIRE(other.ok());
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  const int next = fcntl(pair[0], F_DUPFD, 0);
  close(next);
  const rlimit none{static_cast<rlim_t>(next), before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
  const auto started = start(0);
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
  REQUIRE_FALSE(started.ok());
  CHECK_THAT(started.error().message, Catch::Contains("Too many open files"));
  for (const auto end = Clock::now() + kPatience; sides[1].other == PeerLife::kThere && Clock::now() < end;)
    usleep(1000);
  CHECK(sides[1].other == PeerLife::kLeft);
  CHECK(std::string(sides[1].failure.text) == "rank 0 could not initialise: " + started.error().message);
}
