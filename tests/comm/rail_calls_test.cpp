// All-reduces by rails (src/comm/rails.h): hosts of several ranks each, and shares, of one rank. Values and bits, whoever is late, whatever else
// is called between, what crosses, calls that differ, and ranks that do not come.
#include "crew.h"
#include "far_calls.h"

#include <tutti/tutti.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

namespace {

using crew::fine;
using crew::Member;
using namespace far_calls;

/// The longest buffers that go so, in elements.
constexpr std::size_t kLongest = (std::size_t{1} << 20) / sizeof(int);
constexpr std::size_t kCounts[] = {1,     129,    1000,         2100,     4096,        16385,
                                   40000, 131073, kLongest - 1, kLongest, kLongest + 1};

/// Elements of an all-reduce that three hosts or four of one rank each make in shares.
constexpr std::size_t kOfShares = 140001;

struct Shape {
  int ranks;
  int per_host;
  const char* sockets = "1";
  bool one_core = false;
  bool own_systems = false;  ///< nobody knows that the hosts are one system, whose cores they share
};

std::string said(const Shape& shape) {
  return std::to_string(shape.ranks) + " ranks, " + std::to_string(shape.per_host) + " on a host, " + shape.sockets +
         " sockets for a pair" + (shape.one_core ? ", on one core" : "") +
         (shape.own_systems ? ", hosts of their own" : "");
}

template <class Body>
void run_on(const Shape& shape, const Body& body) {
  INFO(said(shape));
  set_hosts_of(shape.per_host);
  setenv("NCCL_NSOCKS_PERTHREAD", shape.sockets, 1);
  char root[] = "/tmp/tutti-rails-XXXXXX";
  REQUIRE(mkdtemp(root) != nullptr);
  if (shape.own_systems) setenv("HWLOC_FSROOT", root, 1);
  setenv("HWLOC_HIDE_ERRORS", "2", 1);
  crew::check(crew::run(shape.ranks, [&](const Member& m) -> std::string {
    if (shape.one_core) CREW_TRY(share_a_core());
    ncclComm_t comm = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
    CREW_TRY(body(m, comm));
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
  unsetenv("NCCL_NSOCKS_PERTHREAD");
  unsetenv("HWLOC_FSROOT");
  unsetenv("HWLOC_HIDE_ERRORS");
  rmdir(root);
  unset_hosts();
}

std::string explanation(ncclComm_t comm, std::size_t count) {
  std::vector<char> text(std::size_t{1} << 16);
  const ncclResult_t result =
      tuttiExplain(comm, tuttiAllReduce, count, ncclInt, ncclSum, 0, text.data(), text.size(), nullptr);
  return result == ncclSuccess ? text.data() : "tuttiExplain failed";
}

}  // namespace

TEST_CASE("all-reduces by rails come out right, whoever is late", "[hosts]") {
  const unsigned seed = std::random_device()();
  INFO("seed " << seed);
  struct Case {
    Shape shape;
    int calls;
  };
  for (const Case& with : {Case{{4, 2}, 300},
                           {{4, 2, "3"}, 200},
                           {{6, 3}, 100},
                           {{6, 2}, 100},
                           {{8, 2}, 60},
                           {{8, 4, "3"}, 60},
                           {{10, 2}, 30},
                           {{16, 8}, 20},
                           {{4, 2, "1", true}, 100},
                           {{6, 2, "1", true}, 60},
                           {{6, 2, "1", false, true}, 60},
                           {{8, 2, "1", false, true}, 60},
                           {{16, 2, "1", false, true}, 20},
                           {{3, 1}, 100},
                           {{4, 1, "3"}, 100},
                           {{5, 1}, 60}})
    run_on(with.shape,
           [&](const Member& m, ncclComm_t comm) { return random_calls(m, kCounts, seed, with.calls, comm); });
}

TEST_CASE("sums by rails have the same bits on all ranks, and are in rank order where that is asked for", "[hosts]") {
  for (const bool in_rank_order : {false, true}) {
    setenv("TUTTI_REPRODUCIBLE", in_rank_order ? "1" : "0", 1);
    for (const Shape& shape : {Shape{4, 2}, {6, 2}, {6, 3}, {8, 2}, {6, 2, "1", false, true}, {8, 2, "1", false, true}})
      run_on(shape, [&](const Member& m, ncclComm_t comm) { return check_bits(m, 16385, in_rank_order, comm); });
    run_on({4, 1}, [&](const Member& m, ncclComm_t comm) { return check_bits(m, kOfShares, in_rank_order, comm); });
  }
  unsetenv("TUTTI_REPRODUCIBLE");
}

namespace {

template <class T>
std::string reduce_all(const Member& m, ncclDataType_t type, std::size_t count, ncclComm_t comm) {
  std::vector<T> in(count + 1), out(count + 1, T(9));
  for (std::size_t i = 0; i < count; ++i) in[i + 1] = static_cast<T>((static_cast<int>(i) + m.rank) % 5);
  struct Wanted {
    ncclRedOp_t op;
    int (*of)(int, int);
    int first;
  };
  for (const Wanted& wanted : {Wanted{ncclMax, [](int a, int b) { return std::max(a, b); }, 0},
                               {ncclMin, [](int a, int b) { return std::min(a, b); }, 4},
                               {ncclSum, [](int a, int b) { return a + b; }, 0},
                               {ncclProd, [](int a, int b) { return a * b; }, 1}}) {
    // Neither begins with a cache line.
    CREW_TRY(fine(ncclAllReduce(&in[1], &out[1], count, type, wanted.op, comm, nullptr), "ncclAllReduce"));
    for (std::size_t i = 0; i < count; ++i) {
      int value = wanted.first;
      for (int rank = 0; rank < m.ranks; ++rank) value = wanted.of(value, (static_cast<int>(i) + rank) % 5);
      if (out[i + 1] != static_cast<T>(value))
        return "type " + std::to_string(type) + ", op " + std::to_string(wanted.op) + ", element " + std::to_string(i);
    }
    if (out[0] != T(9)) return "something was written before the output";
  }
  return "";
}

}  // namespace

TEST_CASE("by rails: elements of 1 to 8 bytes, counts that leave parts short, buffers that are not aligned",
          "[hosts]") {
  for (const Shape& shape : {Shape{4, 2}, {6, 3}, {6, 2}})
    run_on(shape, [](const Member& m, ncclComm_t comm) -> std::string {
      for (const std::size_t bytes : {std::size_t{9 << 10}, std::size_t{60 << 10}}) {
        CREW_TRY(reduce_all<std::int8_t>(m, ncclInt8, bytes + 1, comm));
        CREW_TRY(reduce_all<std::int32_t>(m, ncclInt32, bytes / 4 + 3, comm));
        CREW_TRY(reduce_all<float>(m, ncclFloat32, bytes / 4 + 7, comm));
        CREW_TRY(reduce_all<std::int64_t>(m, ncclInt64, bytes / 8 + 1, comm));
        CREW_TRY(reduce_all<double>(m, ncclFloat64, bytes / 8 + 5, comm));
      }
      return "";
    });
}

TEST_CASE("between two hosts the buffer crosses once each way, whichever rank it goes by", "[hosts]") {
  for (const Shape& shape : {Shape{4, 2}, {8, 4}})
    run_on(shape, [&](const Member& m, ncclComm_t comm) -> std::string {
      for (const std::size_t count : {std::size_t{16384}, kLongest}) {
        // Where a rank is late lines go by other ways, too: the least counts.
        std::uint64_t least = ~std::uint64_t{0};
        for (int call = 0; call < 20; ++call) {
          std::uint64_t sent = 0;
          CREW_TRY(count_sent(m, count, &sent, comm));
          least = std::min(least, sent);
        }
        CREW_TRY(expect_sent(least, count * sizeof(int) / static_cast<unsigned>(shape.per_host)));
      }
      return "";
    });
}

TEST_CASE("hosts with cores of their own send to each other one, or double; of shared cores one adds up for all",
          "[hosts]") {
  const auto expect = [](const char* what) {
    return [=](const Member&, ncclComm_t comm) -> std::string {
      const std::string text = explanation(comm, 16384);
      return text.find(what) != std::string::npos ? "" : text;
    };
  };
  run_on({6, 2, "1", true}, expect("one of them adds up all"));
  run_on({6, 2, "1", false, true}, expect("each sends its host's sum to each other one"));
  run_on({8, 2, "1", false, true}, expect("pairs of hosts add up"));
}

TEST_CASE("what was given or sent in calls that differ is nobody's", "[hosts]") {
  for (const Shape& shape :
       {Shape{4, 2}, {6, 2}, {6, 3}, {4, 2, "1", true}, {6, 2, "1", false, true}, {8, 2, "1", false, true}})
    run_on(shape, [](const Member& m, ncclComm_t comm) -> std::string {
      CREW_TRY(make_calls_that_differ(m, 16384, comm));
      return sum_what_others_gather(m, 16384, comm);
    });
  for (const Shape& shape : {Shape{3, 1}, {4, 1}})
    run_on(shape, [](const Member& m, ncclComm_t comm) { return make_calls_that_differ(m, kOfShares, comm); });
}

namespace {

/// Of one rank the call is a short one, or it alone makes one that goes by rails. Until all have found that calls differ nobody calls anything,
/// so that nothing more comes through a rank that is done with the call.
std::string differ_and_wait(const Member& m, std::atomic<int>& refused, ncclComm_t comm) {
  int round = 0;
  for (int odd = 0; odd < m.ranks; ++odd) {
    for (const bool is_short : {false, true}) {
      std::vector<int> buffer(16384, 3);
      const std::size_t count = (m.rank == odd) == is_short ? 7 : buffer.size();
      CREW_TRY(crew::refused(ncclAllReduce(buffer.data(), buffer.data(), count, ncclInt, ncclSum, comm, nullptr),
                             ncclInvalidUsage, {"differ", "count 16384", "count 7"}, comm));
      refused.fetch_add(1);
      ++round;
      while (refused.load() < round * m.ranks) std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
  return crew::usable(comm);
}

}  // namespace

TEST_CASE("who calls something else than by rails learns of it, though the others are gone from the call", "[hosts]") {
  auto* const refused = new (crew::shared_page()) std::atomic<int>;
  for (const Shape& shape : {Shape{4, 2},
                             {6, 2},
                             {6, 3},
                             {8, 2},
                             {9, 3},
                             {6, 2, "1", true},
                             {6, 2, "1", false, true},
                             {8, 2, "1", false, true}}) {
    refused->store(0);
    run_on(shape, [=](const Member& m, ncclComm_t comm) { return differ_and_wait(m, *refused, comm); });
  }
}

TEST_CASE("which calls go by rails, and which in shares: tuttiExplain says so", "[hosts]") {
  const auto expect = [](std::size_t count, bool goes_so, const char* what = "access: rails: ") {
    return [=](const Member&, ncclComm_t comm) -> std::string {
      const std::string text = explanation(comm, count);
      return (text.find(what) != std::string::npos) == goes_so ? "" : text;
    };
  };
  constexpr const char* kShares = "access: shares: ";
  constexpr std::size_t kOfOne = (std::size_t{128} << 10) / sizeof(int);
  for (const int hosts : {3, 4}) {
    const std::size_t shortest = static_cast<std::size_t>(hosts) * kOfOne;
    run_on({hosts, 1}, expect(shortest - 1, false, kShares));
    run_on({hosts, 1}, expect(shortest, true, kShares));
  }
  run_on({4, 1}, expect(kLongest, true, kShares));
  run_on({4, 1}, expect(kLongest + 1, false, kShares));
  run_on({2, 1}, expect(kLongest, false, kShares));
  run_on({4, 1, "1", false, true}, expect(kLongest, false, kShares));
  run_on({4, 2}, expect(16384, true));
  run_on({4, 2}, expect(kLongest, true));
  run_on({4, 2}, expect(kLongest + 1, false));
  run_on({4, 2}, expect(100, false));   // with the lines
  run_on({5, 2}, expect(4096, false));  // uneven hosts
  run_on({4, 1}, expect(4096, false));  // with the lines, too
  setenv("TUTTI_CARRY_BYTES", "32K", 1);
  run_on({4, 2}, expect(8192, true));
  run_on({4, 2}, expect(8193, false));
  unsetenv("TUTTI_CARRY_BYTES");
  setenv("NCCL_ALGO", "ring", 1);
  run_on({4, 2}, expect(16384, false));
  unsetenv("NCCL_ALGO");
}

TEST_CASE("a rank that does not come to a call by rails, or dies in it, is named", "[hosts]") {
  constexpr std::size_t kCount = 16384;
  for (const int victim : {0, 3}) {
    for (const bool dies : {false, true}) {
      INFO("rank " << victim << (dies ? " dies" : " does not come"));
      set_hosts_of(2);
      if (!dies) setenv("TUTTI_TIMEOUT_S", "2", 1);
      auto endings = crew::run(4, [=](const Member& m) -> std::string {
        ncclComm_t comm = nullptr;
        CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
        for (int call = 0; call < 50; ++call) CREW_TRY(all_reduce(m, kCount, call, call % 2 == 0, comm));
        // Not before the others are through with the last call: a rank that is killed just after its own ends theirs.
        if (m.rank == victim && dies) std::this_thread::sleep_for(std::chrono::milliseconds(500));
        if (m.rank == victim && dies) raise(SIGKILL);
        if (m.rank == victim) {
          std::this_thread::sleep_for(std::chrono::seconds(4));
          return fine(ncclCommAbort(comm), "ncclCommAbort");
        }
        std::vector<int> buffer(kCount, 1);
        CREW_TRY(crew::refused(ncclAllReduce(buffer.data(), buffer.data(), kCount, ncclInt, ncclSum, comm, nullptr),
                               ncclRemoteError, {"rank " + std::to_string(victim)}, comm));
        if (std::ranges::any_of(buffer, [](int one) { return one != 1; })) return "a call that failed wrote its output";
        return fine(ncclCommAbort(comm), "ncclCommAbort");
      });
      crew::check(endings, dies ? std::vector{victim} : std::vector<int>{});
      unsetenv("TUTTI_TIMEOUT_S");
      unset_hosts();
    }
  }
}
