// Counts beyond 2^31: int8, in place, two ranks. Takes about 4.5 GiB of memory.
#include "crew.h"

#include <catch2/catch.hpp>

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

namespace {

using crew::fine;
using crew::Member;

constexpr std::size_t kCount = (std::size_t{1} << 31) + 11;
/// Values come again after so many, a prime: what lies a power of two too far is another one.
constexpr std::size_t kPeriod = 1048573;

signed char value(int rank, std::size_t i) {
  return static_cast<signed char>((i ^ (i >> 13)) * 31 + static_cast<std::size_t>(rank) * 97);
}

/// Element by element 4 GiB would take most of a minute.
template <class At>
std::vector<signed char> period_of(At at) {
  std::vector<signed char> period(kPeriod);
  for (std::size_t i = 0; i < kPeriod; ++i) period[i] = at(i);
  return period;
}

std::string sum_in_place(const Member& m, ncclComm_t comm, signed char* data) {
  const auto own = period_of([&](std::size_t i) { return value(m.rank, i); });
  const auto sums = period_of([](std::size_t i) { return static_cast<signed char>(value(0, i) + value(1, i)); });
  for (std::size_t at = 0; at < kCount; at += kPeriod)
    std::memcpy(data + at, own.data(), std::min(kPeriod, kCount - at));
  CREW_TRY(fine(ncclAllReduce(data, data, kCount, ncclInt8, ncclSum, comm, nullptr), "ncclAllReduce"));
  for (std::size_t at = 0; at < kCount; at += kPeriod) {
    const std::size_t length = std::min(kPeriod, kCount - at);
    if (std::memcmp(data + at, sums.data(), length) == 0) continue;
    const auto wrong =
        static_cast<std::size_t>(std::mismatch(data + at, data + at + length, sums.begin()).first - (data + at));
    return "element " + std::to_string(at + wrong) + " is " + std::to_string(data[at + wrong]) + ", should be " +
           std::to_string(sums[wrong]);
  }
  return "";
}

}  // namespace

TEST_CASE("a count beyond 2^31, in place", "[large]") {
  if (sysconf(_SC_AVPHYS_PAGES) * sysconf(_SC_PAGESIZE) < (6l << 30)) {
    WARN("skipped: less than 6 GiB of memory are free");
    return;
  }
  for (const bool shared : {false, true}) {
    INFO((shared ? "shared" : "private") << " memory");
    crew::check(crew::run(
        2,
        [shared](const Member& m) -> std::string {
          ncclComm_t comm = nullptr;
          CREW_TRY(fine(ncclCommInitRank(&comm, 2, m.ids[0], m.rank), "ncclCommInitRank"));
          void* data = nullptr;
          if (shared) CREW_TRY(fine(ncclMemAlloc(&data, kCount), "ncclMemAlloc"));
          if (!shared) data = malloc(kCount);
          CREW_TRY(sum_in_place(m, comm, static_cast<signed char*>(data)));
          shared ? static_cast<void>(ncclMemFree(data)) : free(data);
          return fine(ncclCommDestroy(comm), "ncclCommDestroy");
        },
        300));
  }
}
