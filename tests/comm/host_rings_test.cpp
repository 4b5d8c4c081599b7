// Calls of three hosts and more go round them, so that nothing goes back along with which an acknowledgement could: by every schedule
// across hosts, in communicators with the fewest slots.
#include "crew.h"

#include <fmt/format.h>
#include <tutti/tutti.h>
#include <catch2/catch.hpp>

#include <cstdlib>
#include <string>
#include <vector>

namespace {

using crew::fine;
using crew::Member;

/// The first goes in one round; of the last there are several, whatever the slots.
constexpr std::size_t kElements[] = {3001, 1 << 16, 400009};

std::string sums(const Member& m, ncclComm_t comm) {
  for (const std::size_t elements : kElements) {
    std::vector<int> in(elements);
    std::vector<int> out(elements, -1);
    for (std::size_t i = 0; i < elements; ++i) in[i] = m.rank + static_cast<int>(i % 1000);
    CREW_TRY(fine(ncclAllReduce(in.data(), out.data(), elements, ncclInt, ncclSum, comm, nullptr), "ncclAllReduce"));
    for (std::size_t i = 0; i < elements; ++i) {
      const int wanted = m.ranks * (m.ranks - 1) / 2 + m.ranks * static_cast<int>(i % 1000);
      if (out[i] != wanted)
        return "element " + std::to_string(i) + " of " + std::to_string(elements) + ": " + std::to_string(out[i]) +
               " for " + std::to_string(wanted);
    }
  }
  return "";
}

}  // namespace

TEST_CASE("all-reduces of three hosts and more end, by whatever schedule", "[hosts]") {
  const char* const algorithm = GENERATE("", "ring", "hosts_ring", "hosts_ring_deep", "hosts_tree", "hosts_twoshot");
  const int ranks = GENERATE(9, 12);
  CAPTURE(algorithm, ranks);
  setenv("TEST_RANKS_PER_HOST", "3", 1);
  setenv("TUTTI_TIMEOUT_S", "20", 1);  // so that what hangs says where
  setenv("NCCL_ALGO", algorithm, 1);
  crew::check(crew::run(ranks, [](const Member& m) -> std::string {
    ncclComm_t comm = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
    CREW_TRY(sums(m, comm));
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
  for (const char* const name : {"TEST_RANKS_PER_HOST", "TUTTI_TIMEOUT_S", "NCCL_ALGO"}) unsetenv(name);
}

TEST_CASE("over hosts a schedule that is set is proved with the slots that late acknowledgements leave", "[hosts]") {
  // Each rank sends all that it has to both others, in six messages, before it receives: eight slots are enough, five are not.
  std::string text = "schedule early all_gather ranks 3 units 6 lanes 1 input 1 output 3 scratch 0\n";
  for (int rank = 0; rank < 3; ++rank) {
    text += fmt::format("rank {} lane 0\n", rank);
    const int others[2] = {(rank + 1) % 3, (rank + 2) % 3};
    for (int unit = 0; unit < 6; ++unit) {
      text += fmt::format("  in[0.{}] -> out[{}.{}], send {}, send {}\n", unit, rank, unit, others[0], others[1]);
    }
    for (const int other : others) {
      for (int unit = 0; unit < 6; ++unit) text += fmt::format("  recv {} -> out[{}.{}]\n", other, other, unit);
    }
  }
  const bool over_hosts = GENERATE(false, true);
  CAPTURE(over_hosts);
  if (over_hosts) setenv("TEST_RANKS_PER_HOST", "1", 1);
  crew::check(crew::run(3, [&](const Member& m) -> std::string {
    ncclComm_t comm = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
    const ncclResult_t result = tuttiCommSetSchedule(comm, text.c_str(), nullptr);
    CREW_TRY(over_hosts ? crew::refused(result, ncclInvalidUsage, {"deadlock", "5 slots"}) : fine(result, "set"));
    CREW_TRY(crew::usable(comm));
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
  unsetenv("TEST_RANKS_PER_HOST");
}

TEST_CASE("slots of different sizes on one host are refused", "[hosts]") {
  crew::check(crew::run(3, [](const Member& m) -> std::string {
    if (m.rank < 2) setenv("TUTTI_SLOT_BYTES", "1M", 1);
    ncclComm_t comm = nullptr;
    const ncclResult_t wanted = m.rank == 2 ? ncclInvalidUsage : ncclRemoteError;
    return crew::refused(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), wanted, {"settings on every rank"});
  }));
}

TEST_CASE("slots of different sizes on different hosts are told to all", "[hosts]") {
  setenv("TEST_RANKS_PER_HOST", "2,1", 1);
  // Its own, larger and smaller than rank 0's.
  const char* const slots = GENERATE("1M", "16K");
  CAPTURE(slots);
  crew::check(crew::run(3, [slots](const Member& m) -> std::string {
    if (m.rank < 2) setenv("TUTTI_SLOT_BYTES", slots, 1);
    ncclComm_t comm = nullptr;
    return crew::refused(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), ncclInvalidUsage,
                         {"rank 2 has", "TUTTI_SLOT_BYTES must be the same on every rank"});
  }));
  unsetenv("TEST_RANKS_PER_HOST");
}
