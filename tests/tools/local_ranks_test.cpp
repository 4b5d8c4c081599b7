// tuttiLaunchLocal in processes that want to hear nothing of their children.
#include <tutti/launch.h>

#include <catch2/catch.hpp>

#include <unistd.h>
#include <csignal>
#include <string>
#include <thread>

namespace {

int returns_rank(const tuttiLaunchInfo_t* me, const ncclUniqueId*, void*) { return me->rank; }

}  // namespace

TEST_CASE("local ranks: how they end is known where SIGCHLD is ignored, and it stays ignored for them and afterwards") {
  struct sigaction ignored {
  }, found{};
  ignored.sa_handler = SIG_IGN;
  REQUIRE(sigaction(SIGCHLD, &ignored, nullptr) == 0);
  tuttiLaunchOutcome_t outcome;
  REQUIRE(tuttiLaunchLocal(2, returns_rank, nullptr, &outcome) == ncclSuccess);
  CHECK((outcome.exit_code == 1 && outcome.failed_rank == 1));
  const auto looks = [](const tuttiLaunchInfo_t*, const ncclUniqueId*, void*) {
    struct sigaction mine {};
    sigaction(SIGCHLD, nullptr, &mine);
    return mine.sa_handler == SIG_IGN ? 0 : 1;
  };
  REQUIRE(tuttiLaunchLocal(1, looks, nullptr, &outcome) == ncclSuccess);
  CHECK(outcome.exit_code == 0);
  const auto launches = [](const tuttiLaunchInfo_t*, const ncclUniqueId*, void*) {
    tuttiLaunchOutcome_t inner{};
    const bool ran = tuttiLaunchLocal(2, returns_rank, nullptr, &inner) == ncclSuccess;
    return ran && inner.exit_code == 1 && inner.failed_rank == 1 ? 0 : 1;
  };
  REQUIRE(tuttiLaunchLocal(1, launches, nullptr, &outcome) == ncclSuccess);
  CHECK(outcome.exit_code == 0);
  sigaction(SIGCHLD, nullptr, &found);
  CHECK(found.sa_handler == SIG_IGN);
  ignored.sa_handler = SIG_DFL;
  ignored.sa_flags = SA_NOCLDWAIT;
  sigaction(SIGCHLD, &ignored, nullptr);
  REQUIRE(tuttiLaunchLocal(2, returns_rank, nullptr, &outcome) == ncclSuccess);
  CHECK((outcome.exit_code == 1 && outcome.failed_rank == 1));
  signal(SIGCHLD, SIG_DFL);
}

TEST_CASE("local ranks: one whose end the system was told to forget meanwhile has failed") {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const auto waits = [](const tuttiLaunchInfo_t*, const ncclUniqueId*, void* context) {
    char word;
    return read(static_cast<int*>(context)[0], &word, 1) == 1 ? 0 : 1;
  };
  std::thread teller([&] {
    usleep(200000);  // until the ranks are there
    signal(SIGCHLD, SIG_IGN);
    CHECK(write(ends[1], "x", 1) == 1);
  });
  tuttiLaunchOutcome_t outcome;
  CHECK(tuttiLaunchLocal(1, waits, ends, &outcome) == ncclSuccess);
  teller.join();
  signal(SIGCHLD, SIG_DFL);
  CHECK((outcome.exit_code == 255 && outcome.failed_rank == 0 && outcome.signal == 0));
  close(ends[0]);
  close(ends[1]);
}

TEST_CASE("what is NULL where a launch needs it is named, with what to pass") {
  tuttiLaunchOutcome_t outcome;
  ncclUniqueId id;
  int wants = 0;
  const auto refused = [](ncclResult_t result, const std::string& words) {
    CHECK(result == ncclInvalidArgument);
    CHECK_THAT(ncclGetLastError(nullptr), Catch::Contains(words));
  };
  refused(tuttiLaunchLocal(1, nullptr, nullptr, &outcome), "body is NULL; pass what each rank is to run");
  refused(tuttiLaunchUniqueId(nullptr, &id), "info is NULL; pass what tuttiLaunchDetect filled in");
  refused(tuttiLaunchWantsMpi(nullptr, &wants), "info is NULL; pass what tuttiLaunchDetect filled in");
  refused(tuttiLaunchLocal(1, returns_rank, nullptr, nullptr), "outcome is NULL; pass the address");
}
