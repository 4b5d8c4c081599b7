// A float32 wire between processes: partial sums through slots, finished values by slots or single copies. The inputs have
// sums that are exact in float32 and not in bfloat16, so that every order gives one result: the sum, rounded once.
#include "base/float_formats.h"
#include "crew.h"

#include <catch2/catch.hpp>

#include <cstdint>
#include <cstdlib>
#include <vector>

namespace {

using crew::fine;
using crew::Member;

constexpr int kRanks = 4;

/// 8 bits and an exponent below 7: sums of four are below 2^17.
float value(int rank, std::size_t i) {
  const std::uint64_t mixed = (i * 4 + static_cast<std::uint64_t>(rank) + 1) * 0x9e3779b97f4a7c15u;
  const auto number = static_cast<std::uint32_t>(128 + (mixed >> 40) % 128);
  return static_cast<float>(number << (mixed >> 60) % 7);
}

std::uint16_t wanted(std::size_t i) {
  float sum = 0;
  for (int rank = 0; rank < kRanks; ++rank) sum += value(rank, i);
  return static_cast<std::uint16_t>(tutti::Bfloat16::encode(sum));
}

std::string all_reduce(const Member& m, std::size_t count, bool in_place) {
  ncclComm_t comm = nullptr;
  CREW_TRY(fine(ncclCommInitRank(&comm, kRanks, m.ids[0], m.rank), "ncclCommInitRank"));
  std::vector<std::uint16_t> in(count), out(count, 0xb9b9);
  for (std::size_t i = 0; i < count; ++i) in[i] = static_cast<std::uint16_t>(tutti::Bfloat16::encode(value(m.rank, i)));
  std::uint16_t* const to = in_place ? in.data() : out.data();
  CREW_TRY(fine(ncclAllReduce(in.data(), to, count, ncclBfloat16, ncclSum, comm, nullptr), "ncclAllReduce"));
  for (std::size_t i = 0; i < count; ++i) {
    if (to[i] == wanted(i)) continue;
    return "element " + std::to_string(i) + " of " + std::to_string(count) + " is " + std::to_string(to[i]) + ", not " +
           std::to_string(wanted(i));
  }
  return fine(ncclCommDestroy(comm), "ncclCommDestroy");
}

}  // namespace

TEST_CASE("a float32 wire between processes rounds once, through slots and beside single copies", "[wire]") {
  setenv("TUTTI_WIRE", "float32", 1);
  for (const char* algorithm : {"ring", "tree", "twoshot"}) {
    for (const char* copies : {"0", "1"}) {
      setenv("NCCL_ALGO", algorithm, 1);
      setenv("TUTTI_SINGLE_COPY", copies, 1);
      setenv("TUTTI_SINGLE_COPY_MIN_BYTES", "1", 1);
      setenv("TUTTI_SLOT_BYTES", copies[0] == '1' ? "512K" : "0", 1);  // longer than the tiles of single copies
      for (const std::size_t count : {std::size_t{37}, std::size_t{1001}, std::size_t{300007}}) {
        for (const bool in_place : {false, true}) {
          INFO(algorithm << " count " << count << " single copies " << copies << (in_place ? " in place" : ""));
          crew::check(crew::run(kRanks, [&](const Member& m) { return all_reduce(m, count, in_place); }));
        }
      }
    }
  }
  for (const char* name :
       {"TUTTI_WIRE", "NCCL_ALGO", "TUTTI_SINGLE_COPY", "TUTTI_SINGLE_COPY_MIN_BYTES", "TUTTI_SLOT_BYTES"})
    unsetenv(name);
}
