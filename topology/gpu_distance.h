// How far GPUs are from each other.
#pragma once

#include "base/gpu_distance.h"
#include "topology/graph.h"

namespace tutti::topology {

/// Of two of the graph's GPUs, by the nearest way that there is. No way goes through another GPU: memory is not reached that way.
GpuDistance gpu_distance(const Graph& graph, int a, int b);

}  // namespace tutti::topology
