// A tool's ranks as threads of its process: how it ends.
#include "base/rank_threads.h"

#include <catch2/catch.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <stdexcept>

namespace tutti {
namespace {

/// Of a process that does nothing else.
int exit_code_of(const std::function<int(int)>& live) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    _exit(run_as_threads("a tool", 3, live));
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

TEST_CASE("ranks that are threads: the largest exit code, whatever is thrown, and an end for those that wait in vain") {
  CHECK(exit_code_of([](int) { return 0; }) == 0);
  CHECK(exit_code_of([](int rank) { return rank; }) == 2);
  CHECK(exit_code_of([](int rank) { return rank == 1 ? throw std::runtime_error("thrown on purpose") : 0; }) == 1);
  CHECK(exit_code_of([](int rank) { return rank == 2 ? 5 : pause(); }) == 5);
}

}  // namespace
}  // namespace tutti
