// Ranks as threads, processes and mixes of both; groups that hold many ranks in one thread.
#include "crew.h"

#include <tutti/tutti.h>

#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdio>
#include <random>
#include <thread>

#include <sys/prctl.h>
#include <unistd.h>

namespace {

using crew::fine;
using crew::Member;
using crew::resident_kb;

enum class Memory { kPrivate, kShared };

/// Ints that depend on rank and place.
int value(int rank, std::size_t i) { return rank * 1000003 + static_cast<int>(i) * 7 + 1; }

class Ints {
 public:
  Ints(Memory kind, std::size_t count) : kind_(kind) {
    if (kind == Memory::kPrivate) {
      data_ = new int[count];
    } else if (ncclMemAlloc(reinterpret_cast<void**>(&data_), count * sizeof(int)) != ncclSuccess) {
      abort();
    }
    std::fill(data_, data_ + count, -77);
  }
  ~Ints() {
    if (kind_ == Memory::kPrivate) {
      delete[] data_;
    } else {
      ncclMemFree(data_);
    }
  }
  Ints(const Ints&) = delete;
  Ints& operator=(const Ints&) = delete;
  int* get() const { return data_; }

 private:
  Memory kind_;
  int* data_ = nullptr;
};

std::string equal(const int* got, int wanted, std::size_t i, const char* what, int rank) {
  if (got[i] == wanted) return "";
  return std::string(what) + ": rank " + std::to_string(rank) + " element " + std::to_string(i) + " is " +
         std::to_string(got[i]) + ", should be " + std::to_string(wanted);
}

/// What one rank puts in and checks in each collective.
struct Work {
  int rank, ranks;
  std::size_t n;
  Ints in, out;

  Work(int r, int of, std::size_t count, Memory memory)
      : rank(r), ranks(of), n(count), in(memory, count * of), out(memory, count * of) {
    fill();
  }
  void fill() {
    for (std::size_t i = 0; i < n * ranks; ++i) in.get()[i] = value(rank, i);
    std::fill(out.get(), out.get() + n * ranks, -77);
  }
  int sum(std::size_t i) const {
    unsigned total = 0;
    for (int r = 0; r < ranks; ++r) total += static_cast<unsigned>(value(r, i));
    return static_cast<int>(total);
  }

  ncclResult_t call(int which, ncclComm_t comm, cudaStream_t stream) {
    fill();
    const int root = ranks - 1;
    int *a = in.get(), *b = out.get();
    switch (which) {
      case 0: return ncclAllReduce(a, b, n, ncclInt, ncclSum, comm, stream);
      case 1: return ncclReduce(a, b, n, ncclInt, ncclSum, root, comm, stream);
      case 2: return ncclBroadcast(a, b, n, ncclInt, root, comm, stream);
      case 3: return ncclReduceScatter(a, b, n, ncclInt, ncclSum, comm, stream);
      case 4: return ncclAllGather(a, b, n, ncclInt, comm, stream);
      case 5: return ncclAlltoAll(a, b, n, ncclInt, comm, stream);
      case 6: return ncclGather(a, b, n, ncclInt, root, comm, stream);
      case 7: return ncclScatter(a, b, n, ncclInt, root, comm, stream);
      case 8: {
        ncclGroupStart();
        for (int peer = 0; peer < ranks; ++peer) {
          ncclSend(a + n * peer, n, ncclInt, peer, comm, stream);
          ncclRecv(b + n * peer, n, ncclInt, peer, comm, stream);
        }
        return ncclGroupEnd();
      }
      default: std::copy(a, a + n, b); return ncclAllReduce(b, b, n, ncclInt, ncclSum, comm, stream);
    }
  }
  std::string check(int which) const {
    const int root = ranks - 1;
    const std::size_t mine = n * static_cast<std::size_t>(rank);
    const bool all = which == 4 || which == 5 || which == 8 || (which == 6 && rank == root);
    const bool none = (which == 1 || which == 6) && rank != root;
    for (std::size_t i = 0; i < (all ? n * ranks : n); ++i) {
      const int from = static_cast<int>(i / std::max<std::size_t>(n, 1));
      int wanted = -77;
      if (!none) {
        switch (which) {
          case 2: wanted = value(root, i); break;
          case 3: wanted = sum(mine + i); break;
          case 4:
          case 6: wanted = value(from, i % n); break;
          case 5:
          case 8: wanted = value(from, mine + i % n); break;
          case 7: wanted = value(root, mine + i); break;
          default: wanted = sum(i);
        }
      }
      CREW_TRY(equal(out.get(), wanted, i, ("collective " + std::to_string(which)).c_str(), rank));
    }
    return "";
  }
};
constexpr int kWorks = 10;

std::string everything(int rank, int ranks, ncclComm_t comm, const std::vector<std::size_t>& counts,
                       std::uint32_t seed = 1) {
  std::mt19937 random(seed);
  for (std::size_t n : counts) {
    for (int which = 0; which < kWorks; ++which) {
      // Each rank has its own idea of its memory.
      const bool mixed = random() % 2;
      const bool shared = random() % 2;
      Work work(rank, ranks, n, (mixed ? rank % 2 == 0 : shared) ? Memory::kShared : Memory::kPrivate);
      CREW_TRY(fine(work.call(which, comm, nullptr), ("call " + std::to_string(which)).c_str()));
      CREW_TRY(work.check(which));
    }
  }
  return "";
}

/// Runs `body(i)` in `count` threads; the first complaint.
std::string threads(int count, const std::function<std::string(int)>& body) {
  std::vector<std::string> wrong(static_cast<std::size_t>(count));
  std::vector<std::thread> all;
  for (int i = 0; i < count; ++i) all.emplace_back([&, i] { wrong[static_cast<std::size_t>(i)] = body(i); });
  for (std::thread& thread : all) thread.join();
  for (const std::string& text : wrong) CREW_TRY(text);
  return "";
}

}  // namespace

TEST_CASE("processes that hold several ranks each", "[mix]") {
  for (const auto& [processes, each] : {std::pair(2, 3), std::pair(3, 2), std::pair(1, 4)}) {
    INFO(processes << " processes with " << each << " threads");
    crew::check(crew::run(processes, [each = each](const Member& m) {
      const auto before = crew::Belongings::count();
      CREW_TRY(threads(each, [&](int i) -> std::string {
        // Ranks of a process do not follow each other.
        const int ranks = m.ranks * each, rank = i * m.ranks + m.rank;
        ncclComm_t comm = nullptr, child = nullptr;
        CREW_TRY(fine(ncclCommInitRank(&comm, ranks, m.ids[0], rank), "ncclCommInitRank"));
        CREW_TRY(everything(rank, ranks, comm, {0, 1, 3, 1000, 70001}));
        const int color = rank % 2;
        CREW_TRY(fine(ncclCommSplit(comm, color, -rank, &child, nullptr), "ncclCommSplit"));
        int inner = -1, of = 0;
        ncclCommUserRank(child, &inner);
        ncclCommCount(child, &of);
        CREW_TRY(everything(inner, of, child, {2, 5000}, 2));
        CREW_TRY(fine(ncclCommDestroy(child), "ncclCommDestroy"));
        return fine(ncclCommDestroy(comm), "ncclCommDestroy");
      }));
      return crew::left_behind(before);
    }));
  }
}

TEST_CASE("64 ranks, and one", "[mix]") {
  crew::check(crew::run(
      8,
      [](const Member& m) {
        return threads(8, [&](int i) -> std::string {
          ncclComm_t comm = nullptr;
          const int rank = m.rank * 8 + i;
          CREW_TRY(fine(ncclCommInitRank(&comm, 64, m.ids[0], rank), "ncclCommInitRank"));
          CREW_TRY(everything(rank, 64, comm, {1, 300}));
          return fine(ncclCommDestroy(comm), "ncclCommDestroy");
        });
      },
      60));
  crew::check(crew::run(1, [](const Member& m) -> std::string {
    ncclComm_t comm = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&comm, 1, m.ids[0], 0), "ncclCommInitRank"));
    CREW_TRY(everything(0, 1, comm, {0, 1, 300, 100000}));
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
}

TEST_CASE("one thread that holds 8 ranks", "[group]") {
  // No streams, one for each rank, one for all, two that cross.
  for (int streams : {0, 8, 1, 2}) {
    INFO(streams << " streams");
    crew::check(crew::run(1, [streams](const Member&) -> std::string {
      const auto before = crew::Belongings::count();
      constexpr int kRanks = 8;
      std::vector<ncclComm_t> comms(kRanks);
      CREW_TRY(fine(ncclCommInitAll(comms.data(), kRanks, nullptr), "ncclCommInitAll"));
      std::vector<cudaStream_t> own(static_cast<std::size_t>(streams));
      for (cudaStream_t& stream : own) CREW_TRY(fine(tuttiStreamCreate(&stream), "tuttiStreamCreate"));
      for (std::size_t n : {std::size_t{1}, std::size_t{900}, std::size_t{50000}}) {
        std::vector<std::unique_ptr<Work>> works;
        for (int i = 0; i < kWorks * kRanks; ++i)
          works.push_back(std::make_unique<Work>(i % kRanks, kRanks, n, Memory::kPrivate));
        CREW_TRY(fine(ncclGroupStart(), "ncclGroupStart"));
        for (int which = 0; which < kWorks; ++which) {
          for (int r = 0; r < kRanks; ++r) {
            // With two streams, even ranks start on the one and odd ranks on the other.
            const cudaStream_t stream =
                streams == 0 ? nullptr : own[static_cast<std::size_t>(r + (streams == 2 ? which : 0)) % own.size()];
            CREW_TRY(fine(works[static_cast<std::size_t>(which * kRanks + r)]->call(
                              which, comms[static_cast<std::size_t>(r)], stream),
                          "a call in a group"));
          }
        }
        CREW_TRY(fine(ncclGroupEnd(), "ncclGroupEnd"));
        for (cudaStream_t stream : own) CREW_TRY(fine(tuttiStreamSynchronize(stream), "tuttiStreamSynchronize"));
        for (int i = 0; i < kWorks * kRanks; ++i) CREW_TRY(works[static_cast<std::size_t>(i)]->check(i / kRanks));
      }
      for (ncclComm_t comm : comms) CREW_TRY(fine(ncclCommDestroy(comm), "ncclCommDestroy"));
      for (cudaStream_t stream : own) CREW_TRY(fine(tuttiStreamDestroy(stream), "tuttiStreamDestroy"));
      return crew::left_behind(before);
    }));
  }
}

TEST_CASE("a group's calls without a stream are done when it ends, beside others with one", "[group]") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    ncclComm_t comm = nullptr;
    cudaStream_t stream = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&comm, 2, m.ids[0], m.rank), "ncclCommInitRank"));
    CREW_TRY(fine(tuttiStreamCreate(&stream), "tuttiStreamCreate"));
    for (int round = 0; round < 20; ++round) {
      Work a(m.rank, 2, 100000, Memory::kPrivate), b(m.rank, 2, 100000, Memory::kPrivate);
      ncclGroupStart();
      a.call(0, comm, stream);
      b.call(4, comm, nullptr);
      CREW_TRY(fine(ncclGroupEnd(), "ncclGroupEnd"));
      CREW_TRY(b.check(4));
      CREW_TRY(fine(tuttiStreamSynchronize(stream), "tuttiStreamSynchronize"));
      CREW_TRY(a.check(0));
    }
    CREW_TRY(fine(ncclCommDestroy(comm), "ncclCommDestroy"));
    return fine(tuttiStreamDestroy(stream), "tuttiStreamDestroy");
  }));
}

TEST_CASE("several communicators in one group, in each rank's own order", "[group]") {
  for (int streams : {0, 1, 3}) {
    crew::check(crew::run(
        3,
        [streams](const Member& m) -> std::string {
          ncclComm_t comms[3] = {};
          cudaStream_t own[3] = {};
          for (int i = 0; i < streams; ++i) CREW_TRY(fine(tuttiStreamCreate(&own[i]), "tuttiStreamCreate"));
          for (int i = 0; i < 3; ++i)
            CREW_TRY(fine(ncclCommInitRank(&comms[i], 3, m.ids[i], (m.rank + i) % 3), "ncclCommInitRank"));
          std::vector<std::unique_ptr<Work>> works;
          for (int i = 0; i < 3; ++i)
            works.push_back(std::make_unique<Work>((m.rank + i) % 3, 3, 40000, Memory::kPrivate));
          for (int round = 0; round < kWorks; ++round) {
            ncclGroupStart();
            ncclGroupStart();
            for (int k = 0; k < 3; ++k) {
              const int i = (k + m.rank) % 3;
              works[static_cast<std::size_t>(i)]->call((round + i) % kWorks, comms[i],
                                                       streams ? own[k % streams] : nullptr);
            }
            CREW_TRY(fine(ncclGroupEnd(), "the inner ncclGroupEnd"));
            CREW_TRY(fine(ncclGroupEnd(), "ncclGroupEnd"));
            for (int i = 0; i < streams; ++i) CREW_TRY(fine(tuttiStreamSynchronize(own[i]), "tuttiStreamSynchronize"));
            for (int i = 0; i < 3; ++i) CREW_TRY(works[static_cast<std::size_t>(i)]->check((round + i) % kWorks));
          }
          for (ncclComm_t comm : comms) CREW_TRY(fine(ncclCommDestroy(comm), "ncclCommDestroy"));
          for (int i = 0; i < streams; ++i) CREW_TRY(fine(tuttiStreamDestroy(own[i]), "tuttiStreamDestroy"));
          return "";
        },
        30, 3));
  }
}

TEST_CASE("several sends to one peer in a group arrive in order", "[group]") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    ncclComm_t comm = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&comm, 2, m.ids[0], m.rank), "ncclCommInitRank"));
    std::vector<std::vector<int>> out(20), in(20);
    ncclGroupStart();
    for (int i = 0; i < 20; ++i) {
      const auto n = static_cast<std::size_t>(i % 4 == 0 ? 3 : 1000 * i + 1);
      out[static_cast<std::size_t>(i)].assign(n, 100 * m.rank + i);
      in[static_cast<std::size_t>(i)].assign(n, -1);
      ncclSend(out[static_cast<std::size_t>(i)].data(), n, ncclInt, 1 - m.rank, comm, nullptr);
      ncclRecv(in[static_cast<std::size_t>(i)].data(), n, ncclInt, 1 - m.rank, comm, nullptr);
    }
    CREW_TRY(fine(ncclGroupEnd(), "ncclGroupEnd"));
    for (int i = 0; i < 20; ++i) {
      for (int got : in[static_cast<std::size_t>(i)]) {
        if (got != 100 * (1 - m.rank) + i) return "message " + std::to_string(i) + " holds " + std::to_string(got);
      }
    }
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
}

TEST_CASE("a destroyed communicator's calls in an open group are refused", "[group]") {
  crew::check(crew::run(1, [](const Member& m) -> std::string {
    ncclComm_t comm = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&comm, 1, m.ids[0], 0), "ncclCommInitRank"));
    int one = 1;
    ncclGroupStart();
    ncclAllReduce(&one, &one, 1, ncclInt, ncclSum, comm, nullptr);
    CREW_TRY(fine(ncclCommDestroy(comm), "ncclCommDestroy"));
    return crew::refused(ncclGroupEnd(), ncclInvalidArgument, {"destroyed"});
  }));
}

TEST_CASE("initialisation and splits of many ranks in one thread's group", "[group]") {
  for (int blocking : {1, 0}) {
    crew::check(crew::run(2, [blocking](const Member& m) -> std::string {
      const auto before = crew::Belongings::count();
      constexpr int kEach = 3, kRanks = 6;
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = blocking;
      ncclComm_t comms[kEach] = {}, children[kEach] = {};
      const auto settle = [&](ncclComm_t* all, ncclResult_t result) -> std::string {
        if (result != ncclSuccess && !(result == ncclInProgress && !blocking)) return fine(result, "ncclGroupEnd");
        for (int i = 0; i < kEach; ++i) {
          ncclResult_t state = ncclInProgress;
          while (all[i] && state == ncclInProgress)
            CREW_TRY(fine(ncclCommGetAsyncError(all[i], &state), "ncclCommGetAsyncError"));
          if (all[i] && state != ncclSuccess) return fine(state, "the state");
        }
        return "";
      };
      ncclGroupStart();
      for (int i = 0; i < kEach; ++i) {
        const ncclResult_t result = ncclCommInitRankConfig(&comms[i], kRanks, m.ids[0], m.rank * kEach + i, &config);
        if (result != ncclSuccess && result != ncclInProgress) return fine(result, "ncclCommInitRankConfig");
      }
      CREW_TRY(settle(comms, ncclGroupEnd()));
      const auto sums = [&](ncclComm_t* all, int wanted) -> std::string {
        int ones[kEach] = {1, 1, 1};
        ncclGroupStart();
        for (int i = 0; i < kEach; ++i) {
          if (all[i]) ncclAllReduce(&ones[i], &ones[i], 1, ncclInt, ncclSum, all[i], nullptr);
        }
        CREW_TRY(settle(all, ncclGroupEnd()));
        for (int i = 0; i < kEach; ++i) {
          if (all[i] && ones[i] != wanted) return "sum " + std::to_string(ones[i]);
        }
        return "";
      };
      CREW_TRY(sums(comms, kRanks));
      ncclGroupStart();
      for (int i = 0; i < kEach; ++i) {
        const ncclResult_t result = ncclCommSplit(comms[i], i == 2 ? NCCL_SPLIT_NOCOLOR : i, 0, &children[i], nullptr);
        if (result != ncclSuccess && result != ncclInProgress) return fine(result, "ncclCommSplit");
      }
      CREW_TRY(settle(children, ncclGroupEnd()));
      if (children[2]) return "a communicator without a color";
      CREW_TRY(sums(children, 2));
      for (int i = 0; i < kEach; ++i) {
        for (ncclComm_t comm : {children[i], comms[i]}) {
          if (!comm) continue;
          ncclResult_t result = ncclCommFinalize(comm);
          if (result != ncclInProgress) CREW_TRY(fine(result, "ncclCommFinalize"));
          while (result == ncclInProgress)
            CREW_TRY(fine(ncclCommGetAsyncError(comm, &result), "ncclCommGetAsyncError"));
          CREW_TRY(fine(ncclCommDestroy(comm), "ncclCommDestroy"));
        }
      }
      return crew::left_behind(before);
    }));
  }
}

TEST_CASE("a hundred communicators after each other leave nothing", "[leak]") {
  crew::check(crew::run(
      2,
      [](const Member& m) -> std::string {
        long settled = 0;
        auto before = crew::Belongings::count();
        for (int round = 0; round < 100; ++round) {
          if (round == 20) settled = resident_kb();
          CREW_TRY(threads(2, [&](int i) -> std::string {
            ncclComm_t comm = nullptr, child = nullptr;
            const int rank = 2 * i + m.rank;
            CREW_TRY(fine(ncclCommInitRank(&comm, 4, m.ids[round], rank), "ncclCommInitRank"));
            Work work(rank, 4, 5000, round % 2 ? Memory::kShared : Memory::kPrivate);
            CREW_TRY(fine(work.call(round % kWorks, comm, nullptr), "a call"));
            CREW_TRY(work.check(round % kWorks));
            CREW_TRY(fine(ncclCommSplit(comm, rank / 2, 0, &child, nullptr), "ncclCommSplit"));
            CREW_TRY(crew::usable(child));
            CREW_TRY(fine(ncclCommDestroy(comm), "ncclCommDestroy"));
            return fine(ncclCommDestroy(child), "ncclCommDestroy");
          }));
          CREW_TRY(crew::left_behind(before));
        }
        const long grown = resident_kb() - settled;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
        constexpr long kMostKb = 1 << 20;  // A sanitizer keeps what was freed.
#else
        constexpr long kMostKb = 2000;
#endif
        return grown > kMostKb ? "grew by " + std::to_string(grown) + " KiB" : "";
      },
      60, 100));
}

TEST_CASE("20 communicators at once from as many threads", "[mix]") {
  crew::check(crew::run(
      3,
      [](const Member& m) {
        return threads(20, [&](int i) -> std::string {
          ncclComm_t comm = nullptr;
          const int rank = (m.rank + i) % 3;
          CREW_TRY(fine(ncclCommInitRank(&comm, 3, m.ids[i], rank), "ncclCommInitRank"));
          CREW_TRY(everything(rank, 3, comm, {1, 2000}, static_cast<std::uint32_t>(i)));
          return fine(ncclCommDestroy(comm), "ncclCommDestroy");
        });
      },
      60, 20));
}

TEST_CASE("memory that is freed and made anew between calls is never stale", "[memory]") {
  crew::check(crew::run(3, [](const Member& m) -> std::string {
    ncclComm_t comm = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&comm, 3, m.ids[0], m.rank), "ncclCommInitRank"));
    for (int round = 0; round < 300; ++round) {
      // Rank r makes new memory every r + 1 rounds only.
      static std::unique_ptr<Work> work;
      const std::size_t n = 5000;
      if (!work || round % (m.rank + 1) == 0) {
        work.reset();
        work = std::make_unique<Work>(m.rank, 3, n, Memory::kShared);
      }
      CREW_TRY(fine(work->call(round % kWorks, comm, nullptr), "a call"));
      CREW_TRY(work->check(round % kWorks));
      if (round == 299) work.reset();
    }
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
}

TEST_CASE("shared memory of processes that may not look into each other counts as private", "[memory]") {
  crew::check(crew::run(3, [](const Member& m) -> std::string {
    if (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0) {  // root may, whatever it is
      fputs("mix_test: skipped: this root may not become another user\n", stderr);
      return "";
    }
    prctl(PR_SET_DUMPABLE, m.rank == 1);
    ncclComm_t comm = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&comm, 3, m.ids[0], m.rank), "ncclCommInitRank"));
    CREW_TRY(everything(m.rank, 3, comm, {1, 300, 100000}));
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
}

TEST_CASE("a child of a rank that is no rank disturbs nothing", "[memory][forks]") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    Work work(m.rank, 2, 20000, Memory::kShared);
    ncclComm_t comm = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&comm, 2, m.ids[0], m.rank), "ncclCommInitRank"));
    CREW_TRY(fine(work.call(0, comm, nullptr), "a call"));
    const pid_t child = fork();
    if (child == 0) {
      // It frees what it inherited, and ends as programs do.
      work.~Work();
      exit(0);
    }
    for (int which = 0; which < kWorks; ++which) {
      CREW_TRY(fine(work.call(which, comm, nullptr), "a call"));
      CREW_TRY(work.check(which));
    }
    usleep(50000);
    CREW_TRY(crew::usable(comm));
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
}
