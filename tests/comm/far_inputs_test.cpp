// Two ranks on two hosts, whose inputs travel with the lines that open a call: values, whoever is late, whatever else is called between,
// and calls that differ.
#include "crew.h"

#include <tutti/tutti.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

using crew::fine;
using crew::Member;

/// The longest input that travels so, in elements; longer ones go through slots.
constexpr std::size_t kLongest = (std::size_t{256} << 10) / sizeof(int);
constexpr std::size_t kCounts[] = {1, 128, 129, 1000, 4096, 16384, 40000, kLongest - 1, kLongest, kLongest + 1};

std::string first_wrong(const std::vector<int>& found, const std::vector<int>& wanted, const std::string& what) {
  const auto [at, expected] = std::mismatch(found.begin(), found.end(), wanted.begin());
  if (at == found.end()) return "";
  return what + " of " + std::to_string(found.size()) + ": element " + std::to_string(at - found.begin()) + " is " +
         std::to_string(*at) + ", not " + std::to_string(*expected);
}

std::vector<int> numbers(std::size_t count, int base, int rank) {
  std::vector<int> all(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = base + (rank + 1) * static_cast<int>(i % 1000);
  return all;
}

std::vector<int> sum(const std::vector<int>& a, const std::vector<int>& b) {
  std::vector<int> all(a.size());
  std::transform(a.begin(), a.end(), b.begin(), all.begin(), std::plus<>());
  return all;
}

std::string all_reduce(const Member& m, std::size_t count, int base, bool in_place, ncclComm_t comm) {
  const std::vector<int> wanted = sum(numbers(count, base, 0), numbers(count, base, 1));
  std::vector<int> in = numbers(count, base, m.rank);
  std::vector<int> out(in_place ? 0 : count, -1);
  std::vector<int>& found = in_place ? in : out;
  CREW_TRY(fine(ncclAllReduce(in.data(), found.data(), count, ncclInt, ncclSum, comm, nullptr), "ncclAllReduce"));
  return first_wrong(found, wanted, in_place ? "all-reduce in place" : "all-reduce");
}

std::string all_gather(const Member& m, std::size_t count, int base, bool in_place, ncclComm_t comm) {
  std::vector<int> wanted = numbers(count, base, 0);
  const std::vector<int> second = numbers(count, base, 1);
  wanted.insert(wanted.end(), second.begin(), second.end());
  const std::vector<int> in = numbers(count, base, m.rank);
  std::vector<int> out(2 * count, -1);
  int* const own = out.data() + static_cast<std::size_t>(m.rank) * count;
  if (in_place) std::copy(in.begin(), in.end(), own);
  CREW_TRY(fine(ncclAllGather(in_place ? own : in.data(), out.data(), count, ncclInt, comm, nullptr), "ncclAllGather"));
  return first_wrong(out, wanted, in_place ? "all-gather in place" : "all-gather");
}

/// A rank may be ahead of the other one by it.
std::string broadcast(const Member& m, std::size_t count, int base, int root, ncclComm_t comm) {
  std::vector<int> buffer = numbers(count, base, m.rank);
  CREW_TRY(fine(ncclBroadcast(buffer.data(), buffer.data(), count, ncclInt, root, comm, nullptr), "ncclBroadcast"));
  return first_wrong(buffer, numbers(count, base, root), "broadcast");
}

/// Sums of sums: the first call's output is the second one's input, and the third one's.
std::string group(const Member& m, std::size_t count, int base, ncclComm_t comm) {
  std::vector<int> buffer = numbers(count, base, m.rank);
  std::vector<int> last(count, -1);
  CREW_TRY(fine(ncclGroupStart(), "ncclGroupStart"));
  for (int call = 0; call < 2; ++call)
    CREW_TRY(fine(ncclAllReduce(buffer.data(), buffer.data(), count, ncclInt, ncclSum, comm, nullptr), "in a group"));
  CREW_TRY(fine(ncclAllReduce(buffer.data(), last.data(), count, ncclInt, ncclSum, comm, nullptr), "in a group"));
  CREW_TRY(fine(ncclGroupEnd(), "ncclGroupEnd"));
  const std::vector<int> once = sum(numbers(count, base, 0), numbers(count, base, 1));
  const std::vector<int> twice = sum(once, once);
  CREW_TRY(first_wrong(buffer, twice, "in a group, all-reduce"));
  return first_wrong(last, sum(twice, twice), "the last in a group, all-reduce");
}

std::string average(const Member& m, std::size_t count, ncclComm_t comm) {
  std::vector<float> values(count, m.rank == 0 ? 1.0F : 4.0F);
  CREW_TRY(fine(ncclAllReduce(values.data(), values.data(), count, ncclFloat, ncclAvg, comm, nullptr), "ncclAvg"));
  const bool right = std::ranges::all_of(values, [](float value) { return value == 2.5F; });
  return right ? "" : "the average of 1 and 4 is not 2.5 everywhere";
}

/// `same`: alike on both ranks.
std::string any_call(const Member& m, std::mt19937& same, ncclComm_t comm) {
  const std::size_t count = kCounts[same() % std::size(kCounts)];
  const auto base = static_cast<int>(same() % 1000);
  const bool in_place = same() % 2 == 0;
  switch (same() % 6) {
    case 0:
    case 1: return all_reduce(m, count, base, in_place, comm);
    case 2: return all_gather(m, count, base, in_place, comm);
    case 3: return broadcast(m, std::min<std::size_t>(count, 1000), base, in_place ? 0 : 1, comm);
    case 4: return group(m, count, base, comm);
    default: return average(m, count, comm);
  }
}

}  // namespace

TEST_CASE("inputs that travel with the lines of two hosts arrive whole, whoever is late", "[hosts]") {
  setenv("TEST_RANKS_PER_HOST", "1", 1);
  const unsigned seed = std::random_device()();
  INFO("seed " << seed);
  for (const char* const sockets : {"1", "3"}) {
    setenv("NCCL_NSOCKS_PERTHREAD", sockets, 1);
    crew::check(crew::run(2, [seed](const Member& m) -> std::string {
      ncclComm_t comm = nullptr;
      CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
      std::mt19937 same(seed);
      std::mt19937 own(seed + 1 + static_cast<unsigned>(m.rank));
      for (int call = 0; call < 600; ++call) {
        if (own() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 3000));
        const std::string wrong = any_call(m, same, comm);
        if (!wrong.empty()) return "call " + std::to_string(call) + ": " + wrong;
      }
      return fine(ncclCommDestroy(comm), "ncclCommDestroy");
    }));
  }
  unsetenv("NCCL_NSOCKS_PERTHREAD");
  unsetenv("TEST_RANKS_PER_HOST");
}

TEST_CASE("between two ranks on two hosts an input crosses once, with its line or through slots", "[hosts]") {
  setenv("TEST_RANKS_PER_HOST", "1", 1);
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    ncclComm_t comm = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
    for (const std::size_t count : {kLongest / 8, kLongest, 2 * kLongest}) {
      std::uint64_t before = 0;
      std::uint64_t after = 0;
      CREW_TRY(fine(tuttiCommWireBytes(comm, &before), "tuttiCommWireBytes"));
      CREW_TRY(all_reduce(m, count, 1, false, comm));
      CREW_TRY(fine(tuttiCommWireBytes(comm, &after), "tuttiCommWireBytes"));
      const std::uint64_t sent = after - before;
      const std::uint64_t bytes = count * sizeof(int);
      if (sent < bytes || sent > bytes + bytes / 32)
        return std::to_string(bytes) + " bytes: " + std::to_string(sent) + " crossed";
    }
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
  unsetenv("TEST_RANKS_PER_HOST");
}

TEST_CASE("inputs that came with the lines of calls that differ are nobody's", "[hosts]") {
  setenv("TEST_RANKS_PER_HOST", "1", 1);
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    ncclComm_t comm = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
    for (int round = 0; round < 20; ++round) {
      const std::size_t count = round % 3 == 0 && m.rank == 1 ? 7 : 16384 + static_cast<std::size_t>(m.rank);
      std::vector<int> buffer(count, 3);
      CREW_TRY(crew::refused(ncclAllReduce(buffer.data(), buffer.data(), count, ncclInt, ncclSum, comm, nullptr),
                             ncclInvalidUsage, {"differ", "count 16384", "count " + std::to_string(count)}, comm));
      if (std::ranges::any_of(buffer, [](int value) { return value != 3; })) return "a refused call wrote its output";
      for (int call = 0; call < round % 3; ++call) CREW_TRY(all_reduce(m, 16384, round, call == 0, comm));
    }
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
  unsetenv("TEST_RANKS_PER_HOST");
}
