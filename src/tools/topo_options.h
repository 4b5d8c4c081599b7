// tutti-topo's command line.
#pragma once

#include "base/dtype.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tutti::tools {

/// --simulate and what goes with it.
struct SimulateOptions {
  bool wanted = false;
  std::uint64_t from_bytes = 8;
  std::uint64_t to_bytes = std::uint64_t{1} << 30;
  double factor = 2;
  bool held = false;
  std::string timeline;  ///< files to write, or none
  std::string trace;
  int host_ranks = 0;  ///< ranks on a host's memory in place of a machine; 0: a machine
  double core_gbps = 60;
  double memory_gbps = 120;
};

struct TopoOptions {
  std::string file;       ///< "-": standard input
  std::string synthetic;  ///< neither: this machine
  Collective collective = Collective::kAllReduce;
  std::vector<int> chosen;  ///< GPUs, or NUMA nodes where there are none; none: all
  int ranks = 0;            ///< the first so many instead; 0: all
  bool all_links = false;
  int lanes_max = 0;  ///< 0: as the planner wants
  int units = 0;      ///< of the printed schedule's rounds; 0: as large messages need
  double nvlink_gbps = 0;
  bool explain = false;
  bool compare = false;
  bool schedule = false;
  std::string svg;  ///< a file to draw to
  bool json = false;
  bool bandwidths = false;
  SimulateOptions simulate;
};

struct ParsedTopoOptions {
  std::optional<TopoOptions> options;  ///< none: end with exit_code
  int exit_code = 0;
};

/// Prints help and mistakes itself.
ParsedTopoOptions parse_topo_options(int argc, char** argv);

}  // namespace tutti::tools
