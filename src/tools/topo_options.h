// tutti-topo's command line.
#pragma once

#include "base/dtype.h"

#include <optional>
#include <string>
#include <vector>

namespace tutti::tools {

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
  bool json = false;
  bool bandwidths = false;
};

struct ParsedTopoOptions {
  std::optional<TopoOptions> options;  ///< none: end with exit_code
  int exit_code = 0;
};

/// Prints help and mistakes itself.
ParsedTopoOptions parse_topo_options(int argc, char** argv);

}  // namespace tutti::tools
