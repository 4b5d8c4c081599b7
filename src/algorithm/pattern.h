// What the pattern files share: who sits where, and the first lines of every builder.
//
// A pattern is one file with one function of type Build, named like the pattern; table.cpp declares it and has its
// rows. The function is asked only for the collectives whose rows name it.
#pragma once

#include "algorithm/algorithm.h"
#include "schedule/builder.h"

#include <cstdint>

namespace tutti::algorithm {

using schedule::Endpoint;
using schedule::input;
using schedule::LaneProgram;
using schedule::message;
using schedule::output;
using schedule::partial;
using schedule::pull;
using schedule::push;
using schedule::RankProgram;
using schedule::Request;
using schedule::scratch;
using schedule::Span;
using schedule::step;

using Build = RankProgram(const Request& request, int rank);

/// The call of a rank that is alone: input to output.
RankProgram alone(const Request& request);

/// A program of one lane.
RankProgram one_lane(LaneProgram lane);

/// A message of a sum under way: raw data of one rank as it is, of more a partial sum.
inline Endpoint sum_message(int peer, bool of_one) { return of_one ? message(peer) : partial(peer); }

/// The group of a rank: as the request says or, where that says nothing, of consecutive ranks, about as many groups as there
/// are ranks in each.
int group_of(const Request& request, int rank);

/// `rank` steps further round the ring of `ranks`; distances may be negative, down to -ranks.
constexpr int around(int rank, int distance, int ranks) { return (rank + distance + ranks) % ranks; }

/// A rank, unit or position as a block or unit number.
constexpr std::uint32_t index(int number) { return static_cast<std::uint32_t>(number); }

/// The largest power of two that is not above `number` (1 or more).
constexpr int power_of_two_below(int number) {
  int power = 1;
  while (power <= number / 2) power *= 2;
  return power;
}

}  // namespace tutti::algorithm
