// A schedule: the step programs of all ranks of a call, or of one rank's own part of it.
#pragma once

#include "base/dtype.h"
#include "schedule/step.h"

#include <span>
#include <string>
#include <vector>

namespace tutti::schedule {

/// By rank: its group of ranks that are near each other, numbered from 0 without gaps.
using Groups = std::vector<int>;

struct Schedule;

/// What a schedule is made for.
struct Request {
  Collective collective = Collective::kAllReduce;
  int ranks = 1;
  int root = 0;  ///< rooted collectives; the peer for send and receive
  int rank = 0;  ///< send and receive only: the rank that calls
  /// Not owned, and only there while programs are built; nullptr: nobody is nearer than others.
  const Groups* groups = nullptr;
  /// Schedules made for the machine beforehand, for the rows that follow them. Not owned, as above; nullptr: there are none.
  const std::vector<Schedule>* planned = nullptr;

  friend bool operator==(const Request&, const Request&) = default;
};

/// How the buffers are divided. Blocks have `count` elements: the count the caller gives (for all_gather,
/// reduce_scatter, all_to_all, gather and scatter that is the count per rank).
struct Shape {
  std::uint32_t input_blocks = 1;
  std::uint32_t output_blocks = 1;
  std::uint32_t scratch_blocks = 0;
  std::uint32_t units = 1;
  std::uint32_t lanes = 1;

  friend bool operator==(const Shape&, const Shape&) = default;
};

struct LaneProgram {
  std::vector<Step> steps;
  std::vector<Endpoint> endpoints;

  std::span<const Endpoint> sources(const Step& s) const { return {endpoints.data() + s.first_source, s.source_count}; }
  std::span<const Endpoint> sinks(const Step& s) const { return {endpoints.data() + s.first_sink, s.sink_count}; }
  friend bool operator==(const LaneProgram&, const LaneProgram&) = default;
};

struct RankProgram {
  std::vector<LaneProgram> lanes;
  friend bool operator==(const RankProgram&, const RankProgram&) = default;
};

struct Schedule {
  std::string algorithm;
  Request request;
  Shape shape;
  std::vector<RankProgram> ranks;  ///< one per rank
  friend bool operator==(const Schedule&, const Schedule&) = default;
};

/// Blocks that the collective's own buffers have at rank r (0 where the call uses no such buffer there: a
/// broadcast's input exists at the root only, a reduce's output at the root only).
std::uint32_t input_blocks(const Request& request, int rank);
std::uint32_t output_blocks(const Request& request, int rank);

}  // namespace tutti::schedule
