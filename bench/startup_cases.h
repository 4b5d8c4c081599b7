// What the start-up benchmark measures, and its results.
#pragma once

#include "startup_ranks.h"

#include <cstdint>
#include <string>
#include <vector>

namespace tutti::bench {

struct StartupOptions {
  std::vector<int> ranks = {1, 2, 4, 8, 16};
  std::vector<std::string> parts = {"init", "memory", "cycles", "size"};
  int launches = 5;
  int rounds = 20;
  int cycles = 1000;
  unsigned deadline_s = 120;
  std::string json;

  bool measures(const std::string& part) const;
};

/// Times in microseconds, each of all ranks.
struct InitResult {
  std::string how;  ///< processes, threads or init_all
  int ranks = 0;
  std::vector<double> first, init, destroy, split;
};

struct MemoryResult {
  std::string how;
  int ranks = 0;
  Footprint segment;  ///< of rank 0 after the sends
  /// Mean over ranks, since before the first communicator.
  double init_bytes = 0, all_reduce_bytes = 0, sends_bytes = 0, pss_bytes = 0;
  int descriptors = 0, threads = 0;  ///< more than before, in rank 0's process, while the communicator is open
};

/// Of rank 0's process.
struct CyclesResult {
  std::string how;
  bool all_reduce = false;  ///< in each cycle
  int cycles = 0;
  Footprint early;  ///< after the first cycles
  Footprint late;
};

struct LibraryResult {
  std::string path;
  std::uint64_t file_bytes = 0;
  std::uint64_t stripped_bytes = 0;  ///< 0: no strip here
};

struct StartupResults {
  std::vector<InitResult> init;
  std::vector<MemoryResult> memory;
  std::vector<CyclesResult> cycles;
  std::vector<LibraryResult> library;
};

Result<StartupResults> measure_startup(const StartupOptions& options);

}  // namespace tutti::bench
