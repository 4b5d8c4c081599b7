// Short rooted calls, which ranks that read nobody's line are through with before others have come: what arrives, how far a rank runs
// ahead, and what becomes of calls that differ, of ranks that leave, and of ranks that never come.
#include "crew.h"

#include "protocol/announce.h"

#include <tutti/tutti.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include <unistd.h>

namespace {

using crew::fine;
using crew::Member;
using crew::refused;

constexpr int kDepth = static_cast<int>(tutti::protocol::kAnnounceDepth);
/// In the line, beside it, and beyond both; with their edges.
constexpr std::size_t kLengths[] = {0, 1, 8, 512, 513, 2048, 8192, 8193, 65536, 65537};
constexpr std::size_t kLongest = 65537;

using Bytes = std::vector<unsigned char>;

unsigned char byte_of(int call, int rank, std::size_t at) {
  return static_cast<unsigned char>(static_cast<std::size_t>(call) * 37 + static_cast<std::size_t>(rank) * 101 +
                                    at * 11 + at / 256);
}

enum What { kBroadcast, kReduce, kGather, kScatter, kAllReduce, kWhats };

/// One call with its own numbers, made and checked.
struct Call {
  int number = 0;
  What what = kBroadcast;
  int root = 0;
  std::size_t count = 0;

  std::string make(const Member& m, ncclComm_t comm) const {
    const auto ranks = static_cast<std::size_t>(m.ranks);
    const bool at_root = m.rank == root;
    Bytes in(count * (what == kScatter ? ranks : 1)), out(count * ranks + 64, 0xA5);
    for (std::size_t i = 0; i < in.size(); ++i) in[i] = byte_of(number, m.rank, i);
    CREW_TRY(fine(submit(in.data(), out.data(), comm), "the call"));
    std::fill(in.begin(), in.end(), 0xEE);  // it is the caller's again
    const std::size_t length = what == kGather               ? (at_root ? count * ranks : 0)
                               : what == kReduce && !at_root ? 0
                                                             : count;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const unsigned char wanted = i < length ? result(m, i) : 0xA5;
      if (out[i] != wanted) {
        return "call " + std::to_string(number) + " (collective " + std::to_string(what) + ", root " +
               std::to_string(root) + ", count " + std::to_string(count) + ") is wrong at " + std::to_string(i);
      }
    }
    return "";
  }

 private:
  ncclResult_t submit(const void* in, void* out, ncclComm_t comm) const {
    switch (what) {
      case kBroadcast: return ncclBroadcast(in, out, count, ncclUint8, root, comm, nullptr);
      case kReduce: return ncclReduce(in, out, count, ncclUint8, ncclSum, root, comm, nullptr);
      case kGather: return ncclGather(in, out, count, ncclUint8, root, comm, nullptr);
      case kScatter: return ncclScatter(in, out, count, ncclUint8, root, comm, nullptr);
      default: return ncclAllReduce(in, out, count, ncclUint8, ncclSum, comm, nullptr);
    }
  }
  unsigned char result(const Member& m, std::size_t i) const {
    unsigned sum = 0;
    switch (what) {
      case kBroadcast: return byte_of(number, root, i);
      case kGather: return byte_of(number, static_cast<int>(i / count), i % count);
      case kScatter: return byte_of(number, root, static_cast<std::size_t>(m.rank) * count + i);
      default: break;
    }
    for (int r = 0; r < m.ranks; ++r) sum += byte_of(number, r, i);
    return static_cast<unsigned char>(sum);
  }
};

}  // namespace

TEST_CASE("short rooted calls in a row, roots by turns, sums between, whoever is late", "[one_way]") {
  for (const int ranks : {2, 3, 5}) {
    for (const int late : {-1, 0, ranks - 1}) {
      INFO(ranks << " ranks, late: " << late);
      crew::check(crew::run(ranks, [late](const Member& m) -> std::string {
        ncclComm_t comm = nullptr;
        CREW_TRY(init(m, &comm));
        for (int n = 0; n < 400; ++n) {
          if (m.rank == late && n % 80 == 40) usleep(20000);
          // Long stretches with one root and one direction, and stretches where all changes.
          const bool same = n / 50 % 2 == 0;
          Call call{n, static_cast<What>(same ? n / 100 % 4 : n * 7 / 3 % kWhats), same ? 0 : n % m.ranks,
                    kLengths[static_cast<std::size_t>(n) % std::size(kLengths)]};
          if (n % 61 == 0) call.what = kAllReduce;
          CREW_TRY(call.make(m, comm));
        }
        return fine(ncclCommDestroy(comm), "ncclCommDestroy");
      }));
    }
  }
}

TEST_CASE("over hosts, an input goes to those that read it, and comes over no later call's", "[one_way]") {
  setenv("TEST_RANKS_PER_HOST", "1", 1);
  crew::check(crew::run(3, [](const Member& m) -> std::string {
    constexpr std::size_t kBytes = 8192;
    constexpr What kKinds[] = {kBroadcast, kReduce, kAllReduce};
    ncclComm_t comm = nullptr;
    CREW_TRY(init(m, &comm));
    // Of one kind in a row, as many as there are places beside the lines: the root of a reduce leaves there what it broadcast.
    for (int row = 0; row < 360; ++row) {
      const What what = kKinds[row % 3];
      const int root = row / 3 % m.ranks;
      std::uint64_t before = 0, after = 0;
      CREW_TRY(fine(tuttiCommWireBytes(comm, &before), "tuttiCommWireBytes"));
      for (int n = 0; n < kDepth; ++n) CREW_TRY((Call{row * kDepth + n, what, root, kBytes}).make(m, comm));
      CREW_TRY(fine(tuttiCommWireBytes(comm, &after), "tuttiCommWireBytes"));
      const int readers = what == kBroadcast ? (m.rank == root ? m.ranks - 1 : 0) : m.rank == root ? 0 : 1;
      const std::size_t most = kDepth * (static_cast<std::size_t>(readers) * kBytes + 1024);
      if (what != kAllReduce && after - before > most) return "row " + std::to_string(row) + " sent too much";
    }
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
  unsetenv("TEST_RANKS_PER_HOST");
}

TEST_CASE("whoever reads nobody's line does not wait, and may leave right after", "[one_way]") {
  for (const What what : {kBroadcast, kReduce, kScatter, kGather}) {
    for (const std::size_t count : {1u, 1024u}) {
      INFO("collective " << what << " count " << count);
      crew::check(crew::run(3, [what, count](const Member& m) -> std::string {
        const bool ahead = (m.rank == 0) == (what == kBroadcast || what == kScatter);
        ncclComm_t comm = nullptr;
        CREW_TRY(init(m, &comm));
        CREW_TRY(crew::usable(comm));
        if (!ahead) usleep(300000);
        const double start = crew::now_s();
        for (int n = 0; n < kDepth - 1; ++n) CREW_TRY((Call{n, what, 0, count}).make(m, comm));
        if (ahead && crew::now_s() - start > 0.2) return "waited " + std::to_string(crew::now_s() - start) + " s";
        return fine(ncclCommDestroy(comm), "ncclCommDestroy");
      }));
    }
  }
}

TEST_CASE("who runs ahead waits in the end, and stays right", "[one_way]") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    ncclComm_t comm = nullptr;
    CREW_TRY(init(m, &comm));
    if (m.rank == 1) usleep(300000);
    const double start = crew::now_s();
    for (int n = 0; n < 3 * kDepth; ++n) CREW_TRY((Call{n, kBroadcast, 0, 700}).make(m, comm));
    if (m.rank == 0 && crew::now_s() - start < 0.2) return "never waited";
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
}

TEST_CASE("a reader that differs is refused, then everybody", "[one_way]") {
  crew::check(crew::run(3, [](const Member& m) -> std::string {
    ncclComm_t comm = nullptr;
    CREW_TRY(init(m, &comm));
    CREW_TRY((Call{0, kAllReduce, 0, 100}).make(m, comm));
    if (m.rank == 2) usleep(50000);  // the others are out of the sum by then
    Bytes data(200, 0xA5);
    const std::size_t count = m.rank == 2 ? 101 : 100;
    const ncclResult_t result = ncclBroadcast(data.data(), data.data(), count, ncclUint8, 0, comm, nullptr);
    const std::vector<std::string> both = {"#2", "count 100 uint8 root 0 on rank 0",
                                           "count 101 uint8 root 0 on rank 2"};
    if (m.rank == 2) {
      CREW_TRY(refused(result, ncclInvalidUsage, both, comm));
      if (std::ranges::any_of(data, [](unsigned char byte) { return byte != 0xA5; })) return "output was written";
    } else if (result != ncclSuccess) {
      CREW_TRY(refused(result, ncclInvalidUsage, both, comm));
    }
    float one = 1;
    CREW_TRY(refused(ncclAllReduce(&one, &one, 1, ncclFloat, ncclSum, comm, nullptr), ncclInvalidUsage, both, comm));
    ncclResult_t state = ncclSuccess;
    CREW_TRY(fine(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError"));
    if (state != ncclInvalidUsage) return "ncclCommGetAsyncError gives " + std::to_string(state);
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
}

/// Nobody reads anybody's line in such calls.
TEST_CASE("two that take themselves for the root are told so, by the next call that meets or when lines run out",
          "[one_way]") {
  for (const bool meet : {true, false}) {
    crew::check(crew::run(2, [meet](const Member& m) -> std::string {
      ncclComm_t comm = nullptr;
      CREW_TRY(init(m, &comm));
      Bytes data(100, 0xA5);
      const auto broadcast = [&](int root) {
        return ncclBroadcast(data.data(), data.data(), data.size(), ncclUint8, root, comm, nullptr);
      };
      for (int n = 0; n < 5; ++n) CREW_TRY(fine(broadcast(0), "ncclBroadcast"));
      ncclResult_t result = broadcast(m.rank);
      if (meet) {
        float one = 1;
        if (result == ncclSuccess) result = ncclAllReduce(&one, &one, 1, ncclFloat, ncclSum, comm, nullptr);
      }
      for (int n = 0; n < 2 * kDepth && result == ncclSuccess; ++n) result = broadcast(m.rank);
      CREW_TRY(refused(result, ncclInvalidUsage, {"#6", "root 0 on rank 0", "root 1 on rank 1"}, comm));
      return fine(ncclCommDestroy(comm), "ncclCommDestroy");
    }));
  }
}

TEST_CASE("calls that differ where nothing is lost leave the communicator usable, one-way calls too", "[one_way]") {
  crew::check(crew::run(3, [](const Member& m) -> std::string {
    ncclComm_t comm = nullptr;
    CREW_TRY(init(m, &comm));
    float in[4] = {1, 2, 3, 4}, out[4];
    for (int n = 0; n < 3 * kDepth; ++n) {
      CREW_TRY((Call{n, kBroadcast, n % 3, 600}).make(m, comm));
      const std::size_t count = m.rank == n % 3 ? 3 : 4;
      CREW_TRY(refused(ncclAllReduce(in, out, count, ncclFloat, ncclSum, comm, nullptr), ncclInvalidUsage,
                       {"rank 0", "rank 1", "rank 2", "nothing was done"}, comm));
      CREW_TRY((Call{n, kReduce, n % 3, 600}).make(m, comm));
    }
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
}

TEST_CASE("rooted calls without a rank that has left, or was killed, or never comes, end", "[one_way]") {
  enum How { kLeaves, kDies, kSleeps };
  for (const How how : {kLeaves, kDies, kSleeps}) {
    INFO("how " << how);
    if (how == kSleeps) setenv("TUTTI_TIMEOUT_S", "1", 1);
    const auto endings = crew::run(3, [how](const Member& m) -> std::string {
      ncclComm_t comm = nullptr;
      CREW_TRY(init(m, &comm));
      CREW_TRY((Call{0, kBroadcast, 0, 100}).make(m, comm));
      if (m.rank == 1) {
        usleep(50000);  // the others are out of this call by then
        if (how == kDies) kill(getpid(), SIGKILL);
        if (how == kSleeps) usleep(2500000);
        return how == kLeaves ? fine(ncclCommDestroy(comm), "ncclCommDestroy") : "";
      }
      const double start = crew::now_s();
      Bytes data(100);
      ncclResult_t result = ncclSuccess;
      for (int n = 0; n < 2 * kDepth && result == ncclSuccess; ++n) {
        result = ncclBroadcast(data.data(), data.data(), data.size(), ncclUint8, 0, comm, nullptr);
      }
      const std::string why = how == kLeaves ? "left" : how == kDies ? "ended" : "TUTTI_TIMEOUT_S";
      CREW_TRY(refused(result, ncclRemoteError, {"rank 1", why}, comm));
      if (crew::now_s() - start > 2) return "took " + std::to_string(crew::now_s() - start) + " s";
      return fine(ncclCommAbort(comm), "ncclCommAbort");
    });
    unsetenv("TUTTI_TIMEOUT_S");
    crew::check(endings, how == kDies ? std::vector<int>{1} : std::vector<int>{});
  }
}
