// What goes wrong among GPU ranks of several hosts whose sums go by teams: every rank hears of it, in the communicator's numbers, and nothing
// is left.
#include "comm/crew.h"
#include "fake_driver.h"
#include "process_ranks.h"
#include "team_hosts.h"
#include "turn.h"

#include <tutti/tutti.h>

#include <catch2/catch.hpp>

#include <atomic>
#include <csignal>
#include <vector>

#include <unistd.h>

namespace tutti::test {
namespace {

constexpr std::size_t kCount = 40960;

/// Two hosts for four ranks. Of one and three, ranks 2 and 3 have no share of what crosses.
const std::vector<const char*> kLayouts{"2", "1,3"};

std::string open(Rank& rank, int devices) {
  setenv("TUTTI_STAGING_BYTES", "4096", 1);
  return rank.open(devices);
}

ncclResult_t sum_up(const Rank& rank, const OnGpu<std::int32_t>& data, std::size_t count = kCount) {
  return ncclAllReduce(data.data(), data.data(), count, ncclInt32, ncclSum, rank.comm, rank.stream);
}

/// The call itself may be refused already.
std::string may_fail(ncclResult_t result, ncclResult_t wanted, const std::vector<std::string>& parts) {
  return result == ncclSuccess ? "" : refused(result, wanted, parts);
}

std::string goes_on(const Rank& rank, ncclComm_t comm, const std::vector<int>& ranks) {
  const OnGpu<std::int32_t> data(values(rank.m.rank, kCount));
  CREW_TRY(fine(ncclAllReduce(data.data(), data.data(), kCount, ncclInt32, ncclSum, comm, rank.stream), "the rest"));
  Gpu::get().wait(rank.stream);
  return differs(
      "the rest", data.read(),
      [&](std::size_t i) {
        std::int32_t total = 0;
        for (const int r : ranks) total += value(r, i);
        return total;
      },
      kCount);
}

}  // namespace

TEST_CASE("teams: calls that differ are named on every rank", "[teams][failure]") {
  const Placed placed(GENERATE(from_range(kLayouts)));
  const int devices = GENERATE(1, 4);
  // On a rank of the other host, or of the same; another length by teams, one that does not go so, another operation, another call.
  const int how = GENERATE(0, 1, 2, 3);
  crew::check(crew::run(4, [=](const Member& m) -> std::string {
    Rank rank(m);
    CREW_TRY(open(rank, devices));
    const OnGpu<std::int32_t> a(values(m.rank, kCount));
    CREW_TRY(fine(sum_up(rank, a), "alike"));
    Gpu::get().wait(rank.stream);
    ncclResult_t made = ncclSuccess;
    if (m.rank != 3) made = sum_up(rank, a);
    if (m.rank == 3 && how == 0) made = sum_up(rank, a, kCount - 4096);
    if (m.rank == 3 && how == 1) made = sum_up(rank, a, 100);
    if (m.rank == 3 && how == 2)
      made = ncclAllReduce(a.data(), a.data(), kCount, ncclInt32, ncclMax, rank.comm, rank.stream);
    if (m.rank == 3 && how == 3) made = ncclBroadcast(a.data(), a.data(), kCount, ncclInt32, 1, rank.comm, rank.stream);
    const char* const others[] = {
        "all_reduce count 36864 int32 sum on rank 3", "all_reduce count 100 int32 sum on rank 3",
        "all_reduce count 40960 int32 max on rank 3", "broadcast count 40960 int32 root 1 on rank 3"};
    // Of a broadcast so short a rank looks at the root's line alone.
    const std::vector<std::string> parts = {others[how],
                                            how == 3 ? "all_reduce count 40960 int32 sum on rank"
                                                     : "all_reduce count 40960 int32 sum on rank 0, rank 1, rank 2"};
    CREW_TRY(may_fail(made, ncclInvalidUsage, parts));
    Gpu::get().wait(rank.stream);
    CREW_TRY(fails(rank.comm, ncclInvalidUsage, parts));
    // A call through host memory fails by itself; the communicator fails when a rank has noticed whose call goes by teams.
    ncclResult_t next = ncclSuccess;
    for (const double end = crew::now_s() + 10; crew::now_s() < end && next == ncclSuccess; usleep(1000)) {
      next = sum_up(rank, a);
    }
    CREW_TRY(refused(next, ncclInvalidUsage, parts));
    Gpu::get().destroy(rank.stream);
    return fine(ncclCommAbort(rank.comm), "ncclCommAbort");
  }));
}

TEST_CASE("teams: a rank that is killed lets the others' streams go on, and they can do without it",
          "[teams][failure]") {
  const Placed placed(GENERATE(from_range(kLayouts)));
  const int devices = GENERATE(1, 4);
  const int victim = GENERATE(1, 2);
  auto* const called = static_cast<std::atomic<int>*>(crew::shared_page());
  *called = 0;
  crew::check(
      crew::run(4,
                [=](const Member& m) -> std::string {
                  Rank rank(m);
                  CREW_TRY(open(rank, devices));
                  const OnGpu<std::int32_t> a(values(m.rank, kCount));
                  CREW_TRY(fine(sum_up(rank, a), "all"));
                  Gpu::get().wait(rank.stream);
                  while (m.rank == victim && *called < 3) usleep(200);
                  if (m.rank == victim) raise(SIGKILL);
                  CREW_TRY(fine(sum_up(rank, a), "without one"));
                  ++*called;
                  Gpu::get().wait(rank.stream);
                  const std::string name = "rank " + std::to_string(victim) + " (process";
                  CREW_TRY(fails(rank.comm, ncclRemoteError, {name, "ended without leaving"}));
                  CREW_TRY(refused(sum_up(rank, a), ncclRemoteError, {name}));
                  int gone = victim;
                  ncclComm_t rest = nullptr;
                  CREW_TRY(fine(ncclCommShrink(rank.comm, &gone, 1, &rest, nullptr, NCCL_SHRINK_ABORT), "shrink"));
                  std::vector<int> left;
                  for (int r = 0; r < 4; ++r) {
                    if (r != victim) left.push_back(r);
                  }
                  CREW_TRY(goes_on(rank, rest, left));
                  CREW_TRY(fine(ncclCommDestroy(rest), "ncclCommDestroy"));
                  CREW_TRY(fine(ncclCommAbort(rank.comm), "ncclCommAbort"));
                  Gpu::get().destroy(rank.stream);
                  return "";
                }),
      {victim});
}

TEST_CASE("teams: an abort ends all ranks' waits", "[teams][failure]") {
  const Placed placed(GENERATE(from_range(kLayouts)));
  const int devices = GENERATE(1, 4);
  auto* const called = static_cast<std::atomic<int>*>(crew::shared_page());
  *called = 0;
  crew::check(crew::run(4, [=](const Member& m) -> std::string {
    Rank rank(m);
    CREW_TRY(open(rank, devices));
    const crew::Belongings before = crew::Belongings::count();
    ncclComm_t second = nullptr;
    CREW_TRY(fine(ncclCommSplit(rank.comm, 0, m.rank, &second, nullptr), "ncclCommSplit"));
    const OnGpu<std::int32_t> a(values(m.rank, kCount));
    const auto sum = [&] { return ncclAllReduce(a.data(), a.data(), kCount, ncclInt32, ncclSum, second, rank.stream); };
    if (m.rank != 2) {
      CREW_TRY(fine(sum(), "without one"));
      ++*called;
      Gpu::get().wait(rank.stream);
      CREW_TRY(fails(second, ncclRemoteError, {"rank 2 called ncclCommAbort"}));
    }
    while (*called < 3) usleep(200);
    CREW_TRY(fine(ncclCommAbort(second), "ncclCommAbort"));
    CREW_TRY(goes_on(rank, rank.comm, {0, 1, 2, 3}));
    CREW_TRY(fine(ncclCommDestroy(rank.comm), "ncclCommDestroy"));
    Gpu::get().destroy(rank.stream);
    usleep(1100000);  // what was aborted is kept for a second
    ncclComm_t alone = nullptr;
    const int device = rank.device;
    CREW_TRY(fine(ncclCommInitAll(&alone, 1, &device), "ncclCommInitAll"));
    CREW_TRY(fine(ncclCommDestroy(alone), "ncclCommDestroy"));
    return before.descriptors == 0 ? "" : crew::Belongings::count().grown_since(before);
  }));
}

TEST_CASE("teams: a rank that left, or does not come, is not waited for", "[teams][failure]") {
  const Placed placed(GENERATE(from_range(kLayouts)));
  const int devices = GENERATE(1, 4);
  const bool leaves = GENERATE(true, false);
  auto* const over = static_cast<std::atomic<int>*>(crew::shared_page());
  *over = 0;
  crew::check(crew::run(4, [=](const Member& m) -> std::string {
    setenv("TUTTI_TIMEOUT_S", leaves ? "20" : "3", 1);
    Rank rank(m);
    CREW_TRY(open(rank, devices));
    const OnGpu<std::int32_t> a(values(m.rank, kCount));
    CREW_TRY(fine(sum_up(rank, a), "all"));
    Gpu::get().wait(rank.stream);
    if (m.rank == 2 && leaves) return rank.close();
    if (m.rank == 2) {
      while (*over < 3) usleep(1000);
      Gpu::get().destroy(rank.stream);
      return fine(ncclCommAbort(rank.comm), "ncclCommAbort");
    }
    CREW_TRY(may_fail(sum_up(rank, a), ncclRemoteError, {"rank 2 has left"}));  // that is found out at any time
    CREW_TRY(
        fails(rank.comm, ncclRemoteError, {"all_reduce", leaves ? "rank 2 has left" : "for rank 2 (TUTTI_TIMEOUT_S)"}));
    ++*over;
    return rank.close();
  }));
}

namespace {

/// A communicator from beginning to end. "" or the first failure.
std::string everything(const Rank& rank, const ncclUniqueId& id, const OnGpu<std::int32_t>& data) {
  std::string reason;
  const auto keep = [&](ncclResult_t result) {
    if (result != ncclSuccess && reason.empty()) reason = ncclGetLastError(nullptr);
    return result == ncclSuccess;
  };
  ncclComm_t comm = nullptr;
  fake_driver::set_counting(true);
  const bool made = keep(ncclCommInitRank(&comm, rank.m.ranks, id, rank.m.rank));
  if (made) keep(ncclAllReduce(data.data(), data.data(), kCount / 2 + 1, ncclInt32, ncclSum, comm, rank.stream));
  fake_driver::set_counting(false);
  Gpu::get().wait(rank.stream);
  ncclResult_t state = ncclSuccess;
  if (comm && keep(ncclCommGetAsyncError(comm, &state))) keep(state);
  fake_driver::set_counting(true);
  if (comm) keep(reason.empty() ? ncclCommDestroy(comm) : ncclCommAbort(comm));
  fake_driver::set_counting(false);
  return reason;
}

/// `unlucky`: the rank whose CUDA call fails.
std::string check_round(const Rank& rank, int unlucky, Rounds& rounds, int round, int call,
                        const OnGpu<std::int32_t>& data) {
  const Member& m = rank.m;
  const bool is_unlucky = m.rank == unlucky;
  if (is_unlucky) {
    CREW_TRY(fine(ncclGetUniqueId(&rounds.id), "ncclGetUniqueId"));
    fake_driver::fail_after(static_cast<std::uint64_t>(call), CUDA_ERROR_OUT_OF_MEMORY);
    rounds.begun = round;
  }
  while (rounds.begun < round && rounds.broken == 0) usleep(100);
  if (rounds.broken != 0) return "";
  const std::string reason = everything(rank, rounds.id, data);
  const std::string function = is_unlucky ? fake_driver::failed_function() : "";
  fake_driver::fail_after(0, CUDA_SUCCESS);
  const std::string where = "call " + std::to_string(call) + ", " + function + ": ";
  if (is_unlucky && function.empty()) {
    if (!reason.empty()) return where + "nothing failed, but " + reason;
    rounds.over = 1;
  }
  const bool said =
      reason.find("CUDA_ERROR_OUT_OF_MEMORY") != std::string::npos || reason.find(function) != std::string::npos;
  if (!function.empty() && !reason.empty() && !said) return where + reason;
  meet(m, rounds, 2 * round);
  return settle(rank.device);
}

std::string left_over(const fake_driver::Live& before) {
  const fake_driver::Live after = fake_driver::live();
  return after == before ? "" : "before: " + fake_driver::describe(before) + "; after: " + fake_driver::describe(after);
}

}  // namespace

// One in seventeen of some two thousand, or by turns (tests/turn.h) in fifty-one.
TEST_CASE("teams: CUDA calls fail once, one after another, and nothing is left", "[teams][failure]") {
  // Of hosts of one and three a rank without a share.
  const int unlucky = GENERATE(0, 3);
  const Placed placed(unlucky == 0 ? "2" : "1,3");
  const int devices = GENERATE(1, 4);
  auto* const rounds = static_cast<Rounds*>(crew::shared_page());
  const std::size_t step = is_in_turns() ? 51 : 17;
  constexpr int kCallsBeforeMeeting = 3;  // a rank that fails there is one that never comes
  const int first = kCallsBeforeMeeting + 1 + static_cast<int>(turn_of(step));
  INFO("from call " << first << " of rank " << unlucky);
  crew::check(crew::run(
      4,
      [=](const Member& m) -> std::string {
        Rank rank(m);
        setenv("TUTTI_STAGING_BYTES", "4096", 1);
        if (const std::string why = Gpu::why_not(); !why.empty()) return why;
        rank.device = m.rank % devices;
        Gpu::get().use(rank.device);
        rank.stream = Gpu::get().make_stream();
        ncclComm_t keeper = nullptr;
        CREW_TRY(fine(ncclCommInitAll(&keeper, 1, &rank.device), "ncclCommInitAll"));
        CREW_TRY(settle(rank.device));
        const OnGpu<std::int32_t> data(Values(kCount, m.rank));
        const fake_driver::Live before = fake_driver::live();
        int round = 0;
        while (rounds->over == 0 && rounds->broken == 0) {
          ++round;
          std::string wrong =
              check_round(rank, unlucky, *rounds, round, first + (round - 1) * static_cast<int>(step), data);
          if (wrong.empty() && rounds->broken == 0) wrong = left_over(before);
          if (!wrong.empty()) rounds->broken = 1;
          CREW_TRY(wrong);
          meet(m, *rounds, 2 * round + 1);
        }
        if (round < 4) return "only " + std::to_string(round) + " rounds";
        CREW_TRY(fine(ncclCommDestroy(keeper), "ncclCommDestroy"));
        Gpu::get().destroy(rank.stream);
        return "";
      },
      200));
}

}  // namespace tutti::test
