// Groups of one send and one receive: the way that they have for themselves. SEED as elsewhere.
#include "crew.h"

#include <catch2/catch.hpp>

#include <cstdlib>
#include <iterator>
#include <random>
#include <string>
#include <vector>

namespace {

using crew::fine;
using crew::Member;

float value(int call, int rank, std::size_t i) {
  return static_cast<float>((static_cast<std::size_t>(call) * 5 + static_cast<std::size_t>(rank) * 37 + i * 11) % 61 +
                            1);
}

unsigned seed() {
  const char* text = std::getenv("SEED");
  return text ? static_cast<unsigned>(std::strtoul(text, nullptr, 10)) : 1;
}

/// One send and one receive of other lengths, in either order; `grouped` or one after the other.
std::string exchange(ncclComm_t comm, int me, std::size_t mine, std::size_t theirs, bool send_first, bool grouped,
                     int call) {
  std::vector<float> out(mine), in(theirs + 1, -77);
  for (std::size_t i = 0; i < mine; ++i) out[i] = value(call, me, i);
  if (grouped) ncclGroupStart();
  for (const bool sends : {send_first, !send_first}) {
    CREW_TRY(fine(sends ? ncclSend(out.data(), mine, ncclFloat, 1 - me, comm, nullptr)
                        : ncclRecv(in.data(), theirs, ncclFloat, 1 - me, comm, nullptr),
                  sends ? "send" : "receive"));
  }
  if (grouped) CREW_TRY(fine(ncclGroupEnd(), "ncclGroupEnd"));
  for (std::size_t i = 0; i < theirs; ++i) {
    if (in[i] != value(call, 1 - me, i)) return "call " + std::to_string(call) + " element " + std::to_string(i);
  }
  return in[theirs] == -77 ? "" : "a receive wrote behind its buffer";
}

}  // namespace

TEST_CASE("exchanges of two ranks, in any order of their calls and of any lengths") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    ncclComm_t comm = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "init"));
    constexpr std::size_t kLengths[] = {0, 1, 5, 128, 129, 2048, 2049, 30000};
    std::mt19937 random(seed());
    for (int call = 0; call < 1500; ++call) {
      const std::size_t lengths[] = {kLengths[random() % std::size(kLengths)],
                                     kLengths[random() % std::size(kLengths)]};
      const unsigned order = random() % 8;
      // One after the other only where one rank sends first and the other one receives.
      const bool grouped = (order & 4) != 0;
      const bool send_first = grouped ? (order >> m.rank & 1) != 0 : (order & 1) == static_cast<unsigned>(m.rank);
      CREW_TRY(exchange(comm, m.rank, lengths[m.rank], lengths[1 - m.rank], send_first, grouped, call));
    }
    return fine(ncclCommDestroy(comm), "destroy");
  }));
}

TEST_CASE("exchanges of one length in a row, whose ways are tried, and sends of the same length between them") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    ncclComm_t comm = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "init"));
    int call = 0;
    for (const std::size_t count : {8000u, 70000u, 400000u}) {
      for (int n = 0; n < 60; ++n, ++call) {
        const bool grouped = n % 16 < 12;
        CREW_TRY(exchange(comm, m.rank, count, count, grouped ? n % 2 == 0 : m.rank == 0, grouped, call));
      }
    }
    return fine(ncclCommDestroy(comm), "destroy");
  }));
}

TEST_CASE("an exchange of which one half differs: that is refused, the other half is done") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    ncclComm_t comm = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "init"));
    constexpr std::size_t kCount = 30000;
    for (int round = 0; round < 3; ++round) {
      CREW_TRY(exchange(comm, m.rank, kCount, kCount, true, true, round));
      std::vector<float> out(kCount, static_cast<float>(m.rank + 1)), in(kCount, -77);
      // What rank 0 sends is shorter than what rank 1 receives.
      ncclGroupStart();
      ncclSend(out.data(), m.rank == 0 ? kCount - 1 : kCount, ncclFloat, 1 - m.rank, comm, nullptr);
      ncclRecv(in.data(), kCount, ncclFloat, 1 - m.rank, comm, nullptr);
      CREW_TRY(crew::refused(ncclGroupEnd(), ncclInvalidUsage, {"send and recv differ", "29999", "30000"}));
      const float right = m.rank == 0 ? 2 : -77;
      if (in.front() != right || in.back() != right) return "received " + std::to_string(in.front());
      CREW_TRY(crew::usable(comm));
    }
    return fine(ncclCommDestroy(comm), "destroy");
  }));
}

TEST_CASE(
    "an exchange of a communicator that is destroyed before its group ends is refused, and another one's goes on") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    ncclComm_t comm = nullptr, other = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "init"));
    CREW_TRY(fine(ncclCommSplit(comm, 0, m.rank, &other, nullptr), "split"));
    CREW_TRY(exchange(comm, m.rank, 5, 5, true, true, 0));
    float out = 1, in = -77;
    ncclGroupStart();
    ncclSend(&out, 1, ncclFloat, 1 - m.rank, comm, nullptr);
    ncclRecv(&in, 1, ncclFloat, 1 - m.rank, comm, nullptr);
    CREW_TRY(fine(ncclCommDestroy(comm), "destroy"));
    CREW_TRY(crew::refused(ncclGroupEnd(), ncclInvalidArgument, {"destroyed or aborted after the call was made"}));
    if (in != -77) return "received " + std::to_string(in);
    CREW_TRY(exchange(other, m.rank, 5, 5, true, true, 1));
    return fine(ncclCommDestroy(other), "destroy");
  }));
}
