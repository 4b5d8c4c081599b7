// The simulator: runs a schedule in time on a graph of links, message by message, and says when the call is over.
//
// What a lane does is what the lane interpreter does (protocol/lane.h): one step after another, each when its messages have
// come and its channels have a free slot. It takes step_us to get a step going; then its data sets out. The messages are there
// latency_us after their data has crossed the links, and a slot is the sender's again credit_us after the step that read it was
// over. Lanes run side by side. Transfers that cross a link at the same time share it, max-min fair (fair_shares.h), weighted by
// what their channels carry in the whole call: a channel to which a lane has given more has more under way. Those of a channel
// follow each other.
//
//   step:      | waits for messages and slots | step_us | transfers, as fast as links allow |
//   receiver:                                                                               | latency_us | may start
//
// By default the lane goes on when its data has set out, as where hardware moves it: only slots bound how much is under
// way. Where `held` is set the lane waits until its own data is over, as where the lane's threads copy it.
#pragma once

#include "base/link_table.h"
#include "base/result.h"
#include "schedule/schedule.h"
#include "schedule/tiling.h"

#include <cstdint>
#include <functional>
#include <vector>

namespace tutti::schedule {

/// How messages go from one rank to another in a lane.
struct MessagePath {
  LinkPath links;         ///< none: it takes no time but latency
  double latency_us = 0;  ///< from the end of a send to the start of its receive
  double credit_us = 0;   ///< from the end of a receive until the slot is the sender's again
};

struct SimulatedMachine {
  LinkTable links;
  /// Asked once for each channel.
  std::function<MessagePath(int lane, int from, int to)> path;
  /// By rank: what its own work crosses, a core and the memory say. Empty: only messages take time.
  /// A further source that is added costs as much as a copied sink.
  std::vector<LinkPath> work;
};

struct SimulatedCall {
  std::uint64_t count = 0;  ///< elements of a block
  std::uint32_t element_bytes = 4;
  SlotShape slots{8, 512 << 10};
  bool direct = false;    ///< pull and push messages bypass the slots
  bool held = false;      ///< above
  double base_us = 0;     ///< before the first step
  double step_us = 0;     ///< to get a step going
  double wire_bytes = 1;  ///< that cross links for each byte of a message
};

struct SimulationLimits {
  /// Of more rounds than this many steps and messages, the first ones are run, kRoundsLeast or more, and the others take as
  /// long each as the later half of these adds to a call of the earlier half.
  std::uint64_t work_max = 4'000'000;
  std::uint64_t trace_max = 0;  ///< steps that the trace keeps
  /// Told now and then what part is done; false ends the run.
  std::function<bool(double)> progress;
};
inline constexpr std::uint64_t kRoundsLeast = 3;

/// A step that was run.
struct TracedStep {
  int rank = 0;
  int lane = 0;
  std::uint32_t step = 0;
  std::uint64_t round = 0;
  double start_us = 0;
  double end_us = 0;  ///< its data has arrived
};
/// A message's data on its links.
struct TracedTransfer {
  int lane = 0;
  int from = 0;
  int to = 0;
  double start_us = 0;
  double end_us = 0;
  double bytes = 0;  ///< on the wire
};

struct SimulatedRun {
  double us = 0;
  std::uint64_t rounds = 0;      ///< of the call
  std::uint64_t rounds_run = 0;  ///< fewer: the others were extrapolated
  std::uint64_t steps = 0;       ///< run
  std::uint64_t visits = 0;      ///< FairShares::visits
  std::vector<TracedStep> trace;
  std::vector<TracedTransfer> transfers;
};

/// kInvalidArgument if the schedule cannot end: who waits for whom. kInProgress if `progress` ended it.
Result<SimulatedRun> simulate(const Schedule& schedule, const SimulatedMachine& machine, const SimulatedCall& call,
                              const SimulationLimits& limits = {});

}  // namespace tutti::schedule
