// More ranks than can all watch each other: each has what a communicator's rank has for that, its thread and a port of the loopback. Ranks
// that are to die are sockets that nobody reads, and which are closed.
#pragma once

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

namespace tutti::comm::watching {

using Clock = std::chrono::steady_clock;
/// For a busy machine: what is waited for takes milliseconds.
inline constexpr auto kPatience = std::chrono::seconds(20);

inline std::vector<Ties> ties_of_rank(int rank, int ranks, bool over_mpi) {
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
  std::map<int, double> silence_of_s = {};  ///< ranks of which it is another one
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
  /// It makes no more connections, and nobody can make any with it.
  void shut(int rank) {
    begin_leaving(rank);
    of(rank).ties->close_doors();
  }
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
      note([&] { return member.lives.insert_or_assign(who, life).second; });
    };
    callbacks.on_death = [this, &member](int who, PeerLife) {
      note([&] { return member.deaths.insert(who).second; });
      at_death_();
    };
    const auto own = times_.silence_of_s.find(rank);
    auto watch = PeerWatch::start({.rank = rank,
                                   .sockets = std::move(member.sockets),
                                   .failure = &member.failure,
                                   .timeout_s = own == times_.silence_of_s.end() ? times_.silence_s : own->second,
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
inline std::vector<int> watched_by(int rank, int ranks) {
  std::vector<int> watched;
  const std::vector<Ties> ties = ties_of_rank(rank, ranks, true);
  for (int other = 0; other < ranks; ++other) {
    if (ties[static_cast<std::size_t>(other)].watch) watched.push_back(other);
  }
  return watched;
}

inline std::vector<int> without(int ranks, const std::vector<int>& those) {
  std::vector<int> left;
  for (int rank = 0; rank < ranks; ++rank) {
    if (std::ranges::find(those, rank) == those.end()) left.push_back(rank);
  }
  return left;
}

}  // namespace tutti::comm::watching
