// Which thread makes a communicator's calls changes: a thread that makes one after another is served faster, and must make way at once.
#include "crew.h"

#include <tutti/tutti.h>

#include <catch2/catch.hpp>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <linux/filter.h>
#include <linux/membarrier.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

using crew::fine;
using crew::Member;
using crew::refused;

constexpr int kManyCalls = 300;  // more than it takes to be served faster

/// All ranks' sum of a number that depends on rank and call.
std::string sum(const Member& m, ncclComm_t comm, int call) {
  int in[2] = {call + m.rank, 7};
  int out[2] = {-1, -1};
  CREW_TRY(fine(ncclAllReduce(in, out, 2, ncclInt, ncclSum, comm, nullptr), "ncclAllReduce"));
  const int wanted = m.ranks * call + m.ranks * (m.ranks - 1) / 2;
  if (out[0] == wanted && out[1] == 7 * m.ranks) return "";
  return "call " + std::to_string(call) + " gives " + std::to_string(out[0]) + " and " + std::to_string(out[1]);
}

std::string sums(const Member& m, ncclComm_t comm, int count) {
  for (int i = 0; i < count; ++i) CREW_TRY(sum(m, comm, i));
  return "";
}

std::string in_another_thread(const crew::Body& body, const Member& m) {
  std::string wrong;
  std::thread([&] { wrong = body(m); }).join();
  return wrong;
}

std::string with_comm(const Member& m, const std::function<std::string(ncclComm_t)>& body) {
  ncclComm_t comm = nullptr;
  CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
  CREW_TRY(body(comm));
  return fine(ncclCommDestroy(comm), "ncclCommDestroy");
}

/// Threads that make the same call at the same time: whichever comes first, all ranks make as many.
std::string at_once(const Member& m, ncclComm_t comm) {
  std::vector<std::string> wrong(3);
  std::vector<std::thread> threads;
  for (std::string& mine : wrong) {
    threads.emplace_back([&] {
      for (int i = 0; i < kManyCalls && mine.empty(); ++i) mine = sum(m, comm, 5);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : wrong) CREW_TRY(text);
  return "";
}

std::string by_turns(const Member& m, ncclComm_t comm) {
  CREW_TRY(sums(m, comm, kManyCalls));
  CREW_TRY(in_another_thread([&](const Member& me) { return sums(me, comm, kManyCalls); }, m));
  for (int i = 0; i < 50; ++i) {
    CREW_TRY(sum(m, comm, i));
    CREW_TRY(in_another_thread([&](const Member& me) { return sum(me, comm, i + 1); }, m));
  }
  CREW_TRY(at_once(m, comm));
  return sums(m, comm, kManyCalls);
}

void refuse_membarrier() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{4, program};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0) prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}

}  // namespace

TEST_CASE("threads take turns at one communicator, and call it all at once") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    return with_comm(m, [&](ncclComm_t comm) { return by_turns(m, comm); });
  }));
}

TEST_CASE("the same where the kernel refuses membarrier, from the start and later") {
  for (const bool later : {false, true}) {
    crew::check(crew::run(2, [later](const Member& m) -> std::string {
      if (!later) refuse_membarrier();
      return with_comm(m, [&](ncclComm_t comm) -> std::string {
        CREW_TRY(sums(m, comm, kManyCalls));
        if (later) refuse_membarrier();
        return by_turns(m, comm);
      });
    }));
  }
}

TEST_CASE("a call on a stream comes before the next one without, and after those before") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    return with_comm(m, [&](ncclComm_t comm) -> std::string {
      cudaStream_t stream = nullptr;
      CREW_TRY(fine(tuttiStreamCreate(&stream), "tuttiStreamCreate"));
      for (int round = 0; round < 20; ++round) {
        CREW_TRY(sums(m, comm, 100));
        int first = 1, second = 0, third = 0, fourth = 0;
        CREW_TRY(fine(ncclAllReduce(&first, &second, 1, ncclInt, ncclSum, comm, nullptr), "first"));
        CREW_TRY(fine(ncclAllReduce(&second, &third, 1, ncclInt, ncclSum, comm, stream), "on a stream"));
        CREW_TRY(fine(ncclAllReduce(&third, &fourth, 1, ncclInt, ncclSum, comm, nullptr), "without one"));
        if (fourth != 8) return "round " + std::to_string(round) + ": " + std::to_string(fourth);
      }
      return fine(tuttiStreamDestroy(stream), "tuttiStreamDestroy");
    });
  }));
}

TEST_CASE("threads give their calls to one stream, which gets them in the order of their turns") {
  crew::check(crew::run(1, [](const Member& m) -> std::string {
    return with_comm(m, [&](ncclComm_t comm) -> std::string {
      cudaStream_t stream = nullptr;
      CREW_TRY(fine(tuttiStreamCreate(&stream), "tuttiStreamCreate"));
      std::vector<std::string> wrong(2);
      std::vector<std::thread> threads;
      for (std::string& mine : wrong) {
        threads.emplace_back([&] {
          int in = 3;
          int out = -1;
          for (int i = 0; i < 20000 && mine.empty(); ++i) {
            mine = fine(ncclAllReduce(&in, &out, 1, ncclInt, ncclSum, comm, stream), "ncclAllReduce");
            if (i % 64 == 63 && mine.empty()) mine = fine(tuttiStreamSynchronize(stream), "tuttiStreamSynchronize");
          }
          if (mine.empty()) mine = fine(tuttiStreamSynchronize(stream), "tuttiStreamSynchronize");
          if (mine.empty() && out != 3) mine = "the sum is " + std::to_string(out);
        });
      }
      for (std::thread& thread : threads) thread.join();
      for (const std::string& text : wrong) CREW_TRY(text);
      return fine(tuttiStreamDestroy(stream), "tuttiStreamDestroy");
    });
  }));
}

TEST_CASE("an abort ends the call of a thread that has made many") {
  auto* const is_aborted = new (crew::shared_page()) std::atomic<bool>(false);
  crew::check(crew::run(2, [is_aborted](const Member& m) -> std::string {
    ncclComm_t comm = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
    CREW_TRY(sums(m, comm, kManyCalls));
    const double start = crew::now_s();
    if (m.rank == 0) {
      std::string aborted;
      std::thread other([&] {
        usleep(100000);
        aborted = fine(ncclCommAbort(comm), "ncclCommAbort");
        *is_aborted = true;
      });
      int data = 1;  // rank 1 never makes this call
      const std::string wrong = refused(ncclAllReduce(&data, &data, 1, ncclInt, ncclSum, comm, nullptr),
                                        ncclRemoteError, {"rank 0 called ncclCommAbort"});
      other.join();
      CREW_TRY(wrong);
      CREW_TRY(aborted);
    } else {
      while (!*is_aborted) usleep(1000);
      int data = 1;
      CREW_TRY(refused(ncclAllReduce(&data, &data, 1, ncclInt, ncclSum, comm, nullptr), ncclRemoteError, {"rank 0"}));
      CREW_TRY(fine(ncclCommAbort(comm), "ncclCommAbort"));
    }
    return crew::now_s() - start < 2 ? "" : "took " + std::to_string(crew::now_s() - start) + " s";
  }));
}

TEST_CASE("calls that differ after many alike ones are refused on both ranks") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    return with_comm(m, [&](ncclComm_t comm) -> std::string {
      CREW_TRY(sums(m, comm, kManyCalls));
      int in[3] = {1, 2, 3}, out[3] = {-1, -1, -1};
      const std::size_t count = m.rank == 0 ? 2 : 3;
      CREW_TRY(refused(ncclAllReduce(in, out, count, ncclInt, ncclSum, comm, nullptr), ncclInvalidUsage,
                       {"count 2", "count 3", "nothing was done"}));
      if (out[0] != -1) return "an output was written";
      return sums(m, comm, kManyCalls);
    });
  }));
}

namespace {

std::string settle(ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress) {
    CREW_TRY(fine(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError"));
    usleep(20);
  }
  return state == ncclSuccess ? "" : fine(state, "the communicator");
}

/// It has that place and works, and is no more then.
std::string end(ncclComm_t comm, int ranks, int rank) {
  int its_ranks = -1;
  int its_rank = -1;
  CREW_TRY(settle(comm));
  CREW_TRY(fine(ncclCommCount(comm, &its_ranks), "ncclCommCount"));
  CREW_TRY(fine(ncclCommUserRank(comm, &its_rank), "ncclCommUserRank"));
  if (its_ranks != ranks || its_rank != rank) {
    return "rank " + std::to_string(its_rank) + " of " + std::to_string(its_ranks) + " instead of " +
           std::to_string(rank) + " of " + std::to_string(ranks);
  }
  CREW_TRY(crew::usable(comm));
  return fine(ncclCommDestroy(comm), "ncclCommDestroy");
}

ncclResult_t only_begun(ncclResult_t result) { return result == ncclInProgress ? ncclSuccess : result; }

/// Splits of one communicator in a row; in pairs of ranks, and all in reverse order.
std::string split_twice(const Member& m, ncclComm_t parent, const ncclConfig_t& config, bool in_group) {
  ncclConfig_t of_one = config;
  ncclConfig_t of_other = config;
  ncclComm_t pair = nullptr;
  ncclComm_t all = nullptr;
  if (in_group) CREW_TRY(fine(ncclGroupStart(), "ncclGroupStart"));
  CREW_TRY(fine(only_begun(ncclCommSplit(parent, m.rank / 2, 0, &pair, &of_one)), "ncclCommSplit"));
  CREW_TRY(fine(only_begun(ncclCommSplit(parent, 0, -m.rank, &all, &of_other)), "ncclCommSplit"));
  if (in_group) CREW_TRY(fine(only_begun(ncclGroupEnd()), "ncclGroupEnd"));
  CREW_TRY(settle(pair));
  CREW_TRY(settle(all));
  CREW_TRY(end(pair, 2, m.rank % 2));
  return end(all, m.ranks, m.ranks - 1 - m.rank);
}

/// A call of the parent while its child is being made.
std::string split_and_call(const Member& m, ncclComm_t parent, const ncclConfig_t& config, int call) {
  ncclConfig_t own = config;
  ncclComm_t pair = nullptr;
  CREW_TRY(fine(only_begun(ncclCommSplit(parent, m.rank / 2, 0, &pair, &own)), "ncclCommSplit"));
  CREW_TRY(sum(m, parent, call));
  CREW_TRY(settle(pair));
  return end(pair, 2, m.rank % 2);
}

}  // namespace

TEST_CASE("splits of a communicator, and its calls, keep the order in which they are made") {
  const bool blocking = GENERATE(true, false);
  crew::check(crew::run(4, [&](const Member& m) -> std::string {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = blocking ? 1 : 0;
    ncclComm_t parent = nullptr;
    ncclConfig_t own = config;
    CREW_TRY(
        fine(only_begun(ncclCommInitRankConfig(&parent, m.ranks, m.ids[0], m.rank, &own)), "ncclCommInitRankConfig"));
    CREW_TRY(settle(parent));
    for (int round = 0; round < 30; ++round) {
      usleep(static_cast<useconds_t>((round * 7 + m.rank * 13) % 5 * 100));
      CREW_TRY(split_twice(m, parent, config, true));
      if (!blocking) CREW_TRY(split_twice(m, parent, config, false));
      CREW_TRY(split_and_call(m, parent, config, round));
    }
    return fine(ncclCommDestroy(parent), "ncclCommDestroy");
  }));
}

TEST_CASE("a file that grows between two imports is read as far as it goes") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    return with_comm(m, [&](ncclComm_t comm) -> std::string {
      const int file = memfd_create("order-test", MFD_CLOEXEC);
      for (const std::size_t bytes : {std::size_t{64} << 10, std::size_t{8} << 20}) {
        if (ftruncate(file, static_cast<off_t>(bytes)) != 0) return "ftruncate";
        void* memory = nullptr;
        std::size_t size = 0;
        CREW_TRY(fine(tuttiMemImport(file, &memory, &size), "tuttiMemImport"));
        auto* const data = static_cast<float*>(memory);
        const std::size_t half = bytes / sizeof(float) / 2;
        std::fill_n(data, half, static_cast<float>(m.rank + 1));
        CREW_TRY(fine(ncclAllReduce(data, data + half, half, ncclFloat, ncclSum, comm, nullptr), "ncclAllReduce"));
        if (std::count(data + half, data + 2 * half, 3.0F) != static_cast<std::ptrdiff_t>(half)) return "wrong sums";
      }
      close(file);
      return "";
    });
  }));
}

TEST_CASE("what the shortest way of a call needs of the kernel is asked for when the communicator is made") {
  const auto membarrier = [](int command) { return syscall(SYS_membarrier, command, 0, 0); };
  const long offered = membarrier(MEMBARRIER_CMD_QUERY);
  if (offered < 0 || (offered & MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0) return;
  for (const bool threads : {false, true}) {
    CAPTURE(threads);
    crew::check(crew::run(2, [&](const Member& m) -> std::string {
      std::atomic<bool> over{false};
      std::thread other([&] {
        while (threads && !over) usleep(1000);
      });
      if (!threads) other.join();
      for (int tries = 0; !threads && crew::Belongings::count().threads > 1 && tries < 100; ++tries) usleep(1000);
      const std::string wrong = with_comm(m, [&](ncclComm_t) -> std::string {
        // No call has been made; where there are threads it takes a moment.
        for (int tries = 0; tries < (threads ? 5000 : 1); ++tries) {
          if (membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0) return "";
          usleep(1000);
        }
        return "the first call that needs it is to wait for it";
      });
      over = true;
      if (threads) other.join();
      return wrong;
    }));
  }
}

TEST_CASE("a thread that has made many calls ends, and others destroy the communicator or set schedules") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    return with_comm(m, [&](ncclComm_t comm) -> std::string {
      CREW_TRY(in_another_thread([&](const Member& me) { return sums(me, comm, kManyCalls); }, m));
      CREW_TRY(fine(tuttiCommSetSchedule(comm, nullptr, nullptr), "tuttiCommSetSchedule"));
      CREW_TRY(sums(m, comm, 3));
      CREW_TRY(in_another_thread([&](const Member& me) { return sums(me, comm, kManyCalls); }, m));
      return fine(ncclCommFinalize(comm), "ncclCommFinalize");
    });
  }));
}

TEST_CASE("a group of which a communicator fails ends when calls of others without a stream are over") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    ncclComm_t fails = nullptr;
    ncclComm_t works = nullptr;
    CREW_TRY(init(m, &fails, 0));
    CREW_TRY(init(m, &works, 1));
    int in[4] = {m.rank, 1, 2, 3};
    int out[4] = {};
    const bool waits = m.rank == 0;
    if (!waits) {
      CREW_TRY(refused(ncclAllReduce(in, out, 1, ncclInt, ncclSum, fails, nullptr), ncclInvalidUsage, {"differ"}));
      usleep(200000);
    }
    cudaStream_t stream = nullptr;
    if (waits) CREW_TRY(fine(tuttiStreamCreate(&stream), "tuttiStreamCreate"));
    CREW_TRY(fine(ncclGroupStart(), "ncclGroupStart"));
    if (waits) CREW_TRY(fine(ncclAllReduce(in, out, 2, ncclInt, ncclSum, fails, nullptr), "ncclAllReduce"));
    CREW_TRY(fine(ncclAllReduce(in + 2, out + 2, 1, ncclInt, ncclSum, works, stream), "ncclAllReduce"));
    CREW_TRY(fine(ncclAllReduce(in + 3, out + 3, 1, ncclInt, ncclSum, works, nullptr), "ncclAllReduce"));
    const ncclResult_t ended = ncclGroupEnd();
    CREW_TRY(waits ? refused(ended, ncclInvalidUsage, {"differ"}) : fine(ended, "ncclGroupEnd"));
    if (out[2] != 4 || out[3] != 6) return "the group was over before its calls";
    if (waits) CREW_TRY(fine(tuttiStreamDestroy(stream), "tuttiStreamDestroy"));
    CREW_TRY(fine(ncclCommDestroy(fails), "ncclCommDestroy"));
    return fine(ncclCommDestroy(works), "ncclCommDestroy");
  }));
}
