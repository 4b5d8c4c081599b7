// GPU facts from NVIDIA's management library, loaded at run time: a machine without it is a normal machine.
#pragma once

#include "topology/gpu_facts.h"

#include <string>
#include <vector>

namespace tutti::topology {

struct NvmlFacts {
  std::vector<GpuFacts> gpus;
  std::string problem;  ///< why there are none, or not all: "libnvidia-ml.so.1: cannot open shared object file"
};

/// Never fails: what cannot be asked is left out. Takes as long as the driver does: seconds where it must wake the GPUs.
NvmlFacts read_nvml(const std::string& library = "libnvidia-ml.so.1");

}  // namespace tutti::topology
