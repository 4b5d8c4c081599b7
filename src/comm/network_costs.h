// What bytes cost between hosts: the first rank of each host measures it together with that of the next host, all in a ring at the same
// time, while the communicator is initialised. Every rank gets all figures and plans by the worst, so that all plan alike.
//
//   asks   a record without bytes, or with as many as a slot holds  ->  next host
//          the answer, as long as the question                      <-
//
// In a call bytes go by the same way: records of the bridge, by TCP or MPI, with a system call or a copy at each end. The best of
// the rounds counts: whatever else runs on the machine only adds to it.
#pragma once

#include "comm/bridge.h"
#include "comm/control.h"
#include "planner/rules.h"

#include <cstddef>
#include <functional>
#include <vector>

namespace tutti::comm {

struct NetworkCostArgs {
  Bridge& bridge;
  const Control& control;
  int rank = 0;  ///< the first of its host
  int next = 0;  ///< the first ranks of the hosts beside it; the same one where there are two hosts
  int previous = 0;
  bool crowded = false;
  std::function<bool()> given_up;  ///< polled: the communicator fails or is aborted
};

/// Rounds end after so long, but for two of each kind, which a far network needs.
inline constexpr double kNetworkCostMs = 3;
/// The longest it may take.
inline constexpr double kNetworkCostMsMax = 2000;

/// Zeros: not measured, as the others did not come or answer in time.
planner::NetworkCosts measure_network(const NetworkCostArgs& args);

/// What all plan by: the worst of what the first ranks of the hosts have measured; zeros if one of them has not.
planner::NetworkCosts worst_of(const std::vector<planner::NetworkCosts>& costs);

}  // namespace tutti::comm
