// Calls in graphs and calls outside of them, on streams that only the communicator orders: the same for every way of a communicator whose
// ranks are processes.
#pragma once

#include "comm/crew.h"
#include "gpu.h"
#include "rank_values.h"

#include <nccl.h>

#include <string>

namespace tutti::test {

/// A graph, a call and another graph, three times: each on a stream of its own, and each on what the one before has written. "" or what is
/// wrong.
inline std::string check_mixed_calls(ncclComm_t comm, int ranks, int rank, std::size_t count) {
  const Gpu& gpu = Gpu::get();
  const OnGpu<std::int32_t> a(values(rank, count));
  const OnGpu<std::int32_t> b(Ints(count, kPoison));
  const OnGpu<std::int32_t> c(Ints(count, kPoison));
  CUstream streams[] = {gpu.make_stream(), gpu.make_stream(), gpu.make_stream()};
  CUgraphExec graphs[2] = {};
  const auto sum_up = [&](const OnGpu<std::int32_t>& from, const OnGpu<std::int32_t>& to, CUstream stream) {
    return crew::fine(ncclAllReduce(from.data(), to.data(), count, ncclInt32, ncclSum, comm, stream), "ncclAllReduce");
  };
  for (int g = 0; g < 2; ++g) {
    gpu.begin_capture(streams[2 * g]);
    CREW_TRY(sum_up(g == 0 ? a : c, g == 0 ? b : a, streams[2 * g]));
    CUgraph graph = gpu.end_capture(streams[2 * g]);
    if (!graph) return "the capture was spoilt";
    graphs[g] = gpu.make_executable(graph);
    gpu.destroy(graph);
  }
  std::int32_t times = 1;
  for (int round = 0; round < 3; ++round) {
    gpu.launch(graphs[0], streams[0]);
    CREW_TRY(sum_up(b, c, streams[1]));
    gpu.launch(graphs[1], streams[2]);
    times *= (round == 0 ? 1 : ranks) * ranks * ranks;
  }
  gpu.wait(streams[2]);
  const Ints found = a.read();
  for (CUgraphExec graph : graphs) gpu.destroy(graph);
  for (CUstream stream : streams) gpu.destroy(stream);
  for (std::size_t i = 0; i < count; ++i) {
    if (found[i] == sum(ranks, i) * times) continue;
    return "element " + std::to_string(i) + " of " + std::to_string(count) + " is " + std::to_string(found[i]) +
           " and should be " + std::to_string(sum(ranks, i) * times);
  }
  return "";
}

}  // namespace tutti::test
