// What a driver knows of a GPU and the PCI tree does not show. NVML fills it (nvml_facts.h), CUDA can.
#pragma once

#include "topology/graph.h"

#include <string>
#include <vector>

namespace tutti::topology {

struct GpuPeer {
  enum class Kind { kGpu, kSwitch, kCpu };

  Kind kind = Kind::kGpu;
  std::string bus_id;  ///< of a GPU
  int nvlinks = 0;     ///< links to it that are up

  friend bool operator==(const GpuPeer&, const GpuPeer&) = default;
};

struct GpuFacts {
  std::string bus_id;  ///< "0000:07:00.0", lower case: which GPU this is about
  std::string name;    ///< "NVIDIA H100 80GB HBM3"
  int device = kNone;  ///< its number
  int sm = 0;          ///< compute capability, 90
  std::vector<GpuPeer> peers;

  friend bool operator==(const GpuFacts&, const GpuFacts&) = default;
};

}  // namespace tutti::topology
