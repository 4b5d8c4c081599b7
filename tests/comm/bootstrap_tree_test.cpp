// The tree by which ranks hear of the bootstrap root: its shape, that the root's connections do not grow with the ranks, and what happens when
// ranks of it die, stop or give up.
#include "comm/bootstrap_tree.h"

#include "comm/bootstrap_root.h"
#include "comm/mesh.h"
#include "comm/root_client.h"
#include "comm/tcp_socket.h"
#include "comm/unique_id.h"
#include "comm/unix_socket.h"
#include "rank_runs.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace rank_runs;
using namespace tutti::comm;
using Catch::Contains;
using tutti::Code;

namespace {

RootClient enter(const UniqueId& id, const Patience& patience, int rank, int ranks) {
  auto root = RootClient::enter(id, patience, ranks, self_facts(rank));
  INFO((root.ok() ? "" : root.error().message));
  REQUIRE(root.ok());
  return std::move(root).value();
}

/// A root whose thread is the test's.
struct OwnRoot {
  UniqueId id;
  std::unique_ptr<BootstrapRoot> root;
  std::thread thread;

  /// By the Unix socket, or by TCP alone.
  explicit OwnRoot(bool by_unix_socket, double heartbeat_s = 10) {
    id.magic = kUniqueIdMagic;
    id.version = kProtocolVersion;
    std::fill(std::begin(id.secret), std::end(id.secret), 7);
    std::vector<PrivateDescriptor> listeners;
    if (by_unix_socket) {
      const std::string name = fmt::format("{}tutti-test-{}", kUnixPrefix, getpid());
      std::memcpy(id.address, name.c_str(), name.size() + 1);
      auto listener = listen_unix(name);
      REQUIRE(listener.ok());
      listeners.push_back(std::move(listener).value());
    } else {
      auto listener = listen_tcp();
      REQUIRE(listener.ok());
      id.port = listener.value().port;
      WireWriter writer;
      write_address(writer, {false, {127, 0, 0, 1}});
      const Bytes bytes = writer.take();
      std::ranges::copy(bytes, id.candidates);
      id.candidate_bytes = static_cast<std::uint8_t>(bytes.size());
      // Nobody listens there: ranks go on to TCP.
      const std::string name = fmt::format("{}tutti-test-{}-none", kUnixPrefix, getpid());
      std::memcpy(id.address, name.c_str(), name.size() + 1);
      listeners.push_back(std::move(listener.value().socket));
    }
    root = std::make_unique<BootstrapRoot>(std::move(listeners), secret_of(id), heartbeat_s);
    thread = std::thread([this] { root->run(); });
  }
  ~OwnRoot() { thread.join(); }
};

void check_all(std::vector<Outcome>& outcomes) {
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    INFO("rank " << rank << ": " << outcomes[rank].message);
    REQUIRE(outcomes[rank].ok);
    REQUIRE(outcomes[rank].result.peers.size() == outcomes.size());
    REQUIRE(outcomes[rank].result.peers[rank].rank == static_cast<int>(rank));
    close(outcomes[rank].result.control.fd);
  }
}

constexpr int kMany = 90;  ///< three levels: 16, 64, and the rest

/// `kMany` ranks in the order of their numbers, of which all but the last are in the tree and wait for it. `victim` is a process.
struct Waiting {
  UniqueId id;
  std::vector<Outcome> outcomes{static_cast<std::size_t>(kMany)};
  std::vector<std::thread> threads;
  pid_t victim = -1;

  Waiting(int victim_rank, const Arguments& change = {}) {
    const auto made = make_unique_id();
    REQUIRE(made.ok());
    id = made.value();
    // Forked first: a child has no use for threads.
    int gate[2];
    REQUIRE(pipe(gate) == 0);
    if (victim_rank >= 0) {
      victim = spawn([&] {
        char go = 0;
        return read(gate[0], &go, 1) == 1 ? run_rank(id, victim_rank, kMany).message : "no gate";
      });
    }
    for (int rank = 0; rank + 1 < kMany; ++rank) {
      if (rank == victim_rank) {
        REQUIRE(write(gate[1], "g", 1) == 1);
      } else {
        threads.emplace_back([this, rank, change] { outcomes[rank] = run_rank(id, rank, kMany, change); });
      }
      usleep(rank == victim_rank ? 300000 : 3000);  // they come in order, for the most part
    }
    close(gate[0]);
    close(gate[1]);
    usleep(200000);
  }
  ~Waiting() {
    all();
    end_bootstrap(id);  // a failed root stays for a while
  }
  /// When all of them have ended.
  const std::vector<Outcome>& all() {
    for (std::thread& thread : threads) thread.join();
    threads.clear();
    return outcomes;
  }
};

}  // namespace

TEST_CASE("the tree has few children for each, and a depth that grows with the logarithm", "[tree]") {
  const auto [arrivals, deepest] =
      GENERATE(table<int, int>({{16, 1}, {17, 2}, {80, 2}, {81, 3}, {1024, 4}, {16384, 6}}));
  std::vector<int> depth;
  std::vector<int> children(static_cast<std::size_t>(arrivals));
  int tops = 0;
  for (int arrival = 0; arrival < arrivals; ++arrival) {
    const int above = parent_of(arrival);
    REQUIRE(above < arrival);
    tops += above == kBelowRoot ? 1 : 0;
    if (above != kBelowRoot) ++children[static_cast<std::size_t>(above)];
    depth.push_back(above == kBelowRoot ? 1 : depth[static_cast<std::size_t>(above)] + 1);
  }
  CHECK(tops == kRootChildren);
  CHECK(std::ranges::max(children) <= kRankChildren);
  CHECK(depth.back() == deepest);
}

TEST_CASE("the root keeps a few of many ranks, by the Unix socket and by TCP", "[tree]") {
  const bool by_unix_socket = GENERATE(true, false);
  INFO((by_unix_socket ? "Unix socket" : "TCP"));
  const NothingLeft nothing_left;
  std::size_t at_rest = 0;
  OwnRoot root(by_unix_socket);
  std::vector<Outcome> outcomes(kMany);
  std::vector<std::thread> threads;
  for (int rank = 0; rank + 1 < kMany; ++rank)
    threads.emplace_back([&, rank] { outcomes[rank] = run_rank(root.id, rank, kMany); });
  // The last one comes when the others are in their places: those on the way there are connected with the root as well.
  for (int tries = 0, calm = 0; tries < 200 && calm < 10; ++tries, usleep(100000)) {
    at_rest = root.root->connections();
    calm = at_rest == kRootChildren ? calm + 1 : 0;
  }
  outcomes.back() = run_rank(root.id, kMany - 1, kMany);
  for (std::thread& thread : threads) thread.join();
  check_all(outcomes);
  CHECK(root.root->most_connections() <= BootstrapRoot::kConnectionsMax);
  CHECK(at_rest == kRootChildren);
}

TEST_CASE("a rank of the tree that is killed is named to all, those below it too", "[tree][forks]") {
  const NothingLeft nothing_left;
  const int victim =
      GENERATE(3, 20, 70);  // below the root, with ranks below it; below another, with ranks below it; with none
  INFO("rank " << victim);
  Waiting waiting(victim);
  const Stopwatch watch;
  kill(waiting.victim, SIGKILL);
  for (int rank = 0; rank + 1 < kMany; ++rank) {
    if (rank == victim) continue;
    const Outcome& outcome = waiting.all()[static_cast<std::size_t>(rank)];
    INFO("rank " << rank);
    CHECK_FALSE(outcome.ok);
    CHECK(outcome.code == Code::kRemote);
    CHECK_THAT(outcome.message, Contains(fmt::format("rank {} (process {})", victim, waiting.victim)) &&
                                    Contains("ended before all ranks were initialised"));
  }
  CHECK(watch.seconds() < 3);
  waitpid(waiting.victim, nullptr, 0);
  const Outcome late = run_rank(waiting.id, kMany - 1, kMany);
  CHECK_THAT(late.message, Contains(fmt::format("rank {} (process {})", victim, waiting.victim)));
}

TEST_CASE("a rank that cannot listen for those below it is named to all, with the reason", "[tree][forks]") {
  const NothingLeft nothing_left(8);
  constexpr int kRanks = kRootChildren + 2;
  const auto id = make_unique_id();
  REQUIRE(id.ok());
  const pid_t victim = spawn([&]() -> std::string {
    // One descriptor is left, with which it reaches the root.
    const int next = dup(0);
    close(next);
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = static_cast<rlim_t>(next) + 1;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return "no limit";
    const Outcome outcome = run_rank(id.value(), 5, kRanks);
    return outcome.message.find("Too many open files") == std::string::npos ? "it says " + outcome.message : "";
  });
  std::vector<int> others = all_ranks(kRanks);
  std::erase(others, 5);
  for (const Outcome& outcome : run_threads(id.value(), others, kRanks)) {
    CHECK(outcome.seconds < 5);
    CHECK_THAT(outcome.message,
               Contains(fmt::format("rank 5 (process {}) gave up", victim)) && Contains("Too many open files"));
  }
  CHECK(ended_well(victim));
}

TEST_CASE("ranks of one host that come by TCP need no interface that NCCL_SOCKET_IFNAME leaves", "[tree]") {
  setenv("NCCL_SOCKET_IFNAME", "=nothing0", 1);
  {
    const NothingLeft nothing_left;
    OwnRoot root(false);
    auto outcomes = run_threads(root.id, all_ranks(kRootChildren + 10), kRootChildren + 10);
    check_all(outcomes);
  }
  unsetenv("NCCL_SOCKET_IFNAME");
}

TEST_CASE("the death of the id's maker ends the waits of all ranks of the tree", "[tree][forks]") {
  const NothingLeft nothing_left;
  const Maker maker;
  std::vector<Outcome> outcomes;
  std::thread ranks([&] { outcomes = run_threads(maker.id, all_ranks(kMany - 1), kMany); });
  usleep(1000000);
  const Stopwatch watch;
  kill(maker.pid, SIGKILL);
  ranks.join();
  CHECK(watch.seconds() < 3);
  for (const Outcome& outcome : outcomes) {
    CHECK(outcome.code == Code::kRemote);
    CHECK_THAT(outcome.message, Contains(fmt::format("process {}", maker.pid)) && Contains("unique id"));
  }
}

TEST_CASE("a timeout names the missing rank on all ranks of the tree", "[tree]") {
  const NothingLeft nothing_left(8);
  Waiting waiting(-1, [](BootstrapArgs& args) { args.timeout_s = 1.5; });
  for (int rank = 0; rank + 1 < kMany; ++rank) {
    const Outcome& outcome = waiting.all()[static_cast<std::size_t>(rank)];
    INFO("rank " << rank);
    CHECK_FALSE(outcome.ok);
    CHECK_THAT(outcome.message,
               Contains("1.5 s") && Contains(fmt::format("1 of {} ranks did not come: rank {}", kMany, kMany - 1)));
    CHECK(outcome.seconds < 4);
  }
}

TEST_CASE("a rank of the tree that is stopped does not keep those below it from the root's answer", "[tree][forks]") {
  const NothingLeft nothing_left(8);
  constexpr int kStopped = 3;
  Waiting waiting(kStopped, [](BootstrapArgs& args) { args.timeout_s = 2; });
  kill(waiting.victim, SIGSTOP);
  for (int rank = 0; rank + 1 < kMany; ++rank) {
    if (rank == kStopped) continue;
    INFO("rank " << rank);
    CHECK_THAT(waiting.all()[static_cast<std::size_t>(rank)].message, Contains("2 s") && Contains("did not come"));
  }
  kill(waiting.victim, SIGKILL);
  waitpid(waiting.victim, nullptr, 0);
}

TEST_CASE("ranks below a stopped one hear why all failed before, and accuse nobody else", "[tree][forks]") {
  const NothingLeft nothing_left(8);
  const bool root_stays = GENERATE(true, false);
  INFO((root_stays ? "the root is there" : "the root has ended"));
  constexpr int kStopped = 3;
  Waiting waiting(kStopped, [](BootstrapArgs& args) { args.timeout_s = 3; });
  kill(waiting.victim, SIGSTOP);
  // With it all have come.
  const Outcome last = run_rank(waiting.id, 40, kMany);
  CHECK_THAT(last.message, Contains("rank 40 appeared twice"));
  if (!root_stays) end_bootstrap(waiting.id);
  int unheard = 0;
  for (int rank = 0; rank + 1 < kMany; ++rank) {
    if (rank == kStopped) continue;
    INFO("rank " << rank);
    const std::string& message = waiting.all()[static_cast<std::size_t>(rank)].message;
    if (message.find("rank 40 appeared twice") != std::string::npos) continue;
    ++unheard;
    CHECK_THAT(message, Contains(fmt::format("rank {} (process {}), by which this rank hears of the others, says "
                                             "nothing",
                                             kStopped, waiting.victim)));
  }
  CHECK((unheard == 0) == root_stays);
  kill(waiting.victim, SIGKILL);
  waitpid(waiting.victim, nullptr, 0);
}

TEST_CASE("a rank that is stopped once all have come is told to all, and nobody else is", "[tree][forks]") {
  const NothingLeft nothing_left(8);
  constexpr int kStopped = 3;
  Waiting waiting(kStopped, [](BootstrapArgs& args) { args.timeout_s = 10; });
  kill(waiting.victim, SIGSTOP);
  const Outcome last = run_rank(waiting.id, kMany - 1, kMany, [](BootstrapArgs& args) { args.timeout_s = 7; });
  const std::string who =
      fmt::format("rank {} (process {}) does not answer: is it stopped? (4 ranks below in the tree were not reached)",
                  kStopped, waiting.victim);
  CHECK_THAT(last.message, Contains(who));
  CHECK(last.seconds < 13);
  for (int rank = 0; rank + 1 < kMany; ++rank) {
    if (rank == kStopped) continue;
    INFO("rank " << rank);
    CHECK_THAT(waiting.all()[static_cast<std::size_t>(rank)].message, Contains(who));
  }
  kill(waiting.victim, SIGKILL);
  waitpid(waiting.victim, nullptr, 0);
}

TEST_CASE("a rank of the tree that is stopped is missed by its neighbours, long before anybody's time is over",
          "[tree][forks]") {
  const NothingLeft nothing_left(8);
  constexpr int kStopped = 3;
  Waiting waiting(kStopped, [](BootstrapArgs& args) { args.heartbeat_s = 1.5; });
  const Stopwatch watch;
  kill(waiting.victim, SIGSTOP);
  for (int rank = 0; rank + 1 < kMany; ++rank) {
    if (rank == kStopped) continue;
    INFO("rank " << rank);
    CHECK_THAT(waiting.all()[static_cast<std::size_t>(rank)].message,
               Contains(fmt::format("rank {} (process {}) gave no sign of life for 1.5 s", kStopped, waiting.victim)));
  }
  CHECK(watch.seconds() < 6);
  kill(waiting.victim, SIGKILL);
  waitpid(waiting.victim, nullptr, 0);
}

TEST_CASE("a rank that is stopped while others have not come is missed by the root", "[tree][forks]") {
  const NothingLeft nothing_left(8);
  constexpr int kStopped = 3;
  constexpr int kRanks = 5;  // the last one never comes
  const OwnRoot root(true, 1.5);
  const pid_t victim = spawn([&] { return run_rank(root.id, kStopped, kRanks).message; });
  usleep(1000000);
  kill(victim, SIGSTOP);
  const Stopwatch watch;
  for (const Outcome& outcome : run_threads(root.id, all_ranks(kStopped), kRanks)) {
    CHECK(outcome.code == Code::kRemote);
    CHECK_THAT(outcome.message,
               Contains(fmt::format("rank {} (process {}) gave no sign of life for 1.5 s", kStopped, victim)));
  }
  CHECK(watch.seconds() < 4);
  kill(victim, SIGKILL);
  waitpid(victim, nullptr, 0);
}

TEST_CASE("a rank whose coming is not passed on is named with the one that it was sent to", "[tree][forks]") {
  const NothingLeft nothing_left(8);
  constexpr int kStopped = 0;  // above those above the last one
  Waiting waiting(kStopped, [](BootstrapArgs& args) { args.timeout_s = 3; });
  kill(waiting.victim, SIGSTOP);
  const Outcome last = run_rank(waiting.id, kMany - 1, kMany, [](BootstrapArgs& args) { args.timeout_s = 1; });
  const std::string what = "did not reach the rank that the root sent it to";
  const std::string who = fmt::format("{} (to rank ", kMany - 1);
  CHECK_THAT(last.message, Contains(what) && Contains(who));
  for (int rank = 1; rank + 1 < kMany; ++rank) {
    INFO("rank " << rank);
    CHECK_THAT(waiting.all()[static_cast<std::size_t>(rank)].message, Contains(what) && Contains(who));
  }
  kill(waiting.victim, SIGKILL);
  waitpid(waiting.victim, nullptr, 0);
}

TEST_CASE("what a rank at the tree's end gives up for is told to all, and cancelling is too", "[tree]") {
  const NothingLeft nothing_left(8);
  std::atomic<bool> cancelled{false};
  Waiting waiting(-1, [&](BootstrapArgs& args) {
    if (args.rank == kMany - 2) args.cancelled = &cancelled;
  });
  const Stopwatch watch;
  cancelled = true;
  for (int rank = 0; rank + 2 < kMany; ++rank) {
    INFO("rank " << rank);
    CHECK_THAT(waiting.all()[static_cast<std::size_t>(rank)].message,
               Contains(fmt::format("rank {} (process {}) gave up", kMany - 2, getpid())) && Contains("aborted"));
  }
  CHECK(watch.seconds() < 3);
}

TEST_CASE("a rank twice, and another number of ranks, are told to all ranks of the tree", "[tree]") {
  const NothingLeft nothing_left(8);
  Waiting waiting(-1);
  const bool twice = GENERATE(true, false);
  const Outcome last = twice ? run_rank(waiting.id, 40, kMany) : run_rank(waiting.id, kMany - 1, kMany + 1);
  const std::string wanted = twice ? "rank 40 appeared twice" : fmt::format("was started for {} ranks", kMany + 1);
  CHECK_THAT(last.message, Contains(wanted));
  for (int rank = 0; rank + 1 < kMany; ++rank) {
    INFO("rank " << rank);
    CHECK_THAT(waiting.all()[static_cast<std::size_t>(rank)].message, Contains(wanted));
  }
}

TEST_CASE("why the bootstrap failed is heard behind what came before, also when the root has ended", "[tree]") {
  const NothingLeft nothing_left;
  const auto id = make_unique_id();
  REQUIRE(id.ok());
  const Patience patience(10, nullptr);
  RootClient stays = enter(id.value(), patience, 0, 2);
  {
    RootClient leaves = enter(id.value(), patience, 1, 2);
    (void)leaves.leave(tutti::error(Code::kSystem, "it has had enough"));
    usleep(200000);  // the root tells and ends; rank 0 has not read that it should listen
  }
  auto failure = stays.failure_now();
  for (int tries = 0; tries < 1000 && !failure; ++tries, usleep(10000)) failure = stays.failure_now();
  REQUIRE(failure);
  CHECK_THAT(failure->message, Contains("rank 1") && Contains("it has had enough"));
}

// A bootstrap with a sanitizer may take as long by itself.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_CASE("what the root says by TCP does not wait until what it said before is acknowledged", "[tree]") {
  const NothingLeft nothing_left;
  double least_s = 1;
  // The system acknowledges after 40 ms, where nothing is sent back.
  for (int attempt = 0; attempt < 20 && least_s > 0.03; ++attempt) {
    OwnRoot root(false);
    const Stopwatch watch;
    std::vector<Outcome> outcomes(2);
    std::thread first([&] { outcomes[0] = run_rank(root.id, 0, 2); });
    outcomes[1] = run_rank(root.id, 1, 2);
    first.join();
    least_s = std::min(least_s, watch.seconds());
    check_all(outcomes);
  }
  CHECK(least_s < 0.03);
}
#endif

TEST_CASE("a rank that comes before it is its turn is met later", "[tree]") {
  const NothingLeft nothing_left;
  const auto id = make_unique_id();
  REQUIRE(id.ok());
  const Patience patience(10, nullptr);
  std::vector<RootClient> ranks;
  std::vector<MeshListener> listeners;
  std::vector<std::unique_ptr<Mesh>> meshes;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.push_back(enter(id.value(), patience, rank, 4));  // one rank does not come: the root stays
    auto listening = open_mesh_listener();
    REQUIRE(listening.ok());
    listeners.push_back(std::move(listening).value());
  }
  for (int rank = 0; rank < 3; ++rank)
    meshes.push_back(
        std::make_unique<Mesh>(rank, 4, secret_of(id.value()), listeners[static_cast<std::size_t>(rank)].listener));
  const auto meet = [&](int rank, const Meeting& with) {
    const auto r = static_cast<std::size_t>(rank);
    return meshes[r]->meet({with}, patience, ranks[r]).ok();
  };
  const RankEndpoint* const there = &listeners[0].endpoint;
  std::atomic<bool> early{false};
  bool late = false;
  std::thread comes_early([&] { early = meet(1, {0, Purpose::kWatch, there}); });
  std::thread comes_late([&] {
    usleep(200000);
    late = meet(2, {0, Purpose::kData, there});
  });
  CHECK(meet(0, {2, Purpose::kData, nullptr}));
  CHECK_FALSE(early);
  CHECK(meet(0, {1, Purpose::kWatch, nullptr}));
  comes_early.join();
  comes_late.join();
  CHECK(early);
  CHECK(late);
  end_bootstrap(id.value());
}
