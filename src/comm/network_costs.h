// What bytes cost between hosts: the first rank of each host measures it together with that of the next host, in a ring, while the
// communicator is initialised; one after the other, up to kTurns of them, so that what they measure is the network and not each other. Every rank
// gets all figures and plans by the worst, so that all plan alike.
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
  int place = 0;  ///< of its host, in the ring
  bool crowded = false;
  std::function<bool()> given_up;  ///< polled: the communicator fails or is aborted
};

/// A host asks when the one before it has asked all, but for each kTurns-th, which asks at once: many hosts take no longer than so many.
inline constexpr int kTurns = 4;

/// Rounds end after so long, but for two of each kind, or one where the network is far.
inline constexpr double kNetworkCostMs = 6;
/// The longest that a turn may take; all together kTurns times as long.
inline constexpr double kTurnMsMax = 2000;

/// Zeros: not measured, as the others did not come or answer in time.
planner::NetworkCosts measure_network(const NetworkCostArgs& args);

/// What all plan by: the worst of what the first ranks of the hosts have measured; zeros if one of them has not.
planner::NetworkCosts worst_of(const std::vector<planner::NetworkCosts>& costs);

}  // namespace tutti::comm
