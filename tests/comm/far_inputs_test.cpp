// Hosts of one rank each, whose inputs travel with the lines that open a call: as they are, added up on the way, or
// added up by one of them, where hosts share cores. Values and bits, whoever is late, whatever else is called
// between, what crosses, and calls that differ.
#include "crew.h"
#include "far_calls.h"

#include <tutti/tutti.h>
#include <catch2/catch.hpp>

#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>

namespace {

using crew::fine;
using crew::Member;
using namespace far_calls;

/// The longest input that travels so, in elements; longer ones go through slots.
constexpr std::size_t kLongest = (std::size_t{1} << 20) / sizeof(int);
constexpr std::size_t kCounts[] = {1,     128,   129,   1000,  2049,         4096,     12288,
                                   12289, 16384, 40000, 65537, kLongest - 1, kLongest, kLongest + 1};
/// One that is worth it among more than two ranks, too, whatever the prices.
constexpr std::size_t kShort = (std::size_t{64} << 10) / sizeof(int);

}  // namespace

TEST_CASE("inputs that travel with the lines of hosts arrive whole, whoever is late", "[hosts]") {
  set_hosts_of(1);
  const unsigned seed = std::random_device()();
  INFO("seed " << seed);
  struct Case {
    int ranks;
    const char* sockets;
    int calls;
    bool one_core = false;
  };
  for (const Case& with : {Case{2, "1", 600},
                           {2, "3", 600},
                           {3, "1", 300},
                           {4, "1", 300},
                           {4, "3", 100},
                           {8, "1", 60},
                           {3, "1", 300, true},
                           {5, "3", 100, true}}) {
    INFO(with.ranks << " ranks, " << with.sockets << " sockets for a pair" << (with.one_core ? ", on one core" : ""));
    setenv("NCCL_NSOCKS_PERTHREAD", with.sockets, 1);
    crew::check(crew::run(with.ranks, [seed, with](const Member& m) -> std::string {
      if (with.one_core) CREW_TRY(share_a_core());
      ncclComm_t comm = nullptr;
      CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
      CREW_TRY(random_calls(m, kCounts, seed, with.calls, comm));
      return fine(ncclCommDestroy(comm), "ncclCommDestroy");
    }));
  }
  unsetenv("NCCL_NSOCKS_PERTHREAD");
  unset_hosts();
}

namespace {

/// In an all-reduce as much as so many inputs, and nothing else.
std::string sends_inputs(const Member& m, int times, std::size_t count, ncclComm_t comm) {
  std::uint64_t sent = 0;
  CREW_TRY(count_sent(m, count, &sent, comm));
  return expect_sent(sent, static_cast<std::uint64_t>(times) * count * sizeof(int));
}

}  // namespace

TEST_CASE(
    "an input leaves three hosts for each other one, four hosts for each of two doublings, hosts of one core for a hub",
    "[hosts]") {
  set_hosts_of(1);
  struct Case {
    int ranks;
    bool one_core;
  };
  for (const Case& with : {Case{3, false}, {4, false}, {3, true}, {5, true}}) {
    if (!with.one_core && usable_cores() < with.ranks) continue;
    INFO(with.ranks << " ranks" << (with.one_core ? ", on one core" : ""));
    crew::check(crew::run(with.ranks, [one_core = with.one_core](const Member& m) -> std::string {
      if (one_core) CREW_TRY(share_a_core());
      ncclComm_t comm = nullptr;
      CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
      CREW_TRY(sends_inputs(m, !one_core ? 2 : m.rank == 0 ? m.ranks - 1 : 1, kShort, comm));
      return fine(ncclCommDestroy(comm), "ncclCommDestroy");
    }));
  }
  unset_hosts();
}

TEST_CASE("the hub of three passes short inputs on, and sends a sum of longer ones", "[hosts]") {
  set_hosts_of(1);
  crew::check(crew::run(3, [](const Member& m) -> std::string {
    CREW_TRY(share_a_core());
    ncclComm_t comm = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
    for (const std::size_t kib : {12, 48, 49}) {
      const int by_hub = kib <= 48 ? 4 : 2;
      CREW_TRY(sends_inputs(m, m.rank == 0 ? by_hub : 1, (kib << 10) / sizeof(int), comm));
      CREW_TRY(check_bits(m, (kib << 10) / sizeof(float), true, comm));
    }
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
  unset_hosts();
}

TEST_CASE("sums that are added up on the way have the same bits on all ranks, in rank order where that is asked for",
          "[hosts]") {
  set_hosts_of(1);
  for (const int kind : {0, 1, 2}) {
    for (const int ranks : {3, 4, 8}) {
      const bool one_core = kind == 2;  // whose hub adds up in rank order in any case
      const bool in_rank_order = kind != 0;
      INFO(ranks << " ranks" << (in_rank_order ? ", in rank order" : "") << (one_core ? ", on one core" : ""));
      setenv("TUTTI_REPRODUCIBLE", kind == 1 ? "1" : "0", 1);
      crew::check(crew::run(ranks, [in_rank_order, one_core](const Member& m) -> std::string {
        if (one_core) CREW_TRY(share_a_core());
        ncclComm_t comm = nullptr;
        CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
        CREW_TRY(check_bits(m, kShort, in_rank_order, comm));
        return fine(ncclCommDestroy(comm), "ncclCommDestroy");
      }));
    }
  }
  unsetenv("TUTTI_REPRODUCIBLE");
  unset_hosts();
}

TEST_CASE("between two ranks on two hosts an input crosses once, with its line or through slots", "[hosts]") {
  set_hosts_of(1);
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    ncclComm_t comm = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
    for (const std::size_t count : {kShort / 2, kLongest, 2 * kLongest}) {
      std::uint64_t sent = 0;
      CREW_TRY(count_sent(m, count, &sent, comm));
      CREW_TRY(expect_sent(sent, count * sizeof(int)));
    }
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
  unset_hosts();
}

TEST_CASE("inputs that came with the lines of calls that differ are nobody's", "[hosts]") {
  set_hosts_of(1);
  for (const int ranks : {2, 3, 4, -3, -4}) {
    const bool one_core = ranks < 0;
    INFO(std::abs(ranks) << " ranks" << (one_core ? ", on one core" : ""));
    crew::check(crew::run(std::abs(ranks), [one_core](const Member& m) -> std::string {
      if (one_core) CREW_TRY(share_a_core());
      ncclComm_t comm = nullptr;
      CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
      CREW_TRY(make_calls_that_differ(m, 4096, comm));
      CREW_TRY(make_calls_that_differ(m, 16384, comm));
      CREW_TRY(make_calls_that_differ(m, kLongest, comm));
      CREW_TRY(sum_what_others_gather(m, 16384, comm));
      return fine(ncclCommDestroy(comm), "ncclCommDestroy");
    }));
  }
  unset_hosts();
}

TEST_CASE("the hub is the rank that has most of a core", "[hosts]") {
  if (usable_cores() < 2) return;
  set_hosts_of(1);
  crew::check(crew::run(3, [](const Member& m) -> std::string {
    CREW_TRY(stay_on_core(m.rank % 2));
    ncclComm_t comm = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
    CREW_TRY(sends_inputs(m, m.rank == 1 ? 2 : 1, kShort, comm));
    CREW_TRY(make_calls_that_differ(m, 16384, comm));
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
  unset_hosts();
}
