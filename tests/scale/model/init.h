// What making a communicator takes: single steps of the bootstrap measured here, and what they come to with many ranks.
#pragma once

#include <cstddef>

namespace tutti::scale {

struct InitCosts {
  double join_us = 0;        ///< the root's and a rank's work from the connection to the table, beside its entries
  double connection_us = 0;  ///< between two ranks, proved: the work of both
  double entry_us = 0;       ///< a rank's entry in a table: written, sent, read
  std::size_t entry_bytes = 0;
  std::size_t place_bytes = 0;  ///< of what the root tells a rank of its place in the tree
};

/// Some seconds, by the bootstrap's own code over this machine's sockets.
InitCosts measure_init_costs();

struct InitModel {
  int connections = 0;       ///< of a rank
  double root_bytes = 0;     ///< that the root sends
  double passed_bytes = 0;   ///< that a rank passes on, at most
  double memory_bytes = 0;   ///< of a rank, as scale-tests measure it among fewer
  double address_bytes = 0;  ///< of a rank's copy of the control segment
  double seconds = 0;
};

/// Root and ranks have a processor each, and each one's network carries kNetworkGbps.
inline constexpr double kNetworkGbps = 5;
InitModel model_init(const InitCosts& costs, int hosts, int ranks_per_host);

}  // namespace tutti::scale
