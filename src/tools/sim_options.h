// tutti-sim's command line.
#pragma once

#include "sim/scenario.h"

#include <cstdint>
#include <optional>
#include <string>

namespace tutti::tools {

struct SimOptions {
  std::optional<std::uint64_t> seed;  ///< replay this one
  std::uint64_t first = 1;            ///< else search these
  std::uint64_t last = 1000;
  sim::Pins pins;
  bool stop_at_first = false;
  bool json = false;
  bool quiet = false;
  std::string pinned_words;  ///< the options that pin something, as a command to repeat
};

struct ParsedSimOptions {
  std::optional<SimOptions> options;  ///< none: end with exit_code
  int exit_code = 0;
};

/// Prints help, lists and mistakes itself.
ParsedSimOptions parse_sim_options(int argc, char** argv);

}  // namespace tutti::tools
