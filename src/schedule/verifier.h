// Proves a schedule right, symbolically: no data, no hardware. docs/schedule.md says what is checked.
#pragma once

#include "base/result.h"
#include "schedule/schedule.h"

namespace tutti::schedule {

struct VerifyOptions {
  int slots = 2;            ///< messages that a channel holds before its sender waits
  bool in_place = false;    ///< input and output are the same memory, as NCCL defines it for the collective
  bool direct = false;      ///< pull and push messages use the peers' buffers
  bool rank_order = false;  ///< demand that every sum is ((r0 + r1) + r2) + ...
  bool wide_wire = false;   ///< demand that partial sums are in wide messages only: rounded once, when finished
  int rounds = 1;  ///< how often the list runs when looking for a deadlock: more change nothing (the tests hold it)
};

/// Success: every rank ends with what the collective promises, whatever the timing.
/// kInvalidUsage: what is wrong, with rank, lane, step and place. kInvalidArgument: options out of range.
Status verify(const Schedule& schedule, const VerifyOptions& options = {});

}  // namespace tutti::schedule
