// The table of algorithms: one row per communication pattern and collective family, one file per pattern.
// An algorithm is a pure function from a request and a rank to that rank's step program.
#pragma once

#include "schedule/schedule.h"

#include <span>
#include <string_view>

namespace tutti::algorithm {

struct Algorithm {
  std::string_view name;     ///< as in NCCL_ALGO, text form and tables: "ring"
  std::string_view summary;  ///< one line for people
  /// Whether it serves the request (collective, rank count).
  bool (*supports)(const schedule::Request&);
  schedule::Shape (*shape)(const schedule::Request&);
  /// Rank's program: shape(request).lanes lanes.
  schedule::RankProgram (*build)(const schedule::Request&, int rank);
  /// May run with direct messages (pull and push) when every buffer is reachable: out of place, in place.
  bool direct = false;
  bool direct_in_place = false;
  /// Sums are the left fold in rank order, whatever the count.
  bool reproducible = false;
  /// Partial sums are in wide messages only: with a float32 wire each sum is rounded once.
  bool wide_wire = false;
  /// Follows the request's groups: without any there is nothing to gain.
  bool in_groups = false;
  /// Follows the request's groups where these are hosts; serves no other request.
  bool over_hosts = false;
  /// Is the request's planned schedule; serves no other request.
  bool planned = false;
};

/// Every row, in the order the table is written.
std::span<const Algorithm> algorithms();

/// A row of plans for machines (planner/machine_plan.h) alone: communicators do not choose among these.
struct PlannedAlgorithm {
  std::string_view name;
  std::string_view summary;
};
std::span<const PlannedAlgorithm> planned_algorithms();

/// The row of that name that serves the request, or nullptr.
const Algorithm* find(std::string_view name, const schedule::Request& request);

/// All ranks' programs.
schedule::Schedule make_schedule(const Algorithm& algorithm, const schedule::Request& request);

}  // namespace tutti::algorithm
