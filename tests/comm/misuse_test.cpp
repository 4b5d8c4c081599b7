// Ranks that do not agree, abort, leave early or never come: what every other rank is told.
#include "crew.h"

#include <tutti/tutti.h>

#include <catch2/catch.hpp>

#include <algorithm>
#include <atomic>
#include <thread>

#include <unistd.h>

namespace {

using crew::fine;
using crew::Member;
using crew::refused;

std::string rank_name(int rank) { return "rank " + std::to_string(rank); }

std::vector<std::string> all_ranks(int ranks) {
  std::vector<std::string> names;
  for (int r = 0; r < ranks; ++r) names.push_back(rank_name(r));
  return names;
}

/// A collective with its arguments; the odd rank changes one of them.
struct Call {
  int which = 0;
  std::size_t count = 100;
  ncclDataType_t type = ncclInt32;
  ncclRedOp_t op = ncclSum;
  int root = 0;

  ncclResult_t make(const void* in, void* out, ncclComm_t comm, cudaStream_t stream) const {
    switch (which) {
      case 0: return ncclAllReduce(in, out, count, type, op, comm, stream);
      case 1: return ncclReduce(in, out, count, type, op, root, comm, stream);
      case 2: return ncclBroadcast(in, out, count, type, root, comm, stream);
      case 3: return ncclReduceScatter(in, out, count, type, op, comm, stream);
      case 4: return ncclAllGather(in, out, count, type, comm, stream);
      case 5: return ncclAlltoAll(in, out, count, type, comm, stream);
      case 6: return ncclGather(in, out, count, type, root, comm, stream);
      default: return ncclScatter(in, out, count, type, root, comm, stream);
    }
  }
  bool reduces() const { return which == 0 || which == 1 || which == 3; }
  /// Short rooted calls: ranks may be through with them before they are found to differ.
  bool one_way() const { return rooted(); }
  bool rooted() const { return which == 1 || which == 2 || which >= 6; }
};

enum Change { kCount, kTinyCount, kZeroCount, kType, kOp, kRoot, kOther, kChanges };

/// False where the collective does not have what is to change.
bool change(Call& call, Change what) {
  switch (what) {
    case kCount: ++call.count; return true;
    case kTinyCount: call.count = 1; return true;
    case kZeroCount: call.count = 0; return true;
    case kType: call.type = ncclFloat32; return true;
    case kOp: call.op = ncclMax; return call.reduces();
    case kRoot: call.root = 1; return call.rooted();
    default: call.which = (call.which + 1) % 8; return true;
  }
}

std::string check_untouched(const std::vector<unsigned char>& out) {
  for (unsigned char byte : out) {
    if (byte != 0xA5) return "output was written";
  }
  return "";
}

std::string differ(const Member& m, ncclComm_t comm, int which, Change what, int odd, cudaStream_t stream) {
  std::vector<unsigned char> in(4096, 1), out(4096, 0xA5);
  Call call;
  call.which = which;
  if (!change(call, what) || call.one_way() || Call{which}.one_way()) return "";
  if (m.rank != odd) call = Call{which};
  ncclResult_t result = call.make(in.data(), out.data(), comm, stream);
  std::string where = "collective " + std::to_string(which) + " change " + std::to_string(what) + ": ";
  if (stream) {
    CREW_TRY(fine(result, "a call on a stream"));
    CREW_TRY(fine(tuttiStreamSynchronize(stream), "tuttiStreamSynchronize"));
    CREW_TRY(fine(ncclCommGetAsyncError(comm, &result), "ncclCommGetAsyncError"));
  }
  if (auto wrong = refused(result, ncclInvalidUsage, all_ranks(m.ranks), comm); !wrong.empty()) return where + wrong;
  if (auto wrong = check_untouched(out); !wrong.empty()) return where + wrong;
  if (auto wrong = crew::usable(comm); !wrong.empty()) return where + wrong;
  return "";
}

/// Whoever notices is refused and has written nothing; everybody is at the next call.
std::string differ_one_way(const Member& m, ncclComm_t comm, const Call& call, int odd) {
  std::vector<unsigned char> in(4096, 1), out(4096, 0xA5);
  const ncclResult_t result = call.make(in.data(), out.data(), comm, nullptr);
  if (result != ncclSuccess) {
    CREW_TRY(refused(result, ncclInvalidUsage, {"differ", rank_name(odd)}, comm));
    CREW_TRY(check_untouched(out));
  }
  float one = 1;
  return refused(ncclAllReduce(&one, &one, 1, ncclFloat, ncclSum, comm, nullptr), ncclInvalidUsage,
                 {"differ", rank_name(odd)}, comm);
}

}  // namespace

TEST_CASE("calls that differ fail on every rank before anything is written", "[mismatch]") {
  crew::check(crew::run(3, [](const Member& m) -> std::string {
    ncclComm_t comm = nullptr;
    CREW_TRY(init(m, &comm));
    for (int which = 0; which < 8; ++which) {
      for (int what = 0; what < kChanges; ++what) {
        CREW_TRY(differ(m, comm, which, static_cast<Change>(what), (which + what) % 3, nullptr));
      }
    }
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
}

TEST_CASE("short rooted calls that differ: who notices is refused, then everybody", "[mismatch]") {
  for (int which = 0; which < 8; ++which) {
    for (int what = 0; what < kChanges; ++what) {
      Call changed;
      changed.which = which;
      const bool changes = change(changed, static_cast<Change>(what));
      if (!changes || (!changed.one_way() && !Call{which}.one_way())) continue;
      INFO("collective " << which << " change " << what);
      crew::check(crew::run(3, [&](const Member& m) -> std::string {
        ncclComm_t comm = nullptr;
        CREW_TRY(init(m, &comm));
        const int odd = (which + what) % 3;
        CREW_TRY(differ_one_way(m, comm, m.rank == odd ? changed : Call{which}, odd));
        return fine(ncclCommDestroy(comm), "ncclCommDestroy");
      }));
    }
  }
}

TEST_CASE("calls on streams that differ show in ncclCommGetAsyncError", "[mismatch]") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    cudaStream_t stream = nullptr;
    CREW_TRY(fine(tuttiStreamCreate(&stream), "tuttiStreamCreate"));
    ncclComm_t comm = nullptr;
    CREW_TRY(init(m, &comm));
    CREW_TRY(differ(m, comm, 0, kType, 1, stream));
    CREW_TRY(fine(ncclCommDestroy(comm), "ncclCommDestroy"));
    return fine(tuttiStreamDestroy(stream), "tuttiStreamDestroy");
  }));
}

TEST_CASE("a long send and a receive that differ: both are refused, and the communicator goes on", "[mismatch]") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    ncclComm_t comm = nullptr;
    CREW_TRY(init(m, &comm));
    std::vector<unsigned char> in(40000, 1), out(40000, 0xA5);
    struct Pair {
      std::size_t sent, received;
      ncclDataType_t type;
    };
    for (const Pair& p : {Pair{9000, 9001, ncclInt32}, Pair{9000, 9000, ncclFloat32}, Pair{9000, 3, ncclInt32}}) {
      const ncclResult_t result = m.rank == 0 ? ncclSend(in.data(), p.sent, ncclInt32, 1, comm, nullptr)
                                              : ncclRecv(out.data(), p.received, p.type, 0, comm, nullptr);
      CREW_TRY(refused(result, ncclInvalidUsage, all_ranks(2), comm));
      CREW_TRY(check_untouched(out));
      CREW_TRY(crew::usable(comm));
    }
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
}

/// A short send succeeds before its receive is made, so that the sender learns of the difference from its next call.
TEST_CASE("a short send and a receive that differ: the receiver is refused, then everybody", "[mismatch]") {
  struct Pair {
    std::size_t sent, received;
    ncclDataType_t type;
  };
  for (const Pair& p : {Pair{3, 4, ncclInt32}, Pair{3, 3, ncclFloat32}, Pair{1000, 999, ncclInt32},
                        Pair{1000, 9000, ncclInt32}, Pair{0, 1, ncclInt32}}) {
    for (const bool grouped : {false, true}) {
      crew::check(crew::run(2, [&](const Member& m) -> std::string {
        ncclComm_t comm = nullptr;
        CREW_TRY(init(m, &comm));
        std::vector<unsigned char> in(40000, 1), out(40000, 0xA5);
        if (grouped) ncclGroupStart();
        ncclResult_t result = m.rank == 0 ? ncclSend(in.data(), p.sent, ncclInt32, 1, comm, nullptr)
                                          : ncclRecv(out.data(), p.received, p.type, 0, comm, nullptr);
        if (grouped) result = ncclGroupEnd();
        if (m.rank == 1) CREW_TRY(refused(result, ncclInvalidUsage, all_ranks(2), comm));
        if (m.rank == 0 && result != ncclSuccess) CREW_TRY(refused(result, ncclInvalidUsage, all_ranks(2), comm));
        CREW_TRY(check_untouched(out));
        float one = 1;
        CREW_TRY(refused(ncclAllReduce(&one, &one, 1, ncclFloat, ncclSum, comm, nullptr), ncclInvalidUsage,
                         {"rank 0 sends count " + std::to_string(p.sent) + " int32",
                          "rank 1 receives count " + std::to_string(p.received)},
                         comm));
        ncclResult_t state = ncclSuccess;
        CREW_TRY(fine(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError"));
        if (state != ncclInvalidUsage) return "ncclCommGetAsyncError gives " + std::to_string(state);
        return fine(ncclCommDestroy(comm), "ncclCommDestroy");
      }));
    }
  }
}

TEST_CASE("the reason of a group that failed takes the place of an older one") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    ncclComm_t comm = nullptr;
    CREW_TRY(init(m, &comm));
    std::vector<int> x(40000, 1);
    CREW_TRY(refused(ncclBroadcast(x.data(), x.data(), 1, ncclInt, 7, comm, nullptr), ncclInvalidArgument,
                     {"root is 7"}, comm));
    ncclGroupStart();
    for (int i = 0; i < 2; ++i)
      CREW_TRY(
          fine(ncclAllReduce(x.data(), x.data(), x.size(), m.rank == 0 ? ncclInt : ncclFloat, ncclSum, comm, nullptr),
               "ncclAllReduce"));
    CREW_TRY(refused(ncclGroupEnd(), ncclInvalidUsage, {"ncclGroupEnd: ", "differ"}, comm));
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
}

TEST_CASE("abort from another thread ends a call that waits, here and elsewhere", "[abort]") {
  for (bool everybody : {false, true}) {
    auto* const is_aborted = new (crew::shared_page()) std::atomic<bool>(false);
    crew::check(crew::run(4, [everybody, is_aborted](const Member& m) -> std::string {
      const auto before = crew::Belongings::count();
      ncclComm_t comm = nullptr;
      CREW_TRY(init(m, &comm));
      CREW_TRY(crew::usable(comm));
      const double start = crew::now_s();
      if (m.rank != 3) {
        std::thread other;
        if (m.rank == 1 || everybody)
          other = std::thread([comm, is_aborted] {
            usleep(100000);
            ncclCommAbort(comm);
            *is_aborted = true;
          });
        std::vector<float> data(5000);
        const ncclResult_t result = ncclAllReduce(data.data(), data.data(), 5000, ncclFloat, ncclSum, comm, nullptr);
        std::string wrong = refused(result, ncclRemoteError, {everybody ? "rank" : "rank 1"});
        if (other.joinable()) other.join();
        CREW_TRY(wrong);
        if (crew::now_s() - start > 1.1) return "took " + std::to_string(crew::now_s() - start) + " s";
      } else {
        while (!*is_aborted) usleep(1000);
        CREW_TRY(refused(ncclSend("x", 1, ncclInt8, 0, comm, nullptr), ncclRemoteError, {"rank"}));
      }
      const bool gone = m.rank == 1 || (everybody && m.rank != 3);
      if (!gone) CREW_TRY(fine(ncclCommAbort(comm), "ncclCommAbort"));
      ncclResult_t state;
      float one = 1;
      CREW_TRY(refused(ncclCommAbort(comm), ncclInvalidArgument, {"destroyed"}));
      CREW_TRY(refused(ncclCommDestroy(comm), ncclInvalidArgument, {"destroyed"}));
      CREW_TRY(refused(ncclCommGetAsyncError(comm, &state), ncclInvalidArgument, {"destroyed"}));
      CREW_TRY(
          refused(ncclAllReduce(&one, &one, 1, ncclFloat, ncclSum, comm, nullptr), ncclInvalidArgument, {"destroyed"}));
      CREW_TRY(refused(ncclCommSplit(comm, 0, 0, &comm, nullptr), ncclInvalidArgument, {"destroyed"}));
      ncclComm_t next = nullptr;
      CREW_TRY(init(m, &next, 1));
      CREW_TRY(crew::usable(next));
      CREW_TRY(fine(ncclCommDestroy(next), "ncclCommDestroy"));
      return crew::left_behind(before);
    }));
  }
}

TEST_CASE("abort while calls keep coming from another thread", "[abort]") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    for (int round = 0; round < 40; ++round) {
      ncclComm_t comms[2] = {};
      ncclUniqueId id;
      // Two ranks of this process: nothing to do with the other one.
      CREW_TRY(fine(ncclGetUniqueId(&id), "ncclGetUniqueId"));
      CREW_TRY(fine(ncclCommInitAll(comms, 2, nullptr), "ncclCommInitAll"));
      std::atomic<bool> odd{false};
      const auto call = [&](int rank) {
        int data[4] = {1, 2, 3, 4};
        ncclResult_t result = ncclSuccess;
        while (result == ncclSuccess) result = ncclAllReduce(data, data, 4, ncclInt, ncclMax, comms[rank], nullptr);
        if (result != ncclRemoteError && result != ncclInvalidArgument) odd = true;
      };
      std::thread a(call, 0), b(call, 1);
      usleep(static_cast<useconds_t>(100 * round + m.rank));
      const ncclResult_t first = ncclCommAbort(comms[0]), second = ncclCommAbort(comms[1]);
      a.join();
      b.join();
      CREW_TRY(fine(first, "ncclCommAbort"));
      CREW_TRY(fine(second, "ncclCommAbort"));
      if (odd) return "an odd result";
    }
    return "";
  }));
}

TEST_CASE("abort while a communicator is being made", "[abort]") {
  crew::check(crew::run(3, [](const Member& m) -> std::string {
    const auto before = crew::Belongings::count();
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t comm = nullptr;
    if (m.rank == 2) return "";  // never comes
    ncclResult_t result = ncclCommInitRankConfig(&comm, 3, m.ids[0], m.rank, &config);
    if (result != ncclSuccess && result != ncclInProgress) return fine(result, "ncclCommInitRankConfig");
    usleep(100000);
    ncclResult_t state = ncclSuccess;
    CREW_TRY(fine(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError"));
    if (m.rank == 0) {
      if (state != ncclInProgress) return "state " + std::to_string(state);
    } else {
      const double start = crew::now_s();
      while (state == ncclInProgress && crew::now_s() - start < 2) {
        usleep(1000);
        CREW_TRY(fine(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError"));
      }
      if (state != ncclRemoteError) return "state " + std::to_string(state);
      CREW_TRY(refused(state, ncclRemoteError, {"rank 0"}, comm));
    }
    const double start = crew::now_s();
    CREW_TRY(fine(ncclCommAbort(comm), "ncclCommAbort"));
    if (crew::now_s() - start > 1) return "abort took " + std::to_string(crew::now_s() - start) + " s";
    return crew::left_behind(before);
  }));
}

TEST_CASE("abort of communicators that a group is making in another thread, one or several", "[abort]") {
  for (const int made : {1, 2}) {
    crew::check(crew::run(
        1,
        [made](const Member& m) -> std::string {
          const auto before = crew::Belongings::count();
          ncclComm_t comms[2] = {};
          ncclResult_t result = ncclSuccess;
          std::thread maker([&] {
            ncclGroupStart();
            for (int i = 0; i < made; ++i) ncclCommInitRank(&comms[i], 2, m.ids[i], 0);  // rank 1 never comes
            result = ncclGroupEnd();
          });
          usleep(200000);
          const double start = crew::now_s();
          for (int i = 0; i < made; ++i) CREW_TRY(fine(ncclCommAbort(comms[i]), "ncclCommAbort"));
          maker.join();
          if (crew::now_s() - start > 2) return "took " + std::to_string(crew::now_s() - start) + " s";
          CREW_TRY(refused(result, ncclInvalidUsage, {}));
          return crew::left_behind(before);
        },
        10));
  }
}

TEST_CASE("what a group would make when it was aborted before the group's end", "[abort]") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    ncclComm_t comm = nullptr, child = nullptr;
    CREW_TRY(fine(ncclGroupStart(), "ncclGroupStart"));
    CREW_TRY(init(m, &comm));
    CREW_TRY(fine(ncclCommAbort(comm), "ncclCommAbort"));
    if (ncclGroupEnd() == ncclSuccess) return "it was made";
    // What is made of one that has left in peace.
    CREW_TRY(init(m, &comm, 1));
    CREW_TRY(fine(ncclGroupStart(), "ncclGroupStart"));
    CREW_TRY(fine(ncclCommSplit(comm, 0, m.rank, &child, nullptr), "ncclCommSplit"));
    CREW_TRY(fine(ncclCommAbort(comm), "ncclCommAbort"));
    CREW_TRY(refused(ncclGroupEnd(), ncclInvalidArgument, {"aborted after another one was to be made of it"}));
    return fine(ncclCommAbort(child), "ncclCommAbort");
  }));
}

TEST_CASE("abort of a split that a rank does not join", "[abort]") {
  crew::check(crew::run(3, [](const Member& m) -> std::string {
    const auto before = crew::Belongings::count();
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t comm = nullptr, child = nullptr;
    if (ncclCommInitRankConfig(&comm, m.ranks, m.ids[0], m.rank, &config) != ncclInProgress) return "it waited";
    for (ncclResult_t state = ncclInProgress; state == ncclInProgress; usleep(100))
      CREW_TRY(fine(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError"));
    if (m.rank == 2) {
      usleep(400000);
    } else {
      const ncclResult_t result = ncclCommSplit(comm, 0, m.rank, &child, nullptr);
      if (result != ncclInProgress && result != ncclSuccess) return fine(result, "ncclCommSplit");
      usleep(m.rank == 0 ? 50000 : 400000);
      const double start = crew::now_s();
      CREW_TRY(fine(ncclCommAbort(child), "ncclCommAbort"));
      if (crew::now_s() - start > 1) return "abort took " + std::to_string(crew::now_s() - start) + " s";
    }
    CREW_TRY(refused(crew::usable(comm).empty() ? ncclSuccess : ncclRemoteError, ncclRemoteError, {"rank 0"}, comm));
    CREW_TRY(fine(ncclCommAbort(comm), "ncclCommAbort"));
    return crew::left_behind(before);
  }));
}

TEST_CASE("destroying with the others gone, or still calling", "[destroy]") {
  crew::check(crew::run(3, [](const Member& m) -> std::string {
    const auto before = crew::Belongings::count();
    ncclComm_t comm = nullptr;
    CREW_TRY(init(m, &comm));
    CREW_TRY(crew::usable(comm));
    if (m.rank == 0) _exit(0);  // without a word
    if (m.rank == 1) {
      CREW_TRY(fine(ncclCommDestroy(comm), "ncclCommDestroy"));
    } else {
      const double start = crew::now_s();
      std::vector<float> data(3000);
      CREW_TRY(refused(ncclAllReduce(data.data(), data.data(), 3000, ncclFloat, ncclSum, comm, nullptr),
                       ncclRemoteError, {"rank "}));
      if (crew::now_s() - start > 1) return "took " + std::to_string(crew::now_s() - start) + " s";
      CREW_TRY(fine(ncclCommDestroy(comm), "ncclCommDestroy"));
    }
    return crew::left_behind(before);
  }));
}

TEST_CASE("a program may end with communicators, streams and calls open", "[destroy]") {
  for (int round = 0; round < 5; ++round) {
    crew::check(crew::run(2, [round](const Member& m) -> std::string {
      ncclComm_t comm = nullptr;
      cudaStream_t stream = nullptr;
      CREW_TRY(fine(tuttiStreamCreate(&stream), "tuttiStreamCreate"));
      CREW_TRY(init(m, &comm));
      static float data[1000];
      if (m.rank == 0) {
        CREW_TRY(fine(ncclAllReduce(data, data, 1000, ncclFloat, ncclSum, comm, stream), "ncclAllReduce"));
        std::thread([comm] { ncclBroadcast(data, data, 1000, ncclFloat, 0, comm, nullptr); }).detach();
        usleep(static_cast<useconds_t>(round * 3000));
        exit(0);
      }
      usleep(30000);
      exit(0);
    }));
  }
}

TEST_CASE("ranks without stdin, stdout and stderr, which print all the same") {
  crew::check(crew::run(3, [](const Member& m) -> std::string {
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) close(fd);
    ncclComm_t comm = nullptr;
    CREW_TRY(init(m, &comm));
    void* shared = nullptr;
    CREW_TRY(fine(ncclMemAlloc(&shared, 4096), "ncclMemAlloc"));
    const std::string text(5000, 'x');
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
      if (write(fd, text.data(), text.size()) >= 0) return "descriptor " + std::to_string(fd) + " is somebody's";
    }
    CREW_TRY(crew::usable(comm));
    CREW_TRY(fine(ncclCommDestroy(comm), "ncclCommDestroy"));
    return fine(ncclMemFree(shared), "ncclMemFree");
  }));
}

TEST_CASE("a rank that does not come is named after TUTTI_TIMEOUT_S", "[timeout]") {
  setenv("TUTTI_TIMEOUT_S", "2", 1);
  // Of each rank's call and its start. Whoever begins first ends the wait of both: the longest has to be long enough.
  auto* const took_s = static_cast<double*>(crew::shared_page());
  const auto endings = crew::run(3, [took_s](const Member& m) -> std::string {
    ncclComm_t comm = nullptr;
    CREW_TRY(init(m, &comm));
    CREW_TRY(crew::usable(comm));
    if (m.rank == 1) {
      usleep(3500000);
    } else {
      const double start = crew::now_s();
      float data[100] = {};
      CREW_TRY(refused(ncclAllReduce(data, data, 100, ncclFloat, ncclSum, comm, nullptr), ncclRemoteError,
                       {"rank 1", "TUTTI_TIMEOUT_S"}));
      const double took = took_s[m.rank] = crew::now_s() - start;
      if (took > 3.2) return "took " + std::to_string(took) + " s";
    }
    CREW_TRY(fine(ncclCommAbort(comm), "ncclCommAbort"));
    if (m.rank == 1) return "";
    const double start = crew::now_s();
    CREW_TRY(refused(ncclCommInitRank(&comm, 3, m.ids[1], m.rank), ncclRemoteError, {"rank 1", "TUTTI_TIMEOUT_S"}));
    const double took = took_s[3 + m.rank] = crew::now_s() - start;
    return took > 3.5 ? "init took " + std::to_string(took) + " s" : "";
  });
  unsetenv("TUTTI_TIMEOUT_S");
  crew::check(endings);
  CHECK(std::max(took_s[0], took_s[2]) >= 1.9);
  CHECK(std::max(took_s[3], took_s[5]) >= 1.9);
}

TEST_CASE("ranks that have the ids of a scalable initialisation in different orders meet") {
  crew::check(crew::run(
      3,
      [](const Member& m) -> std::string {
        std::vector<ncclUniqueId> ids(m.ids, m.ids + 3);
        std::rotate(ids.begin(), ids.begin() + m.rank, ids.end());
        ncclComm_t comm = nullptr;
        CREW_TRY(
            fine(ncclCommInitRankScalable(&comm, m.ranks, m.rank, 3, ids.data(), nullptr), "ncclCommInitRankScalable"));
        CREW_TRY(crew::usable(comm));
        return fine(ncclCommDestroy(comm), "ncclCommDestroy");
      },
      20, 3));
}
