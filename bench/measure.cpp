#include "measure.h"

#include "base/elapsed.h"
#include "nccl_status.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

namespace tutti::bench {
namespace {

using Clock = std::chrono::steady_clock;

ncclResult_t submit(const Collective& collective, const Call& call, int aggregate) {
  if (aggregate == 1) return collective.run(call);
  if (const ncclResult_t code = call.library->ncclGroupStart(); code != ncclSuccess) return code;
  ncclResult_t code = ncclSuccess;
  for (int n = 0; n < aggregate && code == ncclSuccess; ++n) code = collective.run(call);
  const ncclResult_t end = call.library->ncclGroupEnd();
  return code != ncclSuccess ? code : end;
}

/// Calls of one iteration, submitted one by one, or all at once as a graph.
class Iteration {
 public:
  static Result<Iteration> make(const Collective& collective, const Call& call, const Options& options) {
    Iteration made(collective, call, options.aggregate);
    if (options.graph == 0) return made;
    made.calls_ = options.graph;
    TUTTI_TRY(call.gpu->begin_capture(call.stream));
    Status captured;
    for (int n = 0; n < options.graph && captured.ok(); ++n)
      captured = call.library->status(submit(collective, call, options.aggregate), collective.name);
    Result<void*> graph = call.gpu->end_capture(call.stream);
    TUTTI_TRY(std::move(captured));
    TUTTI_TRY_ASSIGN(made.graph_, std::move(graph));
    return made;
  }
  Iteration(Iteration&& other) noexcept
      : collective_(other.collective_),
        call_(other.call_),
        aggregate_(other.aggregate_),
        calls_(other.calls_),
        graph_(std::exchange(other.graph_, nullptr)) {}
  Iteration& operator=(Iteration&&) = delete;
  ~Iteration() {
    if (!graph_) return;
    (void)call_.gpu->wait(call_.stream);  // launches that are under way after a failure use the buffers, which go next
    call_.gpu->destroy_graph(graph_);
  }

  /// Collective calls in it.
  int calls() const { return calls_ * aggregate_; }
  Status begin() const {
    if (graph_) return call_.gpu->launch(graph_, call_.stream);
    return call_.library->status(submit(collective_, call_, aggregate_), collective_.name);
  }

 private:
  Iteration(const Collective& collective, const Call& call, int aggregate)
      : collective_(collective), call_(call), aggregate_(aggregate) {}

  const Collective& collective_;
  const Call& call_;
  int aggregate_ = 1;
  int calls_ = 1;
  void* graph_ = nullptr;
};

/// The smallest sample that at least `share` of all samples do not exceed.
double percentile(const std::vector<double>& sorted, double share) {
  const auto rank = static_cast<std::size_t>(share * static_cast<double>(sorted.size()) + 0.999999);
  return sorted[std::clamp<std::size_t>(rank, 1, sorted.size()) - 1];
}

}  // namespace

Status wait(const Call& call) {
  if (call.gpu) return call.gpu->wait(call.stream);
  return call.stream ? nccl(tuttiStreamSynchronize(call.stream), "waiting for the stream") : Status();
}

Status barrier(const Call& call) {
  std::int32_t own[2] = {1, 0};  // out of place: a plan may be right there only
  std::int32_t* const words = call.words ? call.words : own;
  TUTTI_TRY(call.library->status(
      call.library->ncclAllReduce(words, words + 1, 1, ncclInt32, ncclSum, call.comm, call.stream), "the barrier"));
  return wait(call);
}

Status run_and_wait(const Collective& collective, const Call& call, int aggregate) {
  TUTTI_TRY(call.library->status(submit(collective, call, aggregate), collective.name));
  return wait(call);
}

Result<Times> measure(const Collective& collective, const Call& call, const Options& options, std::size_t bytes,
                      bool percentiles, const Deadline& deadline) {
  TUTTI_TRY_ASSIGN(const Iteration iteration, Iteration::make(collective, call, options));
  const auto begin = [&] {
    return deadline.is_over() ? Status(error(Code::kRemote, "the time is over")) : iteration.begin();
  };
  const int iterations = options.iterations_of(bytes);
  for (int n = options.warmup_of(bytes); n > 0; --n) {
    TUTTI_TRY(begin());
    TUTTI_TRY(wait(call));
  }
  TUTTI_TRY(barrier(call));

  Times times;
  const double calls = static_cast<double>(iterations) * iteration.calls();
  const Clock::time_point start = Clock::now();
  for (int n = 0; n < iterations; ++n) {
    TUTTI_TRY(begin());
    if (options.blocking) TUTTI_TRY(wait(call));
  }
  const double submitted_us = us_since(start);
  TUTTI_TRY(wait(call));
  times.time_us = (options.cpu_time ? submitted_us : us_since(start)) / calls;
  if (!percentiles) return times;

  TUTTI_TRY(barrier(call));
  std::vector<double> samples(static_cast<std::size_t>(iterations));
  for (double& sample : samples) {
    const Clock::time_point before = Clock::now();
    TUTTI_TRY(begin());
    TUTTI_TRY(wait(call));
    sample = us_since(before) / iteration.calls();
  }
  std::sort(samples.begin(), samples.end());
  times.p50_us = percentile(samples, 0.50);
  times.p99_us = percentile(samples, 0.99);
  return times;
}

}  // namespace tutti::bench
