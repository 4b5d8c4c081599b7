// Counts beyond 2^31: int8, in place, two ranks. Takes about 4.5 GiB of memory.
#include "crew.h"

#include <catch2/catch.hpp>

#include <unistd.h>

namespace {

using crew::fine;
using crew::Member;

constexpr std::size_t kCount = (std::size_t{1} << 31) + 11;

signed char value(int rank, std::size_t i) {
  return static_cast<signed char>((i ^ (i >> 13) ^ (i >> 29)) * 31 + static_cast<std::size_t>(rank) * 97);
}

std::string sum_in_place(const Member& m, ncclComm_t comm, signed char* data) {
  for (std::size_t i = 0; i < kCount; ++i) data[i] = value(m.rank, i);
  CREW_TRY(fine(ncclAllReduce(data, data, kCount, ncclInt8, ncclSum, comm, nullptr), "ncclAllReduce"));
  for (std::size_t i = 0; i < kCount; ++i) {
    const auto wanted = static_cast<signed char>(value(0, i) + value(1, i));
    if (data[i] != wanted)
      return "element " + std::to_string(i) + " is " + std::to_string(data[i]) + ", should be " +
             std::to_string(wanted);
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
