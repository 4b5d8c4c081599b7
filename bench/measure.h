// The measured loop: one rank's time per call, and percentiles of single calls.
#pragma once

#include "collective.h"
#include "deadline.h"
#include "options.h"

#include "base/result.h"

namespace tutti::bench {

struct Times {
  double time_us = 0;  ///< all iterations back to back, over their number
  double p50_us = 0;   ///< of single calls; 0 where not asked for
  double p99_us = 0;
};

/// Until all that the call's stream was given is over.
Status wait(const Call& call);
/// A barrier over all ranks, by an all_reduce of one element.
Status barrier(const Call& call);
/// One call, or a group of options.aggregate of them. Returns when its result is there.
Status run_and_wait(const Collective& collective, const Call& call, int aggregate);
/// Of a size of so many bytes: warm-up, then the timed iterations, then (with `percentiles`) each iteration by itself. Fails when the deadline
/// is over.
Result<Times> measure(const Collective& collective, const Call& call, const Options& options, std::size_t bytes,
                      bool percentiles, const Deadline& deadline);

}  // namespace tutti::bench
