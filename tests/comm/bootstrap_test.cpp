#include "comm/bootstrap.h"

#include "rank_runs.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#include <catch2/catch.hpp>

#include <csignal>
#include <cstring>
#include <set>

using namespace rank_runs;
using tutti::Code;
using tutti::comm::BootstrapArgs;
using tutti::comm::make_unique_id;
using tutti::comm::Peer;
using tutti::comm::UniqueId;

namespace {

/// Empty, or what is wrong with one rank's table.
std::string check_table(const std::vector<Peer>& peers, int ranks, bool one_process) {
  if (peers.size() != static_cast<std::size_t>(ranks)) return fmt::format("{} peers of {}", peers.size(), ranks);
  std::set<int> pids;
  std::set<std::uint64_t> tokens;
  for (int rank = 0; rank < ranks; ++rank) {
    if (peers[rank].rank != rank) return fmt::format("entry {} is rank {}", rank, peers[rank].rank);
    if (peers[rank].host.empty() || peers[rank].host != peers[0].host) return "hosts differ";
    pids.insert(peers[rank].pid);
    tokens.insert(peers[rank].process_token);
  }
  const std::size_t processes = one_process ? 1 : static_cast<std::size_t>(ranks);
  if (pids.size() != processes || tokens.size() != processes)
    return fmt::format("{} pids, {} tokens", pids.size(), tokens.size());
  return "";
}

std::string process_rank(const UniqueId& id, int rank, int ranks) {
  const Outcome outcome = run_rank(id, rank, ranks);
  if (!outcome.ok) return outcome.message;
  if (outcome.result.peers[rank].pid != getpid()) return "wrong own pid";
  const std::string wrong = check_table(outcome.result.peers, ranks, false);
  return wrong.empty() ? meet_in_control(outcome.result, rank) : wrong;
}

void check_threads(int ranks) {
  const UniqueId id = new_id();
  std::vector<Outcome> outcomes = run_threads(id, all_ranks(ranks), ranks);
  std::set<int> fds;
  for (int rank = 0; rank < ranks; ++rank) {
    INFO(outcomes[rank].message);
    REQUIRE(outcomes[rank].ok);
    REQUIRE(check_table(outcomes[rank].result.peers, ranks, true) == "");
    REQUIRE(outcomes[rank].result.peers[rank].pid == getpid());
    fds.insert(outcomes[rank].result.control.fd);
  }
  REQUIRE(fds.size() == static_cast<std::size_t>(ranks));
  // Every rank's descriptor leads to the same memory: all marks are left before any rank looks.
  for (int rank = 0; rank < ranks; ++rank) {
    const std::uint64_t mark = 1000 + static_cast<std::uint64_t>(rank);
    REQUIRE(pwrite(outcomes[rank].result.control.fd, &mark, sizeof(mark), 4096 * rank) == sizeof(mark));
  }
  for (int rank = 0; rank < ranks; ++rank) REQUIRE(meet_in_control(outcomes[rank].result, rank) == "");
}

void check_processes(int ranks, bool parent_is_rank) {
  const UniqueId id = new_id();
  std::vector<pid_t> children;
  for (int rank = parent_is_rank ? 1 : 0; rank < ranks; ++rank) {
    children.push_back(spawn([&] { return process_rank(id, rank, ranks); }));
  }
  if (parent_is_rank) CHECK(process_rank(id, 0, ranks) == "");
  for (const pid_t child : children) CHECK(ended_well(child));
}

}  // namespace

TEST_CASE("ranks that are threads find each other and share the control segment", "[bootstrap]") {
  const NothingLeft nothing_left;
  for (int ranks = 1; ranks <= 16; ++ranks) check_threads(ranks);
  const Stopwatch watch;
  check_threads(64);
  INFO("64 threads took " << watch.seconds() << " s");
  CHECK(watch.seconds() < 2);
}

TEST_CASE("ranks that are processes, forked after the id was made, find each other", "[bootstrap][forks]") {
  const NothingLeft nothing_left;
  for (int ranks = 1; ranks <= 16; ++ranks) check_processes(ranks, ranks % 2 == 0);
  const Stopwatch watch;
  check_processes(64, false);
  INFO("64 processes took " << watch.seconds() << " s");
  CHECK(watch.seconds() < 2);
}

TEST_CASE("a hundred bootstraps in a row, and several ids at once, leave nothing behind", "[bootstrap]") {
  const NothingLeft nothing_left;
  const int threads = live_threads();
  const int descriptors = open_descriptors();
  for (int i = 0; i < 100; ++i) check_threads(3);
  CHECK(settles_to(descriptors, threads, 3));  // the last root may still be closing its own
  std::vector<UniqueId> ids;
  for (int i = 0; i < 10; ++i) ids.push_back(new_id());
  CHECK(settles_to(open_descriptors(), threads + 10, 3));
  for (const UniqueId& id : ids) {
    for (Outcome& outcome : run_threads(id, {1, 0}, 2)) {
      REQUIRE(outcome.ok);
      close(outcome.result.control.fd);
    }
  }
}

TEST_CASE("with several ids the first root serves and the others end", "[bootstrap]") {
  const NothingLeft nothing_left;
  const std::vector<UniqueId> ids = {new_id(), new_id(), new_id()};
  for (Outcome& outcome : run_threads(ids[0], {0, 1, 2, 3}, 4, [&](BootstrapArgs& args) { args.ids = ids; })) {
    REQUIRE(outcome.ok);
    close(outcome.result.control.fd);
  }
}

TEST_CASE("16 ranks work with 64 descriptors, in one process and in many", "[bootstrap][forks]") {
  const NothingLeft nothing_left;
  const pid_t child = spawn([]() -> std::string {
    const rlimit limit = {64, 64};
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return "setrlimit failed";
    auto id = make_unique_id();
    if (!id.ok()) return id.error().message;
    for (Outcome& outcome : run_threads(id.value(), all_ranks(16), 16)) {
      if (!outcome.ok) return outcome.message;
      close(outcome.result.control.fd);
    }
    auto second = make_unique_id();
    if (!second.ok()) return second.error().message;
    std::vector<pid_t> ranks;
    for (int rank = 0; rank < 16; ++rank)
      ranks.push_back(spawn([&] { return process_rank(second.value(), rank, 16); }));
    for (const pid_t rank : ranks) {
      if (!ended_well(rank)) return "a rank failed";
    }
    return "";
  });
  CHECK(ended_well(child));
}

TEST_CASE("signals do not disturb a bootstrap", "[bootstrap]") {
  const NothingLeft nothing_left;
  struct sigaction action = {};
  struct sigaction before = {};
  action.sa_handler = [](int) {};
  REQUIRE(sigaction(SIGALRM, &action, &before) == 0);
  const itimerval storm = {{0, 200}, {0, 200}};
  const itimerval calm = {};
  REQUIRE(setitimer(ITIMER_REAL, &storm, nullptr) == 0);
  for (int i = 0; i < 20; ++i) check_threads(8);
  REQUIRE(setitimer(ITIMER_REAL, &calm, nullptr) == 0);
  REQUIRE(sigaction(SIGALRM, &before, nullptr) == 0);
}

TEST_CASE("a process has one token and a forked child another; the probe shows it", "[bootstrap]") {
  const NothingLeft nothing_left;
  const Peer mine = tutti::comm::self_facts(3);
  CHECK(mine.rank == 3);
  CHECK(mine.pid == getpid());
  CHECK(mine.process_token == tutti::comm::self_facts(0).process_token);
  std::uint64_t probed = 0;
  std::memcpy(&probed, reinterpret_cast<const void*>(mine.probe_address), sizeof(probed));
  CHECK(probed == mine.probe_value);
  CHECK(ended_well(spawn([&]() -> std::string {
    const Peer child = tutti::comm::self_facts(3);
    std::uint64_t seen = 0;
    std::memcpy(&seen, reinterpret_cast<const void*>(child.probe_address), sizeof(seen));
    if (seen != child.probe_value) return "wrong probe value";
    return child.process_token != mine.process_token && child.host == mine.host ? "" : "wrong token or host";
  })));
}

// Run by the next case in a process of its own, because NCCL_HOSTID is read once per process. stdin: id, rank, ranks.
TEST_CASE("one rank of a bootstrap over several hosts", "[.host-rank]") {
  UniqueId id;
  int numbers[2] = {};
  REQUIRE(read(STDIN_FILENO, &id, sizeof(id)) == sizeof(id));
  REQUIRE(read(STDIN_FILENO, numbers, sizeof(numbers)) == sizeof(numbers));
  const auto [rank, ranks] = numbers;
  const Outcome outcome = run_rank(id, rank, ranks);
  INFO(outcome.message);
  REQUIRE(outcome.ok);
  for (const Peer& peer : outcome.result.peers) CHECK(peer.host == fmt::format("host-{}", peer.rank % 3));
  CHECK(meet_in_control(outcome.result, rank) == "");
}

// The same, where rank 0 is killed. Rank 2 stops before it opens its host's segment.
TEST_CASE("a late rank of a bootstrap that fails", "[.late-rank]") {
  UniqueId id;
  int numbers[2] = {};
  REQUIRE(read(STDIN_FILENO, &id, sizeof(id)) == sizeof(id));
  REQUIRE(read(STDIN_FILENO, numbers, sizeof(numbers)) == sizeof(numbers));
  const Outcome outcome = run_rank(id, numbers[0], numbers[1], [&](auto& args) {
    args.control_bytes = [&](int local_ranks) {
      if (numbers[0] == 2) raise(SIGSTOP);
      return rank_runs::control_bytes(local_ranks);
    };
  });
  INFO(outcome.message);
  CHECK_FALSE(outcome.ok);
  CHECK(outcome.code == tutti::Code::kRemote);
  CHECK(outcome.message.find("rank 0 (process") != std::string::npos);
}

namespace {

pid_t start_rank(const UniqueId& id, int rank, int ranks, int host, const char* test) {
  return spawn([&]() -> std::string {
    int ends[2];
    const int numbers[2] = {rank, ranks};
    if (pipe(ends) != 0 || write(ends[1], &id, sizeof(id)) != sizeof(id)) return "pipe";
    if (write(ends[1], numbers, sizeof(numbers)) != sizeof(numbers)) return "pipe";
    dup2(ends[0], STDIN_FILENO);
    dup2(open("/dev/null", O_WRONLY | O_CLOEXEC), STDOUT_FILENO);
    setenv("NCCL_HOSTID", fmt::format("host-{}", host).c_str(), 1);
    execl("/proc/self/exe", "comm-tests", test, nullptr);
    return "exec failed";
  });
}

}  // namespace

TEST_CASE("every host has a control segment of its own, of the size for its ranks", "[bootstrap][forks]") {
  const NothingLeft nothing_left;
  const UniqueId id = new_id();
  const int ranks = 7;
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) children.push_back(start_rank(id, rank, ranks, rank % 3, "[.host-rank]"));
  for (const pid_t child : children) CHECK(ended_well(child));
}

TEST_CASE("a rank whose host's leader has given up tells what the others do", "[bootstrap][forks]") {
  const NothingLeft nothing_left;
  const UniqueId id = new_id();
  std::vector<pid_t> children;
  // Rank 1 makes the segment that rank 2 is to open. It has ended by then, and is not reaped.
  for (int rank = 0; rank < 3; ++rank) children.push_back(start_rank(id, rank, 3, rank == 0 ? 0 : 1, "[.late-rank]"));
  int status = 0;
  REQUIRE(waitpid(children[2], &status, WUNTRACED) == children[2]);
  kill(children[0], SIGKILL);
  siginfo_t ended;
  CHECK(waitid(P_PID, static_cast<id_t>(children[1]), &ended, WEXITED | WNOWAIT) == 0);
  kill(children[2], SIGCONT);
  CHECK(WIFSTOPPED(status));
  CHECK(ended_well(children[2]));
  CHECK(ended_well(children[1]));
  CHECK_FALSE(ended_well(children[0]));
}

TEST_CASE("the id's maker that gives up and ends at once has told the others why", "[bootstrap][forks]") {
  const NothingLeft nothing_left;
  for (int round = 0; round < 5; ++round) {
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    const pid_t maker = spawn([&]() -> std::string {
      const UniqueId id = new_id();
      if (write(ends[1], &id, sizeof id) != sizeof id) return "no id";
      (void)run_rank(id, 0, 3, [](BootstrapArgs& args) {
        args.take_control = [](int, std::size_t) { return tutti::error(Code::kSystem, "no room"); };
      });
      return "";
    });
    UniqueId id;
    REQUIRE(read(ends[0], &id, sizeof id) == sizeof id);
    close(ends[0]);
    close(ends[1]);
    const std::string told = fmt::format("rank 0 (process {}) gave up: no room", maker);
    for (const Outcome& outcome : run_threads(id, {1, 2}, 3)) CHECK(outcome.message == told);
    CHECK(ended_well(maker));
  }
}
