// What must happen when a bootstrap goes wrong: everybody gets the same reason, soon, and nothing is left behind.
#include "base/random.h"
#include "comm/bootstrap.h"
#include "comm/messages.h"
#include "comm/tcp_socket.h"
#include "comm/unix_socket.h"
#include "rank_runs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include <atomic>
#include <csignal>
#include <cstring>
#include <thread>

using namespace rank_runs;
using Catch::Contains;
using tutti::Code;
using tutti::comm::BootstrapArgs;
using tutti::comm::Connection;
using tutti::comm::FrameType;
using tutti::comm::UniqueId;

TEST_CASE("a rank with a damaged secret fails alone", "[bootstrap]") {
  const NothingLeft nothing_left;
  const UniqueId id = new_id();
  UniqueId damaged = id;
  damaged.secret[31] ^= 1;
  const Outcome outcome = run_rank(damaged, 1, 2);
  CHECK_FALSE(outcome.ok);
  CHECK(outcome.code == Code::kInvalidUsage);
  CHECK_THAT(outcome.message, Contains("secret"));
  auto others = run_threads(id, {0, 1}, 2);
  check_all_work(others);
}

TEST_CASE("a duplicate rank is told to all, with both processes", "[bootstrap]") {
  const NothingLeft nothing_left;
  const UniqueId id = new_id();
  for (const Outcome& outcome : run_threads(id, {0, 3, 1, 3}, 4)) {
    CHECK_FALSE(outcome.ok);
    CHECK(outcome.code == Code::kInvalidUsage);
    CHECK_THAT(outcome.message, Contains(fmt::format("rank 3 appeared twice (processes {0} and {0})", getpid())));
    CHECK(outcome.seconds < 2);
  }
}

TEST_CASE("different rank counts are told to all, with both counts", "[bootstrap]") {
  const NothingLeft nothing_left(8);  // If rank 1 comes first, the root waits a while for five.
  const UniqueId id = new_id();
  const auto outcomes = run_threads(id, {0, 1, 2}, 3, [](BootstrapArgs& args) {
    if (args.rank == 1) args.ranks = 5;
  });
  for (const Outcome& outcome : outcomes) {
    CHECK_FALSE(outcome.ok);
    CHECK(outcome.code == Code::kInvalidUsage);
    CHECK_THAT(outcome.message, Contains("3") && Contains("5") && Contains("rank 1") && Contains("ranks"));
  }
}

TEST_CASE("another version of the protocol is told to all", "[bootstrap]") {
  const NothingLeft nothing_left;
  const UniqueId id = new_id();
  tutti::comm::Secret secret;
  std::memcpy(secret.data(), id.secret, secret.size());
  std::vector<Outcome> outcomes;
  std::thread ranks([&] { outcomes = run_threads(id, {0}, 2); });
  Connection newer(tutti::comm::connect_unix(id.address), Connection::kRootPayloadMax);
  const auto next = [&newer] {
    for (bool open = true;;) {
      auto frame = newer.next();
      if (frame.ok() && frame.value()) return std::move(*frame.value());
      if (!frame.ok() || !open) return tutti::comm::Frame{};
      open = newer.fill() == Connection::Input::kOpen;
      usleep(500);
    }
  };
  usleep(50000);
  const tutti::comm::Greeting greeting{77, {}};
  newer.queue(FrameType::kGreeting, encode(greeting));
  newer.flush();
  const auto challenge = tutti::comm::decode_challenge(next().payload);
  tutti::comm::WireWriter hello;
  if (challenge) hello.raw(rank_proof(secret, greeting, *challenge, FrameType::kHello, {}));
  newer.queue(FrameType::kHello, hello.take());
  newer.flush();
  const auto told = tutti::comm::decode_failure(next().payload);
  ranks.join();
  REQUIRE(challenge);
  CHECK(tutti::same_digest(challenge->proof, root_proof(secret, greeting, *challenge)));
  REQUIRE(told);
  for (const std::string& message : {told->message, outcomes[0].message}) {
    CHECK_THAT(message, Contains("version 77") && Contains("version " + std::to_string(tutti::comm::kProtocolVersion)));
  }
  CHECK_FALSE(outcomes[0].ok);

  UniqueId newer_id = id;
  newer_id.version = 77;
  CHECK_THAT(run_rank(newer_id, 0, 1).message,
             Contains("version 77") && Contains("version " + std::to_string(tutti::comm::kProtocolVersion)));
}

TEST_CASE("a rank that is killed while others still come is named to all, late comers too", "[bootstrap][forks]") {
  const NothingLeft nothing_left;
  const double least_s = least_of_a_few(0.5, [] {
    const UniqueId id = new_id();
    const pid_t victim = spawn([&] { return run_rank(id, 2, 4).message; });
    std::vector<Outcome> outcomes;
    std::thread ranks([&] { outcomes = run_threads(id, {0, 3}, 4); });
    usleep(1000000);
    const Stopwatch watch;
    kill(victim, SIGKILL);
    ranks.join();
    const double took_s = watch.seconds();
    waitpid(victim, nullptr, 0);
    outcomes.push_back(run_rank(id, 1, 4));
    for (const Outcome& outcome : outcomes) {
      CHECK_FALSE(outcome.ok);
      CHECK(outcome.code == Code::kRemote);
      CHECK_THAT(outcome.message, Contains(fmt::format("rank 2 (process {})", victim)));
    }
    return took_s;
  });
  CHECK(least_s < 0.5);
}

TEST_CASE("a rank that is killed between the table and the control segment is named to all", "[bootstrap][forks]") {
  const NothingLeft nothing_left;
  for (const int victim_rank : {0, 2}) {  // The leader and a follower.
    const UniqueId id = new_id();
    const pid_t victim = spawn([&] {
      return run_rank(id, victim_rank, 3,
                      [](BootstrapArgs& args) {
                        args.control_bytes = [](int) -> std::size_t {
                          raise(SIGKILL);
                          return 0;
                        };
                      })
          .message;
    });
    const auto outcomes = run_threads(id, victim_rank == 0 ? std::vector{1, 2} : std::vector{0, 1}, 3);
    waitpid(victim, nullptr, 0);
    for (const Outcome& outcome : outcomes) {
      CHECK_FALSE(outcome.ok);
      CHECK(outcome.seconds < 1);
      CHECK_THAT(outcome.message, Contains(fmt::format("rank {} (process {})", victim_rank, victim)));
    }
  }
}

TEST_CASE("what one rank cannot do is told to all", "[bootstrap]") {
  const NothingLeft nothing_left;
  const UniqueId id = new_id();
  const auto outcomes = run_threads(id, {0, 1, 2}, 3, [](BootstrapArgs& args) {
    if (args.rank == 2) args.control_bytes = [](int) -> std::size_t { return 12345; };
  });
  for (const Outcome& outcome : outcomes) {
    CHECK_FALSE(outcome.ok);
    CHECK_THAT(outcome.message, Contains("12345") && Contains("12288"));
  }
  CHECK_THAT(outcomes[0].message, Contains("rank 2"));
}

TEST_CASE("the death of the id's maker ends all waits, even if it has children", "[bootstrap][forks]") {
  const NothingLeft nothing_left;
  const double least_s = least_of_a_few(0.5, [] {
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    const pid_t maker = spawn([&]() -> std::string {
      auto id = tutti::comm::make_unique_id();
      if (!id.ok()) return id.error().message;
      spawn([&]() -> std::string {
        close(ends[1]);
        sleep(3);
        return "";
      });
      if (write(ends[1], &id.value(), sizeof(UniqueId)) != sizeof(UniqueId)) return "pipe";
      pause();
      return "";
    });
    close(ends[1]);
    UniqueId id;
    REQUIRE(read(ends[0], &id, sizeof(id)) == sizeof(id));
    close(ends[0]);
    std::vector<Outcome> outcomes;
    std::thread ranks([&] { outcomes = run_threads(id, {0, 1}, 3); });
    usleep(1000000);
    const Stopwatch watch;
    kill(maker, SIGKILL);
    ranks.join();
    const double took_s = watch.seconds();
    for (const Outcome& outcome : outcomes) {
      CHECK(outcome.code == Code::kRemote);
      CHECK_THAT(outcome.message, Contains(fmt::format("process {}", maker)) && Contains("unique id"));
    }
    const Outcome late = run_rank(id, 2, 3);
    CHECK(late.code == Code::kRemote);
    CHECK_THAT(late.message, Contains("nobody listens"));
    CHECK(late.seconds < 0.5);
    waitpid(maker, nullptr, 0);
    return took_s;
  });
  CHECK(least_s < 0.5);
}

TEST_CASE("a timeout names the missing ranks", "[bootstrap]") {
  const NothingLeft nothing_left(8);
  const UniqueId id = new_id();
  double longest_s = 0;  // a thread that started late has waited for less
  for (const Outcome& outcome : run_threads(id, {0, 2}, 4, [](BootstrapArgs& args) { args.timeout_s = 0.3; })) {
    CHECK_FALSE(outcome.ok);
    CHECK(outcome.code == Code::kRemote);
    CHECK_THAT(outcome.message, Contains("0.3 s") && Contains("2 of 4 ranks did not come: ranks 1, 3"));
    CHECK(outcome.seconds < 0.8);
    longest_s = std::max(longest_s, outcome.seconds);
  }
  CHECK(longest_s > 0.29);
}

TEST_CASE("ranks that are stopped once all have come are named, and nobody else", "[bootstrap][forks]") {
  const NothingLeft nothing_left(8);
  const std::vector<int> stopped = GENERATE(std::vector<int>{0}, std::vector<int>{2}, std::vector<int>{1, 2});
  const UniqueId id = new_id();
  std::vector<pid_t> victims;
  for (const int rank : stopped) {
    victims.push_back(spawn([&] {
      // It is asked for once the ranks know each other.
      return run_rank(id, rank, 4,
                      [](BootstrapArgs& args) {
                        args.control_bytes = [](int) -> std::size_t { return raise(SIGSTOP) == 0 ? 0 : 1; };
                      })
          .message;
    }));
  }
  std::vector<int> others = all_ranks(4);
  std::erase_if(others, [&](int rank) { return std::ranges::count(stopped, rank) > 0; });
  const std::string who =
      stopped.size() == 1
          ? fmt::format("(TUTTI_TIMEOUT_S): rank {} (process {}) does not answer: is it stopped?", stopped[0],
                        victims[0])
          : fmt::format("2 of 4 ranks do not answer: ranks {}: are they stopped?", fmt::join(stopped, ", "));
  for (const Outcome& outcome : run_threads(id, others, 4, [](BootstrapArgs& args) { args.timeout_s = 1.5; })) {
    CHECK(outcome.code == Code::kRemote);
    CHECK_THAT(outcome.message, Contains("1.5 s") && Contains(who));
    CHECK(outcome.seconds < 5);
  }
  for (const pid_t victim : victims) {
    kill(victim, SIGKILL);
    waitpid(victim, nullptr, 0);
  }
}

TEST_CASE("ranks that are slow, and answer, are told as those that did not finish", "[bootstrap]") {
  const NothingLeft nothing_left(8);
  const UniqueId id = new_id();
  std::vector<Outcome> outcomes(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      outcomes[static_cast<std::size_t>(rank)] = run_rank(id, rank, 3, [rank](BootstrapArgs& args) {
        if (rank != 0) args.timeout_s = 0.5;
        args.control_bytes = [rank](int) -> std::size_t {
          if (rank == 0) usleep(1000000);
          return 4096;
        };
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Outcome& outcome : outcomes)
    CHECK_THAT(outcome.message, Contains("3 of 3 ranks did not finish: ranks 0, 1, 2"));
}

TEST_CASE("a stopped maker of the id is a timeout too", "[bootstrap]") {
  const NothingLeft nothing_left;
  const Maker maker;
  kill(maker.pid, SIGSTOP);
  // Its other thread may run a little longer, and let the rank in.
  REQUIRE(waitpid(maker.pid, nullptr, WUNTRACED) == maker.pid);
  const Outcome outcome = run_rank(maker.id, 0, 2, [](BootstrapArgs& args) { args.timeout_s = 0.2; });
  CHECK_FALSE(outcome.ok);
  CHECK(outcome.seconds < 2);  // The root gets a second to say who is missing.
  CHECK_THAT(outcome.message, Contains(fmt::format("process {}", maker.pid)) && Contains("0.2 s"));
}

TEST_CASE("a maker of the id that is slow when time is over says who is missing all the same", "[bootstrap][forks]") {
  const NothingLeft nothing_left;
  const Maker maker;
  const Arguments soon = [](BootstrapArgs& args) { args.timeout_s = 1; };
  std::vector<Outcome> outcomes;
  std::thread ranks([&] { outcomes = run_threads(maker.id, {0, 1}, 3, soon); });
  usleep(500000);
  kill(maker.pid, SIGSTOP);
  usleep(2000000);
  kill(maker.pid, SIGCONT);
  ranks.join();
  for (const Outcome& outcome : outcomes) {
    CHECK(outcome.code == Code::kRemote);
    CHECK_THAT(outcome.message, Contains("longer than 1 s") && Contains("1 of 3 ranks did not come: rank 2"));
  }
}

TEST_CASE("who waits for a maker of the id to say who is missing can be cancelled", "[bootstrap][forks]") {
  const NothingLeft nothing_left;
  const Maker maker;
  std::atomic<bool> cancelled{false};
  const Arguments soon = [&](BootstrapArgs& args) {
    args.timeout_s = 1;
    args.cancelled = &cancelled;
  };
  Outcome outcome;
  std::thread rank([&] { outcome = run_rank(maker.id, 0, 2, soon); });
  usleep(500000);
  kill(maker.pid, SIGSTOP);
  usleep(1000000);
  const Stopwatch watch;
  cancelled = true;
  rank.join();
  CHECK(watch.seconds() < 2);  // else it would wait 3.5 s from when its time was over
  CHECK_THAT(outcome.message, Contains("aborted"));
}

TEST_CASE("a maker of the id that is stopped is missed by its ranks, before it has said a word and later",
          "[bootstrap][forks]") {
  const NothingLeft nothing_left;
  const bool later = GENERATE(false, true);
  const Maker maker;
  Outcome outcome;
  if (!later) kill(maker.pid, SIGSTOP);
  std::thread rank([&] { outcome = run_rank(maker.id, 0, 2, [](BootstrapArgs& args) { args.heartbeat_s = 1.5; }); });
  if (later) usleep(1000000);
  kill(maker.pid, SIGSTOP);
  const Stopwatch watch;
  rank.join();
  CHECK(watch.seconds() < 3);
  CHECK(outcome.code == Code::kRemote);
  CHECK_THAT(outcome.message,
             Contains(fmt::format("process {}, which made the unique id, gave no sign of life for 1.5 s", maker.pid)));
}

TEST_CASE("cancelling ends the wait at once and is told to the others", "[bootstrap]") {
  const NothingLeft nothing_left;
  const double least_s = least_of_a_few(0.15, [] {
    const UniqueId id = new_id();
    std::atomic<bool> cancelled{false};
    Outcome mine;
    Outcome other;
    std::thread first([&] { mine = run_rank(id, 1, 3, [&](BootstrapArgs& args) { args.cancelled = &cancelled; }); });
    std::thread second([&] { other = run_rank(id, 0, 3); });
    usleep(1000000);  // the root knows both
    const Stopwatch watch;
    cancelled = true;
    first.join();
    const double took_s = watch.seconds();
    second.join();
    CHECK_FALSE(mine.ok);
    CHECK_THAT(mine.message, Contains("aborted"));
    CHECK(other.code == Code::kRemote);
    CHECK_THAT(other.message, Contains("rank 1") && Contains("aborted"));
    const Outcome late = run_rank(id, 2, 3);
    CHECK(late.message == other.message);
    return took_s;
  });
  CHECK(least_s < 0.15);
}

TEST_CASE("who is aborted before it has come tells the others, and is soon gone where nobody listens", "[bootstrap]") {
  const NothingLeft nothing_left(8);
  const int ranks = GENERATE(3, 20);
  UniqueId id = new_id();
  const std::atomic<bool> cancelled{true};
  const auto abort_1 = [&] {
    return run_rank(id, 1, ranks, [&](BootstrapArgs& args) { args.cancelled = &cancelled; });
  };
  CHECK_THAT(abort_1().message, Contains("aborted"));
  const Outcome other = run_rank(id, 0, ranks);
  CHECK(other.code == Code::kRemote);
  CHECK_THAT(other.message, Contains(fmt::format("rank 1 (process {}) gave up: ", getpid())) && Contains("aborted"));
  id.address[0] ^= 1;
  id.port = 0;
  CHECK(abort_1().seconds < 2);
}

TEST_CASE("a control segment that one rank cannot take is told to all", "[bootstrap]") {
  const NothingLeft nothing_left;
  const int unable = GENERATE(0, 2);  // The leader and a follower.
  const UniqueId id = new_id();
  for (const Outcome& outcome : run_threads(id, all_ranks(3), 3, [&](BootstrapArgs& args) {
         args.take_control = [rank = args.rank, unable](int fd, std::size_t bytes) -> tutti::Status {
           if (rank == unable) return tutti::error(Code::kSystem, fmt::format("no room for {}", bytes));
           return fd >= 0 ? tutti::Status() : tutti::error(Code::kInternal, "no segment");
         };
       })) {
    CHECK_FALSE(outcome.ok);
    CHECK_THAT(outcome.message, Contains("no room for 12288"));
    if (outcome.code != Code::kSystem) CHECK_THAT(outcome.message, Contains(fmt::format("rank {} (process ", unable)));
  }
}

TEST_CASE("bad arguments and used ids are refused with the reason", "[bootstrap]") {
  const NothingLeft nothing_left;
  const UniqueId id = new_id();
  CHECK(run_rank(id, 2, 2).code == Code::kInvalidArgument);
  CHECK(run_rank(id, -1, 2).code == Code::kInvalidArgument);
  CHECK(run_rank(id, 0, 0).code == Code::kInvalidArgument);
  CHECK_THAT(run_rank(UniqueId{}, 0, 1).message, Contains("ncclGetUniqueId"));
  CHECK(run_rank(id, 0, 1, [](BootstrapArgs& args) { args.ids.clear(); }).code == Code::kInvalidArgument);
  auto good = run_threads(id, {0}, 1);
  check_all_work(good);
  usleep(20000);
  const Outcome again = run_rank(id, 0, 1);
  CHECK_FALSE(again.ok);
  CHECK_THAT(again.message, Contains("used before"));
}

TEST_CASE("ranks that go on without one that has not come meet at the same named address again", "[bootstrap]") {
  const NothingLeft nothing_left(8);
  UniqueId id;
  id.magic = tutti::comm::kUniqueIdMagic;
  id.version = tutti::comm::kProtocolVersion;
  id.named = 1;
  {
    const auto free_port = tutti::comm::listen_tcp();
    REQUIRE(free_port.ok());
    id.port = free_port.value().port;
  }
  tutti::comm::add_candidate(id, {false, {127, 0, 0, 1}});
  for (const Outcome& outcome : run_threads(id, {0, 2}, 3, [](BootstrapArgs& args) { args.timeout_s = 1.5; }))
    CHECK_THAT(outcome.message, Contains("1 of 3 ranks did not come: rank 1"));
  // That root is there still, for late ones. One of the two has another number now.
  auto again = run_threads(id, {0, 1}, 2, [](BootstrapArgs& args) { args.timeout_s = 20; });
  check_all_work(again);
}
