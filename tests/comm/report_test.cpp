// tuttiCommReport and the warnings of calls that wait: who is where, while nothing moves.
#include "crew.h"

#include <tutti/tutti.h>

#include <catch2/catch.hpp>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <thread>

#include <unistd.h>

namespace {

using crew::fine;
using crew::Member;

/// Set before anything asks for the configuration, which is read once.
struct LogFile {
  char path[32] = "/tmp/report-test-XXXXXX";
  LogFile() {
    close(mkstemp(path));
    setenv("NCCL_DEBUG", "WARN", 1);
    setenv("NCCL_DEBUG_FILE", path, 1);
  }
  ~LogFile() { unlink(path); }
};
const LogFile log_file;

std::string log_contents() {
  std::ifstream in(log_file.path);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string report(ncclComm_t comm) {
  std::size_t needed = 0;
  if (tuttiCommReport(comm, nullptr, 0, &needed) != ncclSuccess) return ncclGetLastError(comm);
  // It may grow from one call to the next.
  std::string text(needed + 4096, '\0');
  if (tuttiCommReport(comm, text.data(), text.size(), nullptr) != ncclSuccess) return ncclGetLastError(comm);
  return text.c_str();
}

/// Waits until the report holds all parts; a complaint if it never does.
std::string eventually(ncclComm_t comm, const std::vector<std::string>& parts) {
  std::string text, missing;
  for (const double start = crew::now_s(); crew::now_s() - start < 20; usleep(1000)) {
    text = report(comm);
    missing.clear();
    for (const std::string& part : parts) {
      if (text.find(part) == std::string::npos) missing = part;
    }
    if (missing.empty()) return "";
  }
  return "\"" + missing + "\" is missing in:\n" + text;
}

}  // namespace

TEST_CASE("a report shows who is behind, who waits for whom, and who is gone") {
  auto* const asked = static_cast<std::atomic<int>*>(crew::shared_page());
  *asked = 0;
  crew::check(
      crew::run(3,
                [&](const Member& m) -> std::string {
                  ncclComm_t comm = nullptr;
                  CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
                  int value = 1;
                  CREW_TRY(fine(ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, comm, nullptr), "ncclAllReduce"));
                  const auto wait_until_asked = [&](int times) {
                    while (*asked < times) usleep(1000);
                  };
                  if (m.rank == 2) {
                    wait_until_asked(2);
                    CREW_TRY(fine(ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, comm, nullptr), "ncclAllReduce"));
                    wait_until_asked(3);
                    kill(getpid(), SIGKILL);
                  }
                  // Two ranks wait in a call; a thread of each asks.
                  std::string wrong;
                  std::thread curious([&] {
                    wrong = eventually(comm, {"3 ranks, seen by rank " + std::to_string(m.rank),
                                              "rank 0: call #2, all_reduce count 1 int32 sum\n",
                                              "rank 1: call #2, all_reduce count 1 int32 sum\n",
                                              "rank 2: call #1, all_reduce count 1 int32 sum; 1 behind\n"});
                    ++*asked;
                  });
                  const ncclResult_t result = ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, comm, nullptr);
                  curious.join();
                  CREW_TRY(wrong);
                  CREW_TRY(fine(result, "ncclAllReduce"));
                  // A receive whose send never comes.
                  std::thread other([&] {
                    if (m.rank == 0) wrong = eventually(comm, {"rank 1 waits for rank 0: send count 3 float32\n"});
                    if (m.rank == 0) ++*asked;
                  });
                  ncclResult_t last = ncclSuccess;
                  if (m.rank == 1) last = ncclRecv(&value, 3, ncclFloat, 0, comm, nullptr);
                  other.join();
                  CREW_TRY(wrong);
                  if (m.rank == 1) CREW_TRY(crew::refused(last, ncclRemoteError, {"rank 2"}, comm));
                  CREW_TRY(eventually(comm, {"its process has ended", "failed: rank 2"}));
                  return fine(ncclCommDestroy(comm), "ncclCommDestroy");
                }),
      {2});
}

TEST_CASE("a report is cut to the room there is, and refused without any") {
  ncclComm_t comm = nullptr;
  REQUIRE(ncclCommInitAll(&comm, 1, nullptr) == ncclSuccess);
  char text[12];
  std::size_t needed = 0;
  REQUIRE(tuttiCommReport(comm, text, sizeof(text), &needed) == ncclSuccess);
  CHECK(std::string(text) == "communicato");
  CHECK(needed > 20);
  CHECK(tuttiCommReport(comm, nullptr, 5, &needed) == ncclInvalidArgument);
  CHECK_THAT(ncclGetLastError(comm), Catch::Contains("text is NULL, but size is 5"));
  CHECK(tuttiCommReport(nullptr, text, sizeof(text), &needed) == ncclInvalidArgument);
  CHECK(ncclCommDestroy(comm) == ncclSuccess);
}

TEST_CASE("a line of the log names its rank once") {
  crew::check(crew::run(2, [&](const Member& m) -> std::string {
    ncclComm_t comm = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
    if (m.rank == 0) {
      int excluded = 1;
      ncclComm_t child = nullptr;
      CREW_TRY(fine(ncclCommShrink(comm, &excluded, 1, &child, nullptr, NCCL_SHRINK_ABORT), "ncclCommShrink"));
      CREW_TRY(fine(ncclCommDestroy(child), "ncclCommDestroy of the child"));
      const std::string log = log_contents();
      if (log.find("] Tutti rank 0 called ncclCommShrink with NCCL_SHRINK_ABORT") == std::string::npos) return log;
    }
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
}

TEST_CASE("a call that waits for 10 s says for whom, in the log") {
  crew::check(crew::run(
      2,
      [&](const Member& m) -> std::string {
        ncclComm_t comm = nullptr;
        CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
        if (m.rank == 1) {
          for (const double start = crew::now_s(); log_contents().find("has waited 1") == std::string::npos;
               usleep(50000)) {
            if (crew::now_s() - start > 40) return "no warning came";
          }
        }
        CREW_TRY(crew::usable(comm));
        return fine(ncclCommDestroy(comm), "ncclCommDestroy");
      },
      60));
  const std::string text = log_contents();
  CHECK_THAT(text, Catch::Contains("rank 0 has waited 10 s for rank 1; where the ranks are:"));
  CHECK_THAT(text, Catch::Contains("rank 1: no call yet; 1 behind"));
}
