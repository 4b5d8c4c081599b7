#include "measure.h"

#include "nccl_status.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

namespace tutti::bench {
namespace {

using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

ncclResult_t submit(const Collective& collective, const Call& call, int aggregate) {
  if (aggregate == 1) return collective.run(call);
  if (const ncclResult_t code = ncclGroupStart(); code != ncclSuccess) return code;
  ncclResult_t code = ncclSuccess;
  for (int n = 0; n < aggregate && code == ncclSuccess; ++n) code = collective.run(call);
  const ncclResult_t end = ncclGroupEnd();
  return code != ncclSuccess ? code : end;
}

ncclResult_t wait(cudaStream_t stream) { return stream ? tuttiStreamSynchronize(stream) : ncclSuccess; }

/// The smallest sample that at least `share` of all samples do not exceed.
double percentile(const std::vector<double>& sorted, double share) {
  const auto rank = static_cast<std::size_t>(share * static_cast<double>(sorted.size()) + 0.999999);
  return sorted[std::clamp<std::size_t>(rank, 1, sorted.size()) - 1];
}

}  // namespace

Status barrier(const Call& call) {
  const std::int32_t mine = 1;  // out of place: a plan may be right there only
  std::int32_t all = 0;
  TUTTI_TRY(nccl(ncclAllReduce(&mine, &all, 1, ncclInt32, ncclSum, call.comm, call.stream), "the barrier"));
  return nccl(wait(call.stream), "the barrier");
}

Status run_and_wait(const Collective& collective, const Call& call, int aggregate) {
  TUTTI_TRY(nccl(submit(collective, call, aggregate), collective.name));
  return nccl(wait(call.stream), collective.name);
}

Result<Times> measure(const Collective& collective, const Call& call, const Options& options, bool percentiles) {
  for (int n = 0; n < options.warmup; ++n) TUTTI_TRY(run_and_wait(collective, call, options.aggregate));
  TUTTI_TRY(barrier(call));

  Times times;
  const double calls = static_cast<double>(options.iterations) * options.aggregate;
  const Clock::time_point start = Clock::now();
  for (int n = 0; n < options.iterations; ++n) {
    TUTTI_TRY(nccl(submit(collective, call, options.aggregate), collective.name));
    if (options.blocking) TUTTI_TRY(nccl(wait(call.stream), collective.name));
  }
  const double submitted_us = microseconds_since(start);
  TUTTI_TRY(nccl(wait(call.stream), collective.name));
  times.time_us = (options.cpu_time ? submitted_us : microseconds_since(start)) / calls;
  if (!percentiles) return times;

  TUTTI_TRY(barrier(call));
  std::vector<double> samples(static_cast<std::size_t>(options.iterations));
  for (double& sample : samples) {
    const Clock::time_point before = Clock::now();
    TUTTI_TRY(run_and_wait(collective, call, options.aggregate));
    sample = microseconds_since(before) / options.aggregate;
  }
  std::sort(samples.begin(), samples.end());
  times.p50_us = percentile(samples, 0.50);
  times.p99_us = percentile(samples, 0.99);
  return times;
}

}  // namespace tutti::bench
