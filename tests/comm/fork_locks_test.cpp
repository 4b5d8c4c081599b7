// A fork while other threads are where communicators are made, or use each other's memory: the child finds no lock taken.
#include "base/mapping.h"
#include "comm/control.h"
#include "comm/launch.h"
#include "rank_runs.h"
#include "transport/peer_memory.h"

#include <catch2/catch.hpp>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

namespace tutti::comm {
namespace {

/// `use` in children that are forked while another thread does nothing else.
void check_forks(const std::function<bool()>& use) {
  REQUIRE(use());
  std::atomic<bool> over{false};
  std::thread user([&] {
    while (!over) (void)use();
  });
  int good = 0;
  constexpr int kForks = 100;
  for (int i = 0; i < kForks && good == i; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(10);
      _exit(use() ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    good += status == 0 ? 1 : 0;
  }
  over = true;
  user.join();
  CHECK(good == kForks);
}

TEST_CASE("a forked child can map what its peers share", "[forks]") {
  check_forks([] {
    transport::ImportCache::process().drop(1);
    return transport::ImportCache::process().size() == 0;
  });
}

TEST_CASE("a forked child can map control segments", "[forks]") {
  const auto file = create_memory_file("fork-locks-test", Control::bytes_for(2), Backing::kOnTouch);
  REQUIRE(file.ok());
  check_forks([&] { return Control::map(file.value().get(), Control::bytes_for(2), 2).ok(); });
}

TEST_CASE("a forked child can number ids", "[forks]") {
  const tuttiLaunchInfo_t job{0, 2, 0, 2, TUTTI_LAUNCHER_MPIRUN, "fork-locks-test"};
  setenv("TUTTI_RENDEZVOUS", "file:/tmp/fork-locks-test", 1);
  check_forks([&] { return next_meeting_place(job).ok(); });
  setenv("TUTTI_RENDEZVOUS", "tcp:127.0.0.1:20000", 1);
  check_forks([&] {
    (void)launched_id(job);  // there are not as many ports
    return true;
  });
  unsetenv("TUTTI_RENDEZVOUS");
}

int nothing_to_do(const tuttiLaunchInfo_t*, const ncclUniqueId*, void*) { return 0; }

TEST_CASE("a forked child can launch ranks, and finds SIGCHLD as it was before another thread's launch", "[forks]") {
  const rank_runs::NothingLeft nothing_left;  // of launches whose ranks have made no communicator
  const auto launches = [] {
    const auto outcome = launch_local(1, nothing_to_do, nullptr);
    return outcome.ok() && outcome.value().exit_code == 0;
  };
  struct sigaction ignored {};
  struct sigaction before {};
  ignored.sa_handler = SIG_IGN;
  REQUIRE(sigaction(SIGCHLD, &ignored, &before) == 0);
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  std::thread launcher([&] {
    (void)launch_local(
        1,
        [](const tuttiLaunchInfo_t*, const ncclUniqueId*, void* pipe) {
          char byte = 0;
          close(static_cast<int*>(pipe)[1]);
          return static_cast<int>(read(static_cast<int*>(pipe)[0], &byte, 1));
        },
        ends);
  });
  for (struct sigaction now = ignored; now.sa_handler == SIG_IGN; usleep(100)) sigaction(SIGCHLD, nullptr, &now);
  const pid_t child = fork();
  if (child == 0) {
    close(ends[1]);
    struct sigaction found {};
    const bool is_as_before = sigaction(SIGCHLD, nullptr, &found) == 0 && found.sa_handler == SIG_IGN;
    alarm(10);
    const bool has_launched = launches();
    _exit(is_as_before && has_launched ? 0 : 1);
  }
  // Once the launch is over SIGCHLD is ignored again, and the system keeps to itself how the child has ended.
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  close(ends[1]);
  launcher.join();
  close(ends[0]);
  REQUIRE(sigaction(SIGCHLD, &before, nullptr) == 0);
  check_forks(launches);
}

}  // namespace
}  // namespace tutti::comm
