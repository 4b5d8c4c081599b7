// A rank that is a process, whose calls may go by teams.
#pragma once

#include "staged_rank.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

namespace tutti::test {

/// The shortest sum of ints that goes by teams, and some that have several parts of kPartBytes each.
inline constexpr std::size_t kLeast = 16384;
inline constexpr std::size_t kPrime = 16411;

/// `devices`: the ranks are on so many, by turns.
inline std::string make(const Member& m, Rank& rank, int devices = 4) {
  if (std::string why = Gpu::why_not(); !why.empty()) return why;
  Gpu::get().use(m.rank % std::min(devices, Gpu::get().devices()));
  return Rank::make(m, rank);
}

inline ncclResult_t sum_up(const Rank& rank, const std::int32_t* in, std::int32_t* out, std::size_t count) {
  return ncclAllReduce(in, out, count, ncclInt32, ncclSum, rank.comm, rank.stream);
}

inline std::string check_sum(const Rank& rank, std::size_t count, bool in_place) {
  const Member& m = rank.member;
  const IntsOnGpu in(values(m.rank, count));
  const IntsOnGpu out(Ints(count, kPoison));
  std::int32_t* const to = in_place ? in.data() : out.data();
  CREW_TRY(fine(sum_up(rank, in.data(), to, count), "sum"));
  Gpu::get().wait(rank.stream);
  const std::string name = std::to_string(count) + (in_place ? " in place" : "");
  CREW_TRY(compare(
      in_place ? in.read() : out.read(), [&](std::size_t i) { return sum(m.ranks, i); }, name));
  if (in_place) return "";
  return compare(
      in.read(), [&](std::size_t i) { return value(m.rank, i); }, name + ", the input");
}

}  // namespace tutti::test
