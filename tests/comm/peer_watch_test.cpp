// More ranks than can all watch each other: each has what a communicator's rank has for that, its thread and a port of the loopback. Ranks
// that are to die are sockets that nobody reads, and which are closed.
#include "comm/peer_watch.h"

#include "comm/carriers.h"
#include "comm/late_ties.h"
#include "comm/mesh.h"

#include <catch2/catch.hpp>

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace tutti::comm;
using tutti::Code;

namespace {

using Clock = std::chrono::steady_clock;
/// For a busy machine: what is waited for takes milliseconds.
constexpr auto kPatience = std::chrono::seconds(20);

std::vector<Ties> ties_of_rank(int rank, int ranks, bool over_mpi) {
  std::vector<Peer> peers(static_cast<std::size_t>(ranks));
  for (int r = 0; r < ranks; ++r) {
    peers[static_cast<std::size_t>(r)].rank = r;
    peers[static_cast<std::size_t>(r)].host = "host-" + std::to_string(r);
  }
  return ties_of(rank, peers, over_mpi);
}

struct Times {
  double silence_s = 60;
  std::chrono::seconds reach{30};
};

class Job {
 public:
  /// `victims`: those that are to die, and are stopped until then: nothing is answered where they listen.
  Job(
      int ranks, const std::vector<int>& victims, std::function<void()> at_death = [] {}, const Times& times = {})
      : at_death_(std::move(at_death)), times_(times), members_(static_cast<std::size_t>(ranks)) {
    std::vector<RankEndpoint> endpoints(members_.size());
    std::vector<TcpListener> listeners;
    for (RankEndpoint& endpoint : endpoints) {
      auto listener = listen_tcp();
      REQUIRE(listener.ok());
      endpoint.port = listener.value().port;
      endpoint.addresses.push_back({false, {127, 0, 0, 1}});
      listeners.push_back(std::move(listener).value());
    }
    for (Member& member : members_) member.sockets.resize(members_.size());
    for (int a = 0; a < ranks; ++a) {
      const std::vector<Ties> ties = ties_of_rank(a, ranks, true);
      for (int b = a + 1; b < ranks; ++b) {
        if (ties[static_cast<std::size_t>(b)].watch) connect(a, b);
      }
    }
    for (int rank = 0; rank < ranks; ++rank) {
      Member& member = of(rank);
      member.listener = std::move(listeners[static_cast<std::size_t>(rank)]);
      if (std::ranges::find(victims, rank) == victims.end()) start(rank, endpoints);
    }
  }
  ~Job() {
    std::vector<std::thread> leaving;
    for (Member& member : members_) leaving.emplace_back([&member] { member.watch.reset(); });
    for (std::thread& one : leaving) one.join();
  }

  void kill(int rank) {
    of(rank).sockets.clear();
    of(rank).listener = {};
  }
  /// Nobody listens there any more.
  void close_listener(int rank) { of(rank).listener = {}; }
  void begin_leaving(int rank) { of(rank).watch->begin_leaving(1); }
  void leave(int rank) {
    begin_leaving(rank);
    of(rank).watch.reset();
    of(rank).ties.reset();
  }
  void leave_together(const std::vector<int>& ranks) {
    std::vector<std::thread> leaving;
    for (const int rank : ranks) leaving.emplace_back([this, rank] { leave(rank); });
    for (std::thread& one : leaving) one.join();
  }
  void say(int rank, const std::string& words) { of(rank).watch->say(Bytes(words.begin(), words.end())); }
  void fail(int rank, const std::string& why) {
    record_failure(of(rank).failure, Code::kRemote, rank, why);
    of(rank).watch->wake();
  }

  /// Within 20 s.
  bool fails(int rank) {
    for (const auto end = Clock::now() + kPatience; !has_failed(rank) && Clock::now() < end;) usleep(1000);
    return has_failed(rank);
  }
  bool has_failed(int rank) { return of(rank).failure_word() == 2; }
  std::string failure(int rank) { return of(rank).failure.text; }

  /// What a rank knows of another one; 20 s are given for `life`.
  PeerLife life(int rank, int other, PeerLife life) {
    wait([&] { return found(rank, other) == life; });
    return life_now(rank, other);
  }
  PeerLife life_now(int rank, int other) {
    const std::lock_guard lock(mutex_);
    return found(rank, other);
  }
  /// In the place of one that is to die: makes connections with those who want to watch it, and drops them, so many.
  int make_and_drop(int rank, int connections) {
    Meetings meetings(rank, static_cast<int>(members_.size()), Secret{}, of(rank).listener.socket);
    int dropped = 0;
    meetings.begin({.expects = [](const Meetings::Key&) { return true; },
                    .on_made = [&](const Meetings::Key&, Connection) { ++dropped; }});
    for (const auto end = Clock::now() + kPatience; dropped < connections && Clock::now() < end;) {
      std::vector<pollfd> watched;
      meetings.add_to(watched);
      poll(watched.data(), watched.size(), 1);
      meetings.serve(watched);
    }
    return dropped;
  }
  bool hears(int rank, const std::string& words) {
    return wait([&] { return of(rank).words.contains(Bytes(words.begin(), words.end())); });
  }
  bool hears_of_death(int rank, int of_whom) {
    return wait([&] { return of(rank).deaths.contains(of_whom); });
  }

 private:
  struct Member {
    std::vector<PrivateDescriptor> sockets;
    TcpListener listener;
    FailureRecord failure;
    std::unique_ptr<LateTies> ties;
    std::unique_ptr<PeerWatch> watch;
    // Guarded by mutex_:
    std::map<int, PeerLife> lives;
    std::set<Bytes> words;
    std::set<int> deaths;

    std::uint64_t failure_word() { return __atomic_load_n(&failure.word, __ATOMIC_ACQUIRE); }
  };

  Member& of(int rank) { return members_[static_cast<std::size_t>(rank)]; }

  PeerLife found(int rank, int other) {
    const auto known = of(rank).lives.find(other);
    return known == of(rank).lives.end() ? PeerLife::kThere : known->second;
  }

  void connect(int a, int b) {
    int pair[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
    of(a).sockets[static_cast<std::size_t>(b)] = PrivateDescriptor::open([&] { return pair[0]; });
    of(b).sockets[static_cast<std::size_t>(a)] = PrivateDescriptor::open([&] { return pair[1]; });
  }

  void start(int rank, const std::vector<RankEndpoint>& endpoints) {
    Member& member = of(rank);
    LateMeeting meeting;
    meeting.listener = std::move(member.listener);
    const int ranks = static_cast<int>(members_.size());
    meeting.meetings = std::make_unique<Meetings>(rank, ranks, Secret{}, meeting.listener.socket);
    meeting.endpoints = endpoints;
    LateTies::Args args;
    args.rank = rank;
    args.meeting = std::move(meeting);
    args.missing.resize(members_.size());
    args.on_failure = [](int, const tutti::Error&) {};
    args.given_up = [&member] { return member.failure_word() == 2; };
    member.ties = std::make_unique<LateTies>(std::move(args));
    PeerWatch::Callbacks callbacks;
    callbacks.on_words = [this, &member](const Bytes& words) {
      return note([&] { return member.words.insert(words).second; });
    };
    callbacks.words_known = [this, &member] {
      const std::lock_guard lock(mutex_);
      return std::vector<Bytes>(member.words.begin(), member.words.end());
    };
    callbacks.on_gone = [this, rank, &member](int who, PeerLife life, std::uint32_t last_call) {
      if (life == PeerLife::kLeft) member.ties->note_left(who, last_call);
      const std::string by = life == PeerLife::kSilent ? " for rank " + std::to_string(rank) : "";
      if (is_death(life)) record_failure(member.failure, Code::kRemote, who, "rank " + std::to_string(who) + by);
      note([&] { return member.lives.emplace(who, life).second; });
    };
    callbacks.on_death = [this, &member](int who, PeerLife) {
      note([&] { return member.deaths.insert(who).second; });
      at_death_();
    };
    auto watch = PeerWatch::start({.rank = rank,
                                   .sockets = std::move(member.sockets),
                                   .failure = &member.failure,
                                   .timeout_s = times_.silence_s,
                                   .reach_time = times_.reach,
                                   .callbacks = std::move(callbacks),
                                   .beside = member.ties.get()});
    REQUIRE(watch.ok());
    member.watch = std::move(watch).value();
    member.ties->set_wake([watch = member.watch.get()] { watch->wake(); });
  }

  template <class Change>
  bool note(const Change& change) {
    const std::lock_guard lock(mutex_);
    const bool result = change();
    changed_.notify_all();
    return result;
  }
  template <class Condition>
  bool wait(const Condition& condition) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, condition);
  }

  std::function<void()> at_death_;
  const Times times_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Member> members_;
};

/// Those that a rank watches from the start.
std::vector<int> watched_by(int rank, int ranks) {
  std::vector<int> watched;
  const std::vector<Ties> ties = ties_of_rank(rank, ranks, true);
  for (int other = 0; other < ranks; ++other) {
    if (ties[static_cast<std::size_t>(other)].watch) watched.push_back(other);
  }
  return watched;
}

std::vector<int> without(int ranks, const std::vector<int>& those) {
  std::vector<int> left;
  for (int rank = 0; rank < ranks; ++rank) {
    if (std::ranges::find(those, rank) == those.end()) left.push_back(rank);
  }
  return left;
}

}  // namespace

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
