// What the messages of failures say: the call, once; what the others are at; what to do.
#include "crew.h"

#include <tutti/tutti.h>

#include <catch2/catch.hpp>

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>

namespace {

using crew::fine;
using crew::Member;
using crew::refused;

int count_of(const std::string& part, const std::string& text) {
  int count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

/// Rank 0 gives up by itself, and stays alive until all others have heard of it.
void check_others_hear(const std::function<std::string(const Member&)>& give_up,
                       const std::vector<std::string>& parts) {
  auto& heard = *new (crew::shared_page()) std::atomic<int>{0};
  crew::check(crew::run(3, [&](const Member& m) -> std::string {
    if (m.rank == 0) {
      CREW_TRY(give_up(m));
      while (heard != m.ranks - 1) usleep(1000);
      return "";
    }
    ncclComm_t comm = nullptr;
    CREW_TRY(refused(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), ncclRemoteError, parts));
    ++heard;
    return "";
  }));
}

}  // namespace

TEST_CASE("a rank that cannot map what all share tells the others why, though it lives on") {
  check_others_hear(
      [](const Member& m) -> std::string {
        std::size_t pages = 0;
        std::ifstream("/proc/self/statm") >> pages;
        rlimit before{};
        getrlimit(RLIMIT_AS, &before);
        // Less than the segment has, and more than the way there takes.
        const rlimit little{pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + (8 << 20), before.rlim_max};
        if (setrlimit(RLIMIT_AS, &little) != 0) return "setrlimit";
        ncclComm_t comm = nullptr;
        const ncclResult_t result = ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank);
        setrlimit(RLIMIT_AS, &before);
        return refused(result, ncclSystemError, {"mapping the control segment", "Cannot allocate memory"});
      },
      {"rank 0 (process ", "gave up: mapping the control segment", "Cannot allocate memory"});
}

TEST_CASE("a rank that is aborted as soon as its initialisation has begun tells the others") {
  check_others_hear(
      [](const Member& m) -> std::string {
        ncclComm_t comm = nullptr;
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = 0;
        ncclCommInitRankConfig(&comm, m.ranks, m.ids[0], m.rank, &config);
        return fine(ncclCommAbort(comm), "ncclCommAbort");
      },
      {"rank 0 (process ", "aborted"});
}

TEST_CASE("two ranks that both wait in a send are told of each other's, and of groups") {
  setenv("TUTTI_TIMEOUT_S", "2", 1);
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    ncclComm_t comm = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
    std::vector<float> values(100000);
    const ncclResult_t result = ncclSend(values.data(), values.size(), ncclFloat, 1 - m.rank, comm, nullptr);
    CREW_TRY(refused(result, ncclRemoteError,
                     {"'s send to rank ", "which has not received that: send count 100000 float32", "ncclGroupStart"},
                     comm));
    // Whose send it was that took too long is said, and no other.
    const std::string reason = ncclGetLastError(comm);
    if (count_of(" #1: ", reason) != 1) return reason;
    return fine(ncclCommAbort(comm), "ncclCommAbort");
  }));
  unsetenv("TUTTI_TIMEOUT_S");
}

TEST_CASE("the call that waited too long is named once, on every rank") {
  setenv("TUTTI_TIMEOUT_S", "1", 1);
  crew::check(crew::run(3, [](const Member& m) -> std::string {
    ncclComm_t comm = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
    std::vector<float> values(100000);
    if (m.rank == 2) sleep(2);
    const ncclResult_t result =
        ncclAllReduce(values.data(), values.data(), values.size(), ncclFloat, ncclSum, comm, nullptr);
    CREW_TRY(refused(result, ncclRemoteError, {"s for rank 2 (TUTTI_TIMEOUT_S)"}, comm));
    const std::string reason = ncclGetLastError(comm);
    if (count_of("all_reduce #1: ", reason) != 1) return reason;
    return fine(ncclCommAbort(comm), "ncclCommAbort");
  }));
  unsetenv("TUTTI_TIMEOUT_S");
}

TEST_CASE("what needs an initialised communicator says whether that is to come, or has failed") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    ncclComm_t comm = nullptr, child = nullptr;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const auto check_all = [&](const std::string& part) -> std::string {
      int other = 1 - m.rank;
      CREW_TRY(refused(ncclCommFinalize(comm), ncclInvalidUsage, {"ncclCommFinalize: ", part}));
      CREW_TRY(refused(ncclCommSplit(comm, 0, 0, &child, nullptr), ncclInvalidUsage, {"ncclCommSplit: ", part}));
      CREW_TRY(refused(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT), ncclInvalidUsage, {"ncclCommRevoke: ", part}));
      CREW_TRY(refused(tuttiCommReport(comm, nullptr, 0, nullptr), ncclInvalidUsage, {"tuttiCommReport: ", part}));
      return refused(ncclCommShrink(comm, &other, 1, &child, nullptr, NCCL_SHRINK_DEFAULT), ncclInvalidUsage,
                     {"ncclCommShrink: ", part});
    };
    if (m.rank == 0) {
      ncclCommInitRankConfig(&comm, 2, m.ids[0], 0, &config);
      CREW_TRY(check_all("still initialising; poll ncclCommGetAsyncError"));
      return fine(ncclCommAbort(comm), "ncclCommAbort");
    }
    // Nobody ever makes such an id.
    ncclUniqueId id = m.ids[1];
    for (int i = 24; i < NCCL_UNIQUE_ID_BYTES; ++i) id.internal[i] = 'x';
    ncclCommInitRankConfig(&comm, 2, id, 1, &config);
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress) CREW_TRY(fine(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError"));
    CREW_TRY(check_all("initialisation failed, and it can only be ended, by ncclCommAbort"));
    return fine(ncclCommAbort(comm), "ncclCommAbort");
  }));
}
