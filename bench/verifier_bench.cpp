// How long the verifier takes: all_reduce by several algorithms, through slots and direct, by ranks.
#include "algorithm/algorithm.h"
#include "schedule/verifier.h"

#include <benchmark/benchmark.h>

#include <string>

namespace {

using tutti::schedule::Request;
using tutti::schedule::Schedule;
using tutti::schedule::VerifyOptions;

void verify(benchmark::State& state, const char* name, bool direct) {
  const Request request{tutti::Collective::kAllReduce, static_cast<int>(state.range(0))};
  const tutti::algorithm::Algorithm* row = tutti::algorithm::find(name, request);
  if (row == nullptr) {
    state.SkipWithError((std::string("no all_reduce algorithm called ") + name).c_str());
    return;
  }
  const Schedule schedule = tutti::algorithm::make_schedule(*row, request);
  VerifyOptions options;
  options.direct = direct;
  for (auto _ : state) {
    const tutti::Status status = tutti::schedule::verify(schedule, options);
    if (!status.ok()) {
      state.SkipWithError(status.error().message.c_str());
      return;
    }
  }
}

void sizes(benchmark::internal::Benchmark* bench) {
  for (const int ranks : {8, 32, 256, 1024}) bench->Arg(ranks);
  bench->Unit(benchmark::kMicrosecond);
}

BENCHMARK_CAPTURE(verify, ring, "ring", false)->Apply(sizes);
BENCHMARK_CAPTURE(verify, ring_direct, "ring", true)->Apply(sizes);
BENCHMARK_CAPTURE(verify, twoshot, "twoshot", false)->Apply(sizes);
BENCHMARK_CAPTURE(verify, twoshot_direct, "twoshot", true)->Apply(sizes);
BENCHMARK_CAPTURE(verify, tree_direct, "tree", true)->Apply(sizes);
BENCHMARK_CAPTURE(verify, halving_doubling, "halving_doubling", false)->Apply(sizes);

}  // namespace

BENCHMARK_MAIN();
