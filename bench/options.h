// tutti-perf's command line.
#pragma once

#include "buffers.h"
#include "collective.h"
#include "element.h"
#include "plan_file.h"

#include <cstddef>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

namespace tutti::bench {

enum class Average { kRank0 = 0, kMean = 1, kMin = 2, kMax = 3 };

/// Timed iterations of a size where none are given.
inline constexpr int kIterationsLeast = 20;
inline constexpr int kIterationsMost = 500;

struct Options {
  std::vector<const Collective*> collectives;
  std::vector<const ElementType*> types;
  std::vector<const Reduction*> reductions;
  std::optional<int> ranks;  ///< as given; unset: the number of cores, at least 2
  bool threads = false;

  std::size_t min_bytes = 8;
  std::size_t max_bytes = 32u << 20;
  std::size_t step_bytes = 0;  ///< 0: multiply by step_factor
  std::size_t step_factor = 4;
  std::optional<int> iterations;  ///< unset: by size
  std::optional<int> warmup;      ///< unset: a tenth of them
  int check = 1;                  ///< checked iterations per size; 0 = no check
  int root = 0;                   ///< -1: every root
  Average average = Average::kMean;
  bool blocking = false;
  bool cpu_time = false;
  int aggregate = 1;
  int timeout_s = 0;  ///< 0: none of its own

  bool on_gpu = false;
  int ranks_per_gpu = 1;
  int graph = 0;  ///< on GPUs: calls per graph that is launched; 0: none
  Buffer::Kind memory = Buffer::Kind::kPrivate;
  bool registered = false;
  bool stream = false;
  bool bind = true;     ///< ranks that tutti-perf starts to processors of their own
  std::string network;  ///< for TUTTI_NET: auto, tcp, mpi; empty: as it is
  bool percentiles = false;
  bool explain = false;
  std::optional<PlanFile> plan;  ///< the schedule that runs instead of the planner's choice
  std::string tune_file;         ///< where the crossovers go that are measured; empty: the usual table
  double tune_minutes = 5;       ///< for all of them
  std::string against;           ///< the file of another library that is measured in turn; empty: none
  std::string json_file;         ///< "-": standard output
  std::string plot_file;

  std::vector<std::size_t> sizes() const;
  /// Of each of a rank's two buffers: small sizes are rounded up to one element per rank.
  std::size_t buffer_bytes(int ranks) const;
  /// Of a size. Unless they are given, more of short calls: what happens once, or a turn lost to others, would be most of a few.
  int iterations_of(std::size_t bytes) const;
  int warmup_of(std::size_t bytes) const;
  /// Where the table goes: standard output, unless the rows go there.
  std::FILE* table_output() const { return json_file == "-" ? stderr : stdout; }
};

/// The options, or the exit code with which to end (help, version: 0; a bad command line: 2), everything printed
/// already.
struct ParsedOptions {
  std::optional<Options> options;
  int exit_code = 0;
};
ParsedOptions parse_options(int argc, char** argv);

}  // namespace tutti::bench
