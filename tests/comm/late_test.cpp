// Connections for data between hosts that this machine imitates: made when they are needed, by whoever needs them, or not at all.
#include "crew.h"

#include <catch2/catch.hpp>

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace {

using crew::fine;
using crew::Member;

/// Puts so many ranks of the crew on each host.
class Placed {
 public:
  explicit Placed(const char* ranks_per_host) { setenv("TEST_RANKS_PER_HOST", ranks_per_host, 1); }
  ~Placed() { unsetenv("TEST_RANKS_PER_HOST"); }
};

std::string init(const Member& m, int ranks, int id, ncclComm_t* comm) {
  return fine(ncclCommInitRank(comm, ranks, m.ids[id], m.rank), "ncclCommInitRank");
}

/// Of two hosts of two ranks; these have no connection from the start.
constexpr int kFar = 3;

/// A rank that is stopped: its process takes connections, which is the kernel's doing, and says nothing.
struct Stopped {
  std::atomic<int> pid{0};

  /// By the rank itself, until go_on().
  void stop() {
    pid = getpid();
    raise(SIGSTOP);
  }
  void wait() const {
    while (pid == 0) usleep(1000);
    usleep(100000);
  }
  void go_on() const { kill(pid, SIGCONT); }
  /// Returns when it has ended: before that the system may still take connections for it.
  void end() const {
    pollfd it{static_cast<int>(syscall(SYS_pidfd_open, pid.load(), 0)), POLLIN, 0};
    kill(pid, SIGKILL);
    poll(&it, 1, 10000);
    close(it.fd);
  }
};

/// At its end the rank goes on, if there is one to see to that: whatever becomes of the test.
class GoesOn {
 public:
  explicit GoesOn(const Stopped* rank) : rank_(rank) {}
  ~GoesOn() {
    if (rank_ != nullptr) rank_->go_on();
  }

 private:
  const Stopped* rank_;
};

/// A rank whose calling thread stands still while its others go on.
struct Held {
  std::atomic<bool> is_held{false};
  std::atomic<bool> goes_on{false};
};
Held* held_here = nullptr;
void hold(int) {
  held_here->is_held = true;
  while (!held_here->goes_on) {
  }
}

std::string exchange_with_all(const Member& m, ncclComm_t comm, int round) {
  const auto peers = static_cast<std::size_t>(m.ranks);
  std::vector<int> out(peers), in(peers, -1);
  CREW_TRY(fine(ncclGroupStart(), "ncclGroupStart"));
  for (int peer = 0; peer < m.ranks; ++peer) {
    const auto p = static_cast<std::size_t>(peer);
    out[p] = 1000 * round + 10 * m.rank + peer;
    CREW_TRY(fine(ncclSend(&out[p], 1, ncclInt, peer, comm, nullptr), "ncclSend"));
    CREW_TRY(fine(ncclRecv(&in[p], 1, ncclInt, peer, comm, nullptr), "ncclRecv"));
  }
  CREW_TRY(fine(ncclGroupEnd(), "ncclGroupEnd"));
  for (int peer = 0; peer < m.ranks; ++peer) {
    const int wanted = 1000 * round + 10 * peer + m.rank;
    if (in[static_cast<std::size_t>(peer)] != wanted)
      return "from rank " + std::to_string(peer) + " came " + std::to_string(in[static_cast<std::size_t>(peer)]) +
             " where " + std::to_string(wanted) + " is right";
  }
  return "";
}

/// Longer than the others are patient.
std::string wait_for_failure(ncclComm_t comm) {
  ncclResult_t state = ncclSuccess;
  for (const double began = crew::now_s(); state == ncclSuccess && crew::now_s() - began < 30; usleep(1000))
    CREW_TRY(fine(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError"));
  return state == ncclRemoteError ? "" : "state " + std::to_string(state);
}

}  // namespace

TEST_CASE("ranks that need each other at once connect once", "[late]") {
  const Placed placed("2");
  constexpr int kRounds = 12;
  crew::check(crew::run(
      4,
      [](const Member& m) -> std::string {
        for (int round = 0; round < kRounds; ++round) {
          ncclComm_t comm = nullptr;
          CREW_TRY(init(m, m.ranks, round, &comm));
          if (round % 2 == 1) CREW_TRY(crew::usable(comm));
          CREW_TRY(exchange_with_all(m, comm, round));
          CREW_TRY(crew::usable(comm));
          CREW_TRY(fine(ncclCommDestroy(comm), "ncclCommDestroy"));
        }
        return "";
      },
      60, kRounds));
}

TEST_CASE("a short send to a rank that is not in a call ends, whoever has to connect", "[late]") {
  const Placed placed("2");
  crew::check(crew::run(4, [](const Member& m) -> std::string {
    ncclComm_t comm = nullptr;
    CREW_TRY(init(m, m.ranks, 0, &comm));
    int value = m.rank;
    const double began = crew::now_s();
    if (m.rank == 0) CREW_TRY(fine(ncclSend(&value, 1, ncclInt, kFar, comm, nullptr), "ncclSend"));
    if (m.rank == kFar) {
      usleep(1500000);
      CREW_TRY(fine(ncclRecv(&value, 1, ncclInt, 0, comm, nullptr), "ncclRecv"));
      if (value != 0) return "came " + std::to_string(value);
    }
    if (m.rank == 0 && crew::now_s() - began > 1) return "the send waited for its receiver";
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
}

TEST_CASE("a rank leaves while another has just sent it what it does not take", "[late]") {
  const Placed placed("2");
  crew::check(crew::run(4, [](const Member& m) -> std::string {
    ncclComm_t comm = nullptr;
    CREW_TRY(init(m, m.ranks, 0, &comm));
    int value = m.rank;
    // It is told of a rank's departure, or its bytes are gone: either way it ends in time.
    const double began = crew::now_s();
    if (m.rank == 0) (void)ncclSend(&value, 1, ncclInt, kFar, comm, nullptr);
    CREW_TRY(fine(ncclCommDestroy(comm), "ncclCommDestroy"));
    return crew::now_s() - began > 8 ? "leaving took " + std::to_string(crew::now_s() - began) + " s" : "";
  }));
}

TEST_CASE("a connection that cannot be made ends its call with both ranks' names, and the process goes on", "[late]") {
  const Placed placed("2");
  auto* const far = new (crew::shared_page()) Stopped;
  crew::check(crew::run(4, [&](const Member& m) -> std::string {
    setenv("TUTTI_HEARTBEAT_TIMEOUT_S", "0", 1);  // else that is what is said
    setenv("TUTTI_TIMEOUT_S", "2", 1);
    ncclComm_t comm = nullptr;
    CREW_TRY(init(m, m.ranks, 0, &comm));
    if (m.rank == kFar) {
      far->stop();
      return fine(ncclCommAbort(comm), "ncclCommAbort");
    }
    far->wait();
    const GoesOn afterwards(m.rank == 0 ? far : nullptr);
    int value = 1;
    if (m.rank == 0) {
      const double began = crew::now_s();
      CREW_TRY(crew::refused(ncclSend(&value, 1, ncclInt, kFar, comm, nullptr), ncclRemoteError,
                             {"rank 0 cannot reach rank 3", "tried", "NCCL_SOCKET_IFNAME"}, comm));
      if (crew::now_s() - began > 10) return "it took " + std::to_string(crew::now_s() - began) + " s";
    }
    CREW_TRY(wait_for_failure(comm));
    CREW_TRY(fine(ncclCommAbort(comm), "ncclCommAbort"));
    setenv("TUTTI_TIMEOUT_S", "30", 1);
    ncclComm_t rest = nullptr;
    CREW_TRY(init(m, 3, 1, &rest));
    CREW_TRY(crew::usable(rest));
    CREW_TRY(fine(ncclCommDestroy(rest), "ncclCommDestroy"));
    return "";
  }));
}

TEST_CASE("ncclCommAbort ends a call that waits for its connection", "[late]") {
  const Placed placed("2");
  auto* const far = new (crew::shared_page()) Stopped;
  crew::check(crew::run(4, [&](const Member& m) -> std::string {
    setenv("TUTTI_HEARTBEAT_TIMEOUT_S", "0", 1);
    ncclComm_t comm = nullptr;
    CREW_TRY(init(m, m.ranks, 0, &comm));
    if (m.rank == kFar) {
      far->stop();
      return fine(ncclCommAbort(comm), "ncclCommAbort");
    }
    far->wait();
    const GoesOn afterwards(m.rank == 0 ? far : nullptr);
    std::string wrong;
    int value = 1;
    std::thread caller;
    if (m.rank != 0) {
      CREW_TRY(wait_for_failure(comm));
    } else {
      caller = std::thread([&] {
        wrong = crew::refused(ncclSend(&value, 1, ncclInt, kFar, comm, nullptr), ncclRemoteError,
                              {"rank 0 called ncclCommAbort"});
      });
      usleep(300000);
    }
    const double began = crew::now_s();
    CREW_TRY(fine(ncclCommAbort(comm), "ncclCommAbort"));
    if (caller.joinable()) caller.join();
    if (crew::now_s() - began > 5) wrong += " the abort took " + std::to_string(crew::now_s() - began) + " s";
    return wrong;
  }));
}

TEST_CASE("news of a death do not overtake what the dead rank has sent", "[late]") {
  const Placed one("1");
  for (const std::size_t count : {std::size_t{1}, std::size_t{20000}}) {
    CAPTURE(count);
    auto* const held = new (crew::shared_page()) Held;
    crew::check(crew::run(3,
                          [held, count](const Member& m) -> std::string {
                            ncclComm_t comm = nullptr;
                            CREW_TRY(init(m, m.ranks, 0, &comm));
                            CREW_TRY(exchange_with_all(m, comm, 0));
                            std::vector<int> data(count, m.rank == 0 ? 7 : -1);
                            if (m.rank == 0) {
                              while (!held->is_held) usleep(1000);
                              CREW_TRY(fine(ncclSend(data.data(), count, ncclInt, 1, comm, nullptr), "ncclSend"));
                              raise(SIGKILL);
                            }
                            ncclResult_t state = ncclSuccess;
                            const auto hear = [&] {
                              while (state == ncclSuccess) ncclCommGetAsyncError(comm, &state);
                            };
                            if (m.rank == 2) hear();
                            if (m.rank == 1) {
                              held_here = held;
                              signal(SIGUSR1, hold);
                              std::thread other([&, caller = pthread_self()] {
                                usleep(50000);  // the call waits by now
                                pthread_kill(caller, SIGUSR1);
                                hear();
                                held->goes_on = true;
                              });
                              const ncclResult_t result = ncclRecv(data.data(), count, ncclInt, 0, comm, nullptr);
                              other.join();
                              CREW_TRY(fine(result, "ncclRecv of what had come"));
                              if (data != std::vector<int>(count, 7)) return "other data than was sent";
                              CREW_TRY(crew::refused(ncclRecv(data.data(), count, ncclInt, 0, comm, nullptr),
                                                     ncclRemoteError, {"rank 0 "}, comm));
                            }
                            return fine(ncclCommDestroy(comm), "ncclCommDestroy");
                          }),
                {0});
  }
}

TEST_CASE("a rank killed when all that watched it have left is missed by whoever waits for it", "[late]") {
  const Placed placed("3");
  constexpr int kRanks = 18;
  constexpr int kVictim = 4;
  constexpr int kWaiting = 16;  // has no connection with it
  // Watch it, from its own host or others.
  const auto leaves = [](int rank) {
    constexpr std::array leaving = {0, 2, 3, 5, 6, 8, 12, 14};
    return std::ranges::find(leaving, rank) != leaving.end();
  };
  struct Shared {
    Stopped victim;
    std::atomic<int> left{0};
  };
  auto* const shared = new (crew::shared_page()) Shared;
  const auto endings = crew::run(
      kRanks,
      [&](const Member& m) -> std::string {
        // Which plan runs, and so who has a connection, would hang on what else the machine does.
        setenv("TUTTI_CALIBRATE", "0", 1);
        setenv("TUTTI_TIMEOUT_S", "40", 1);
        setenv("TUTTI_HEARTBEAT_TIMEOUT_S", "40", 1);
        ncclComm_t comm = nullptr;
        CREW_TRY(init(m, m.ranks, 0, &comm));
        CREW_TRY(crew::usable(comm));
        if (m.rank == kVictim) shared->victim.stop();
        shared->victim.wait();
        if (leaves(m.rank)) {
          CREW_TRY(fine(ncclCommDestroy(comm), "ncclCommDestroy"));
          ++shared->left;
          return "";
        }
        if (m.rank == kWaiting) {
          while (shared->left != 8) usleep(1000);
          shared->victim.end();
          int value = 0;
          CREW_TRY(crew::refused(ncclRecv(&value, 1, ncclInt, kVictim, comm, nullptr), ncclRemoteError,
                                 {"rank 4 ", "nobody has heard it leave"}, comm));
        }
        CREW_TRY(wait_for_failure(comm));
        return fine(ncclCommAbort(comm), "ncclCommAbort");
      },
      60, 1);
  crew::check(endings, {kVictim});
}

TEST_CASE("among many ranks, who does not come is named, though it carries others' lines", "[late]") {
  const Placed placed("3");
  constexpr int kRanks = 18;
  for (const int absent : {4, 17}) {
    INFO("rank " << absent << " does not come");
    crew::check(crew::run(
        kRanks,
        [&](const Member& m) -> std::string {
          setenv("TUTTI_TIMEOUT_S", "8", 1);
          ncclComm_t comm = nullptr;
          CREW_TRY(init(m, m.ranks, 0, &comm));
          int value = m.rank == 5 ? 55 : 0;
          CREW_TRY(fine(ncclBroadcast(&value, &value, 1, ncclInt, 5, comm, nullptr), "ncclBroadcast"));
          if (value != 55) return "the broadcast brought " + std::to_string(value);
          if (m.rank == absent) {
            CREW_TRY(wait_for_failure(comm));
          } else {
            const std::string name = "rank " + std::to_string(absent);
            CREW_TRY(crew::refused(ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, comm, nullptr), ncclRemoteError,
                                   {"s for " + name + " (TUTTI_TIMEOUT_S)"}, comm));
          }
          return fine(ncclCommAbort(comm), "ncclCommAbort");
        },
        90, 1));
  }
}

TEST_CASE("a rank that has no descriptor left for the others is soon named, with the reason, by all", "[late]") {
  const Placed placed("1");
  // One is for the root, and another one to ask for the interfaces and to listen with.
  for (const int left : {1, 2}) {
    INFO(left << " descriptors are left");
    crew::check(crew::run(
        3,
        [left](const Member& m) -> std::string {
          rlimit limit{};
          getrlimit(RLIMIT_NOFILE, &limit);
          int last = 0;
          for (int more = 0; more < left; ++more) last = dup(0);
          for (int more = 0; more < left; ++more) close(last - more);
          limit.rlim_cur = static_cast<rlim_t>(last + 1);
          if (m.rank == 0 && setrlimit(RLIMIT_NOFILE, &limit) != 0) return "setrlimit";
          ncclComm_t comm = nullptr;
          const double began = crew::now_s();
          const ncclResult_t result = ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank);
          const double took_s = crew::now_s() - began;
          limit.rlim_cur = limit.rlim_max;
          setrlimit(RLIMIT_NOFILE, &limit);
          CREW_TRY(m.rank == 0 ? crew::refused(result, ncclSystemError, {"Too many open files", "ulimit -n"})
                               : crew::refused(result, ncclRemoteError,
                                               {"rank 0 (process ", "gave up: ", "Too many open files", "ulimit -n"}));
          return took_s < 15 ? "" : "that took " + std::to_string(took_s) + " s";
        },
        60, 1));
  }
}
